"""The pages of docs/reference, made from the code: ``python docs/reference.py --write``.

Each page starts with sentences written by hand. What follows the line :data:`MADE` comes from the declarations of the
code, so it cannot differ from them: from the commands of click, the public names of ``cutrace``, the layouts of the
tables, the statistics and the options of the pytest plugin. A word that is wrong or missing belongs into the
declaration.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import click

import cutrace
from cutrace import cli, plugins, queries
from cutrace.analysis.definitions import METRICS, Metric
from cutrace.analysis.reports import OPTIONS_OF_USERS
from cutrace.analysis.statistic import Statistic
from cutrace.analysis.statistics import STATISTICS
from cutrace.analysis.tables import Column
from cutrace.collect import environment
from cutrace.collect.options import KINDS, Option, Options
from cutrace.extras.fleet.running import batch_reports
from cutrace.golden import files as golden_files
from cutrace.reports.tables import key
from cutrace.runbin.layout import LOSS_REASONS, TABLES, TableLayout
from cutrace.trace.arrow import pyarrow
from pytest_cutrace import hookspecs, options, plugin
from pytest_cutrace.fixtures import Tracer
from pytest_cutrace.report import COMMITS, JOBS

#: An option or column that this many verbs or tables share is printed once.
MANY = 4
COMMON_OPTIONS = "Options of many verbs"
COMMON_COLUMNS = "Columns of many statistics"
COMMON_TABLE_COLUMNS = "Columns of many tables"
COMMON_BATCH_COLUMNS = "Columns of many batch tables"
FOLDER = Path(__file__).parent / "reference"
COMMAND = "python docs/reference.py --write"
#: Separates a page's own sentences from the generated lines.
MADE = f"<!-- Made from the code by `{COMMAND}`. Change the code, not the lines below. -->\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; "" without rows. Raises ValueError for a row whose last cell, its meaning, is empty."""
    lines = [_row(head), "|".join(["", *("---" for _ in head), ""])]
    for row in rows:
        if not row[-1].strip():
            raise ValueError(f"{row[0]} has no description: {' | '.join(row)}")
        lines.append(_row(row))
    if len(lines) == 2:
        return ""
    return "\n".join(lines) + "\n\n"


def _row(cells: Sequence[str]) -> str:
    written = [" ".join(cell.split()).replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(written)} |"


def code(text: str) -> str:
    """A string as Markdown code; "" for an empty string."""
    if not text:
        return ""
    return f"`{text}`"


def slug(title: str) -> str:
    """The anchor of a title."""
    return title.lower().replace(" ", "-")


def sentence(text: str) -> str:
    """The string with a capital letter and a full stop."""
    text = text.strip()
    if text and not text.endswith((".", ":", "!")):
        text += "."
    return text[:1].upper() + text[1:]


def linked(text: str) -> str:
    """The string with names of pages as links, seen from a page of :data:`FOLDER`."""
    text = re.sub(r"\]\((?=[\w/-]+\.md)", "](../", text)
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[\1](../\1)", text)


def prose(docstring: str) -> str:
    """A docstring as Markdown: its roles and literals become code, its parameters a list."""
    text = inspect.cleandoc(docstring)
    text = re.sub(r":\w+:`~?\.*([^`<]+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    text = linked(re.sub(r"::$", ":", text, flags=re.MULTILINE))
    parts = re.split(r"^:param (\w+): (.*(?:\n .*)*)\n?", text, flags=re.MULTILINE)
    written = parts[0].strip() + "\n\n"
    for name, meaning, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        written += f"* `{name}`: {' '.join(meaning.split())}\n"
        if after.strip():
            written += f"\n{after.strip()}\n\n"
    return written.rstrip() + "\n\n"


# The command line


def _of_click(text: str) -> str:
    """A help string of click as Markdown. Options and literals become code, lines that click keeps a block of code."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            paragraphs.append(textwrap.indent(paragraph.strip("\b\n"), "    "))
        else:
            paragraphs.append(linked(_literals(" ".join(paragraph.split()))))
    return "\n\n".join(paragraphs)


def _literals(text: str) -> str:
    """A sentence in which options are code, outside of code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<![\w'}-])(--?[a-z][a-z-]*(?:=[\w-]+)?)", r"`\1`", part) for part in parts[::2]]
    return "`".join(parts)


def command_line() -> Iterator[str]:
    """The verbs, each with its usage, its help and its options."""
    verbs = cli._own_verbs()
    yield "## Verbs\n\n"
    yield table(["verb", ""], ([f"[`{verb.name}`](#{verb.name})", verb.help] for verb in verbs))
    commands: dict[str, click.Command] = {}
    for verb in verbs:
        module, _, name = verb.command.partition(":")
        commands |= _with_inner(verb.name, getattr(import_module(module), name))
    count = Counter(_key(row) for command in commands.values() for row in _rows(command))
    common = {}
    for command in commands.values():
        common |= {_key(row): row for row in _rows(command) if count[_key(row)] >= MANY}
    declared = {row.flag for row in Options.declared().values()}
    common = {key: row for key, row in common.items() if _flag(row) not in declared - {"--redact"}}
    recording = {_flag(row): _start(row[-1]) for row in _rows(commands["record"]) if _flag(row) in declared}
    yield f"## {COMMON_OPTIONS}\n\n"
    yield table(["option", "default", "meaning"], common.values())
    for name, command in commands.items():
        yield from _verb(name, command, common, recording)
    yield "## Options of the collector\n\n`CUTRACE_OPTIONS` has one `key=value` a line.\n\n"
    keys = [row for row in Options.declared().values() if row.key]
    yield table(["key", "option"], ([code(row.key or ""), _option_or_help(row)] for row in keys))


def _option_or_help(row: Option) -> str:
    """The option of the command line, or what the option does where the command line has none."""
    if row.verbs:
        return code(row.flag)
    return sentence(row.help)


def _with_inner(name: str, command: click.Command) -> dict[str, click.Command]:
    """A command and those inside it, by name."""
    commands = {name: command}
    if isinstance(command, click.Group):
        for inner, one in command.commands.items():
            commands |= _with_inner(f"{name} {inner}", one)
    return commands


def _verb(
    name: str, command: click.Command, common: Mapping[Any, Sequence[str]], recording: Mapping[str, str]
) -> Iterator[str]:
    # A command keeps the option --help that its first context asks for.
    context = click.Context(command, info_name=f"cutrace {name}", **cli.cli.context_settings)
    usage = " ".join(command.collect_usage_pieces(context))
    level = "#" * (2 + name.count(" "))
    yield f"{level} {name}\n\n    cutrace {name} {usage}\n\n{_of_click(command.help or '')}\n\n"
    own = []
    also = []
    of_record = []
    for row in _rows(command):
        if _key(row) in common:
            also.append(code(_flag(row)))
        elif name != "record" and recording.get(_flag(row)) == _start(row[-1]):
            of_record.append(code(_flag(row)))
        else:
            own.append(row)
    yield table(["option", "default", "meaning"], own)
    if of_record:
        yield f"As for [`record`](#record): {', '.join(of_record)}.\n\n"
    if also:
        yield f"[As for many verbs](#{slug(COMMON_OPTIONS)}): {', '.join(also)}.\n\n"
    if name == "record":
        yield table(["kind", "what is recorded"], ([code(kind), sentence(text)] for kind, text in KINDS.items()))


def _start(meaning: str) -> str:
    """The first sentence of a meaning. Help of a verb may lack its marks of code and its further sentences."""
    return meaning.replace("`", "").partition(". ")[0].rstrip(".")


def _rows(command: click.Command) -> Iterator[list[str]]:
    declared = {row.flag: row for row in Options.declared().values()}
    for one in command.params:
        if not isinstance(one, click.Option) or one.hidden:
            continue
        names, default, meaning = _option(one)
        if command.name == "record" and one.opts[0] in declared:
            row = declared[one.opts[0]]
            meaning = linked(_literals(f"{row.help} {row.more}"))
        yield [names, default, meaning]


def _key(row: Sequence[str]) -> tuple[str, ...]:
    return tuple(row)


def _flag(row: Sequence[str]) -> str:
    """The long name of an option."""
    found = re.search(r"--[a-z-]+", row[0])
    assert found, row
    return found[0]


def _option(option: click.Option) -> list[str]:
    context = click.Context(click.Command(""))
    names = ", ".join((*option.opts, *option.secondary_opts))
    if not option.is_flag:
        names += " " + re.sub(r"^\[(.*)\]$", r"\1", option.make_metavar(context))
    help, default = _help_and_default(option)
    if option.required:
        default = "required"
    meaning = sentence(_literals(help))
    if option.multiple and "repeated" not in help:
        meaning += " May be repeated."
    return [code(names), default, meaning]


def _help_and_default(option: click.Option) -> tuple[str, str]:
    """The help of an option, and its default as code. Some defaults are written in the help."""
    help = option.help or ""
    written = re.search(r"\s*\[default: ([^]]*)\]", help)
    if written:
        return help.replace(written[0], "").rstrip(), code(written[1])
    if isinstance(option.show_default, str):
        return help, option.show_default
    if option.show_default and not option.is_flag and not callable(option.default):
        default = option.default
        if option.multiple:
            default = ",".join(default)
        return help, code(str(default))
    return help, ""


# Python


def python() -> Iterator[str]:
    """The public names of ``cutrace``, functions first."""
    functions = []
    classes = []
    aliases = []
    for name in sorted([*cutrace.__all__, "open", "slice"]):
        value = getattr(cutrace, name)
        if inspect.isclass(value):
            classes.append((name, value))
        elif inspect.isfunction(value):
            functions.append((name, value))
        else:
            without_modules = re.sub(r"[a-z_.]+\.(?=[A-Z])", "", str(value))
            aliases.append([code(name), code(without_modules), _comment(name)])
    yield "## Functions\n\n"
    rows = [[f"[`{name}`](#{name.lower()})", first(value)] for name, value in functions]
    yield table(["function", ""], rows)
    for name, value in functions:
        yield f"### {name}\n\n{_signature(name, value)}{prose(value.__doc__ or '')}"
    yield "## Options of a recording\n\n"
    yield "Arguments of `record`, `arm` and `attach`. [`record`](cli.md#record) says what each does. "
    yield "A size is also a number of bytes, a time an int of nanoseconds, and several names are also a list.\n\n"
    yield table(["argument, for example", "option"], _arguments())
    yield "## Types of arguments\n\n"
    yield table(["name", "type", "meaning"], aliases)
    yield "## Classes\n\n"
    rows = [[f"[`{name}`](#{name.lower()})", first(value)] for name, value in classes]
    yield table(["class", ""], rows)
    for name, value in classes:
        yield from _class(name, value)


def first(value: Any) -> str:
    """The first sentence of a docstring."""
    text = prose(inspect.getdoc(value) or "").partition("\n\n")[0]
    return re.split(r"(?<=[.:])\s", " ".join(text.split()))[0].removesuffix(":")


def _comment(alias: str) -> str:
    """The comment before the definition of a type."""
    for file in Path(cutrace.__file__).parent.glob("*.py"):
        found = re.search(rf"((?:^#: .*\n)+){alias} = ", file.read_text(), re.MULTILINE)
        if found:
            return " ".join(prose(found[1].replace("#: ", "")).split())
    raise LookupError(f"no comment is before {alias}")


def _arguments() -> Iterator[list[str]]:
    for row in Options.declared().values():
        value = f'"{row.example}"'
        if row.switch is not None:
            value = str(row.switch)
        elif row.number:
            value = row.example
        yield [code(f"{row.keyword}={value}"), _option_or_help(row)]


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    parameters = list(_parameters(signature.parameters.values()))
    result = ""
    if signature.return_annotation is not signature.empty:
        result = f" -> {signature.return_annotation}"
    line = f"{name}({', '.join(parameters)}){result}"
    if len(line) > 100:
        line = "\n    ".join([f"{name}(", *(f"{one}," for one in parameters)]) + f"\n){result}"
    return f"```python\n{line}\n```\n\n"


def _parameters(parameters: Iterable[inspect.Parameter]) -> Iterator[str]:
    only_keywords = False
    for one in parameters:
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not only_keywords:
            only_keywords = True
            yield "*"
        text = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "") + one.name
        if one.annotation is not one.empty:
            text += f": {one.annotation}"
        if one.default is not one.empty:
            text += f" = {_default(one.default)}"
        yield text


def _default(value: Any) -> str:
    """A default as in the source; a function is its name."""
    if not callable(value):
        return repr(value)
    name: str = value.__name__
    if name == "<lambda>":
        return "..."
    return name


def _class(name: str, value: type) -> Iterator[str]:
    yield f"### {name}\n\n{prose(value.__doc__ or '')}"
    if is_dataclass(value):  # users make no others themselves
        yield _signature(name, value)
    methods = []
    attributes = []
    for member, object in _members(value):
        if inspect.isfunction(object):
            methods.append((member, object))
        else:
            attributes.append([code(member), " ".join(prose(inspect.getdoc(object) or "").split())])
    yield table(["attribute", "meaning"], attributes)
    for member, object in methods:
        yield f"#### {name}.{member}\n\n{_signature(f'{name}.{member}', object)}{prose(object.__doc__ or '')}"


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that cutrace defines, by name."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith(("cutrace", "pytest_cutrace")):
            continue
        for member, object in vars(base).items():
            if member in seen:
                continue
            seen.add(member)
            is_property = isinstance(object, property | cached_property)
            if isinstance(object, classmethod | staticmethod):
                object = object.__func__
            is_method = inspect.isfunction(object) and object.__name__ == member
            if not member.startswith("_") and (is_property or is_method):
                yield member, object


# Tables

_FIELD_HEAD = ("column", "type", "unit", "meaning")


def tables() -> Iterator[str]:
    """The tables of a trace, with their columns in Arrow, pandas, Polars, Parquet and SQL."""
    schemas = queries.schemas()
    yield "## Tables\n\n"
    yield table(["table", "rows"], ([f"[`{one.name}`](#{one.name})", one.doc] for one in TABLES.values()))
    count = Counter(row for name in TABLES for row in _columns_of(schemas[name]))
    common = [row for row in count if count[row] >= MANY]
    yield f"## {COMMON_TABLE_COLUMNS}\n\n"
    yield table(_FIELD_HEAD, common)
    yield "## processes\n\nThe recorded processes. Only SQL has this table.\n\n"
    yield table(_FIELD_HEAD, _columns_of(schemas["processes"]))
    for layout in TABLES.values():
        yield f"## {layout.name}\n\n{sentence(layout.doc)}\n\n"
        taken: set[str] = set()
        for field in layout.fields:
            referred = layout.referred(field)
            if referred:
                taken.update(one.name for one in TABLES[referred].fields)
                yield f"The columns of [{referred}](#{referred}) stand for the id `{field.name}`.\n\n"
        rows = [row for row in _columns_of(schemas[layout.name]) if _own(row, layout, taken)]
        yield table(_FIELD_HEAD, [row for row in rows if row not in common])
        also = [row[0] for row in rows if row in common]
        if also:
            yield f"[{COMMON_TABLE_COLUMNS}](#{slug(COMMON_TABLE_COLUMNS)}): {', '.join(also)}.\n\n"
    yield "## Reasons of losses\n\n"
    losses = ([str(number), code(name), text] for number, (name, text) in LOSS_REASONS.items())
    yield table(["number", "name", "what is counted"], losses)
    yield "## Views for SQL\n\n"
    yield "Named like tables of Nsight Systems and Perfetto: see [internals/sql.md](../internals/sql.md#views).\n\n"
    views = ([code(name), ", ".join(map(code, columns))] for name, columns in queries.view_columns().items())
    yield table(["view", "columns"], views)


def bytes_of_tables() -> Iterator[str]:
    """The rows of each table byte by byte, for the page of the file format."""
    for layout in TABLES.values():
        yield f"### {layout.name} (kind {layout.number}, {layout.row_size} bytes)\n\n"
        rows = [[str(layout.offsets[field.name]), field.name, field.unit, field.type] for field in layout.fields]
        yield table(["offset", "field", "unit", "type"], rows)


def _columns_of(schema: Any) -> list[tuple[str, ...]]:
    return [tuple(_column_of_arrow(field)) for field in schema]


def _own(row: tuple[str, ...], layout: TableLayout, taken: Container[str]) -> bool:
    """Whether a column is not one of a table that the rows refer to."""
    name = row[0].strip("`")
    return name not in taken or name in layout.offsets


def _column_of_arrow(field: Any) -> list[str]:
    words = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    types = pyarrow().types
    kind = str(field.type)
    if types.is_dictionary(field.type):
        kind = "string"
    elif types.is_list(field.type):
        kind = "list of strings"
    return [code(field.name), kind, words.get("unit", ""), words.get("doc", "")]


# Statistics

_COLUMN_HEAD = ("column", "in CSV and JSON", "unit", "meaning")


def statistics() -> Iterator[str]:
    """The statistics and the reports of batch, with their columns."""
    every = (*STATISTICS, *plugins.of_extras("cutrace_statistics"))
    yield "## Statistics\n\n"
    yield table(["statistic", "answers"], map(_in_list, every))
    yield f"## {COMMON_COLUMNS}\n\n"
    common = _of_many(one.shown_columns for one in every)
    yield table(_COLUMN_HEAD, common)
    for one in every:
        yield f"## {one.name}\n\n{_literals(one.doc)}\n\n"
        used = []
        for name in one.options:
            flag = OPTIONS_OF_USERS[name].replace("_", "-")
            used.append(f"`--{flag}`")
        if used:
            yield f"Options: {', '.join(used)}.\n\n"
        yield from _column_table(one.shown_columns, common, COMMON_COLUMNS)
    yield from _reports_of_batch()


def _reports_of_batch() -> Iterator[str]:
    """The reports of batch, with the columns of their tables."""
    reports = batch_reports().values()
    yield "## Reports of batch\n\n"
    yield "[`cutrace batch`](cli.md#batch) prints the tables of a report, and its page has them, too. "
    yield "[Batch](../internals/batch.md) has the exact rules, and the columns of the Parquet files that "
    yield "`cutrace sql` reads.\n\n"
    yield table(["report", "shows"], ([f"[`{one.name}`](#{one.name})", _literals(one.title)] for one in reports))
    common = _of_many(one.columns for report in reports for one in report.tables)
    yield f"### {COMMON_BATCH_COLUMNS}\n\n"
    yield table(_COLUMN_HEAD, common)
    for report in reports:
        yield f"### {report.name}\n\n{sentence(_literals(report.title))}\n\n"
        needed = [f"`--{name}`" for name in report.needs]
        if needed:
            yield f"Needs {', '.join(needed)}.\n\n"
        for one in report.tables:
            yield f"#### {one.title} ({code(one.name)})\n\n{_literals(one.doc)}\n\n"
            yield from _column_table(one.columns, common, COMMON_BATCH_COLUMNS)


def _of_many(tables: Iterable[Iterable[Column]]) -> list[tuple[str, ...]]:
    """The rows of columns that many tables have."""
    count = Counter(tuple(_column(column)) for columns in tables for column in columns)
    return [row for row in count if count[row] >= MANY]


def _column_table(columns: Iterable[Column], common: Container[Any], title: str) -> Iterator[str]:
    """The table of some columns, and a link to the common ones, which are under a title of their own."""
    rows = [tuple(_column(column)) for column in columns]
    yield table(_COLUMN_HEAD, [row for row in rows if row not in common])
    also = [row[0] for row in rows if row in common]
    if also:
        yield f"[{title}](#{slug(title)}): {', '.join(also)}.\n\n"


def _in_list(one: Statistic) -> list[str]:
    """The row of a statistic in the list. The usual ones have a star."""
    star = " *" if one.usual else ""
    question = re.split(r"(?<=\.) |:", one.doc)[0].removesuffix(".")
    return [f"[`{one.name}`](#{one.name}){star}", _literals(question)]


def _column(column: Column) -> list[str]:
    unit = {"1": "0 to 1", "text": "", "number": "", "moment": "ns", "change": "ns"}.get(column.unit, column.unit)
    return [column.name, code(key(column)), unit, _literals(column.doc)]


# The pytest plugin

_KEYWORD_HEAD = ("keyword", "meaning")


class _Declared:
    """Takes the place of pytest's parser, and keeps what the plugin declares."""

    def __init__(self) -> None:
        self.options: list[list[str]] = []
        self.ini: list[list[str]] = []

    def getgroup(self, *_: str) -> _Declared:
        return self

    def addoption(self, name: str, *, help: str, metavar: str = "", **_: Any) -> None:
        self.options.append([code(f"{name}={metavar}".removesuffix("=")), sentence(_literals(help))])

    def addini(self, name: str, help: str, kind: str, default: Any) -> None:
        shown = code(str(default)) if default else ""
        self.ini.append([code(name), shown, sentence(_literals(help))])


def plugin_of_pytest() -> Iterator[str]:
    declared = _Declared()
    options.add(declared)  # type: ignore[arg-type]
    yield "## Options\n\n"
    yield table(["option", "meaning"], declared.options)
    yield "## Ini settings\n\n"
    yield table(["setting", "default", "meaning"], declared.ini)
    yield "## Markers\n\n### cutrace\n\nCompare the GPU work of the test with its golden values.\n\n"
    yield table(_KEYWORD_HEAD, _meanings(options.MARKER))
    yield "### gpu_limit\n\nLimit the GPU work of the test, without golden values.\n\n"
    yield table(_KEYWORD_HEAD, _meanings(options.LIMIT_MARKER))
    yield f"## Fixtures\n\n### gpu_trace\n\n{prose(plugin.gpu_trace.__doc__ or '')}"
    for member, object in _members(Tracer):
        what = f"gpu_trace.{member}"
        if inspect.isfunction(object):
            yield _signature(what, object)
        else:
            yield f"```python\n{what}\n```\n\n"
        yield prose(object.__doc__ or "")
    yield f"### cutrace_dir\n\n{prose(plugin.cutrace_dir.__doc__ or '')}"
    yield "## Environment variables\n\n"
    yield table(["variable", "meaning"], _environment())
    yield "## Keys of a golden file\n\n"
    yield table(["key of the file", "meaning"], _meanings(golden_files.KEYS_OF_FILE))
    yield "Each other key is a test. Its table has [metrics](#metrics) and these:\n\n"
    yield table(["key of a test", "meaning"], _meanings(golden_files.KEYS_OF_TEST))
    yield "A time is a table of these keys, in ns. `samples` may list the runs.\n\n"
    yield table(["key of a time", "meaning"], _meanings(golden_files.KEYS_OF_INTERVAL))
    yield "## Hooks\n\n"
    for name, hook in vars(hookspecs).items():
        if name.startswith("pytest_cutrace_"):
            yield f"### {name}\n\n{prose(hook.__doc__ or '')}"
    yield "## Metrics\n\n"
    yield table(["metric", "class", "unit", "meaning"], map(_metric, METRICS.values()))


def _meanings(words: Mapping[str, str]) -> Iterator[list[str]]:
    for name, meaning in words.items():
        yield [code(name), sentence(_literals(meaning))]


def _environment() -> Iterator[list[str]]:
    """The variables that the plugin reads."""
    yield [code("PYTEST_ADDOPTS"), "Further arguments of pytest."]
    yield [code(environment.OPTIONS), "Set by `cutrace record`: the plugin dumps the newest rows when a test fails."]
    yield [", ".join(map(code, COMMITS)), "The tested commit in reports: the first one that is set."]
    yield [", ".join(map(code, JOBS)), "The name of the job in reports: the first one that is set."]


def _metric(metric: Metric) -> list[str]:
    return [code(metric.name), metric.kind.value, metric.unit, sentence(metric.doc)]


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "cli": command_line,
    "python": python,
    "tables": tables,
    "../internals/run-bin": bytes_of_tables,
    "statistics": statistics,
    "pytest": plugin_of_pytest,
}


def page(name: str) -> str:
    """The content of a page: its own sentences and the generated lines."""
    path = FOLDER / f"{name}.md"
    own = path.read_text().partition(MADE)[0]
    return f"{own}{MADE}\n{''.join(PAGES[name]()).rstrip()}\n"


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        sys.exit(f"usage: {COMMAND}")
    for name in PAGES:
        (FOLDER / f"{name}.md").write_text(page(name))


if __name__ == "__main__":
    main()
