"""Types of file arguments, and options that several verbs share."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click

from ..errors import did_you_mean
from ..outputs import no_room, scratch

if TYPE_CHECKING:
    from ..collect.options import Option, Options

_Function = TypeVar("_Function", bound=Callable[..., Any])
Decorator = Callable[[_Function], _Function]


class _Named(click.Path):
    """The name of a file or folder. The function that opens it checks that it exists and is usable."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        # An empty path would be the current folder. A script passes one when its variable is not set.
        if value == "":
            self.fail("the name is empty: name a file or a folder", param, ctx)
        return super().convert(value, param, ctx)


FILE = _Named(path_type=Path, readable=False)


class _Source(_Named):
    """A file to read; ``-`` is a temporary copy of stdin."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if value != "-" or ctx is None:
            return super().convert(value, param, ctx)
        if "cutrace.stdin" in ctx.meta:
            raise click.UsageError(
                "- is stdin, which can be read once: name it once", ctx
            )
        ctx.meta["cutrace.stdin"] = True
        if sys.stdin.isatty():
            raise click.UsageError("- is stdin: pipe a file into it", ctx)
        path = ctx.with_resource(scratch()) / "stdin"
        try:
            with path.open("wb") as file:
                shutil.copyfileobj(sys.stdin.buffer, file)
        except OSError as error:
            raise no_room(error.strerror) from None
        return path


def shown(text: str) -> str:
    """A string for people: the temporary copy of stdin is called stdin."""
    return re.sub(r"(?<!\S)\S*[/\\]cutrace\.\w+[/\\]stdin\b", "stdin", text)


#: An argument of Python in a sentence: `sort=`, `clock='keep'`.
_ARGUMENT = re.compile(r"`(\w+)=([^`]*)`")


def as_options(sentence: str) -> str:
    """A sentence with options of the command line in place of arguments of Python."""

    def option(found: re.Match[str]) -> str:
        name = found[1].replace("_", "-")
        value = found[2].strip("'")
        if value in ("", "True"):
            return f"--{name}"
        if value == "False":
            return f"--no-{name}"
        return f"--{name} {shlex.quote(value)}"

    return _ARGUMENT.sub(option, sentence)


class _UrlOrSource(_Source):
    """A file to read, or the URL of one, which stays a string."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)


SOURCE = _Source(path_type=Path, readable=False)
URL_OR_SOURCE = _UrlOrSource(path_type=Path, readable=False)


class Integer(click.IntRange):
    """An integer in a range."""

    name = "integer"  # click puts this name into the message about a word.


COUNT = Integer(min=0)
#: The metrics that fail a test by default.
GATE = "work,counter"
#: Rows of a table for people, by default.
ROWS = 20


class Group(click.Group):
    """A command with verbs. Without a verb it shows its help. ``help VERB`` shows the help of a verb. The error for an
    unknown verb names a similar one. ``moved`` has sentences for verbs of earlier versions."""

    moved: ClassVar[Mapping[str, str]] = {}

    def instead_of(self, name: str, similar: str) -> str:
        """Return a hint for an unknown verb. ``similar`` is the question after similar verbs, empty if there are
        none."""
        return similar

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            # click's error for an option without its value names no command.
            name = ctx.invoked_subcommand
            command = self.get_command(ctx, name or "")
            if error.ctx is None and command is not None:
                error.ctx = click.Context(command, ctx, name)
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            if name in self.moved:
                ctx.fail(self.moved[name])
            similar = did_you_mean(name, self.list_commands(ctx), "", most=2)
            hint = self.instead_of(name, similar)
            ctx.fail(f"No such command {name!r}{': ' if hint else ''}{hint}")
        return super().resolve_command(ctx, args)


def sources(
    metavar: str = "FILE...",
    *,
    required: bool = True,
    type: click.ParamType[Any] = SOURCE,
) -> Decorator[Any]:
    """Return an argument of one file or several, to be opened as one trace."""
    return click.argument(
        "sources", nargs=-1, required=required, metavar=metavar, type=type
    )


def output(
    help: str, *, required: bool = True, default: str | None = None
) -> Decorator[Any]:
    """Return the option of the file to write."""
    # With a default, even None, the option would not be required.
    optional: dict[str, Any]
    if default is None:
        optional = {"required": required}
    else:
        optional = {"default": default, "show_default": True}
    # It is eager, because the option of the format reads its value.
    return click.option(
        "-o", "--output", type=FILE, help=help, is_eager=True, **optional
    )


def form(choice: Sequence[str], *, by_ending: bool = False) -> Decorator[Any]:
    """Return the option of the format of printed tables. The default is the format for the ending of the output, if
    ``by_ending``, or else the first choice."""

    def default(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
        output: Path = ctx.params["output"] or Path()
        ending = output.suffix.lower()
        chosen = value or _ENDINGS.get(ending, choice[0])
        known = value or ending in (*_ENDINGS, *_OF_TEXT)
        if chosen not in choice or not known:
            ctx.fail(
                f"No table can be written to {output}: name a file that ends in {endings}, or give --format"
            )
        return chosen

    if not by_ending:
        return click.option(
            "--format",
            "form",
            type=click.Choice(choice),
            default=choice[0],
            show_default=True,
            help="What to write.",
        )
    endings = " or ".join(ending for ending, name in _ENDINGS.items() if name in choice)
    help = f"What to write; else the ending of -o decides: {endings}.  [default: {choice[0]}]"
    return click.option(
        "--format", "form", type=click.Choice(choice), callback=default, help=help
    )


def names(flag: str, **declared: Any) -> Decorator[Any]:
    """Return an option of names with commas between them. If the option is given several times, the names are
    joined."""

    def joined(
        ctx: click.Context, param: click.Parameter, uses: Sequence[str]
    ) -> str | None:
        if not uses:
            return None
        return ",".join(uses)

    return click.option(flag, multiple=True, callback=joined, **declared)


#: Endings of files of plain text.
_OF_TEXT = ("", ".txt", ".text", ".log")
#: Formats of tables by the ending of a file.
_ENDINGS = {".csv": "csv", ".json": "json", ".md": "markdown", ".parquet": "parquet"}


#: The options by which captures are compared with golden files.
ignore = click.option(
    "--ignore",
    multiple=True,
    metavar="WORD",
    help="Metric or class of a golden file to leave out, or METRIC:PATTERN.",
)
variant = click.option(
    "--variant",
    default="",
    metavar="TEMPLATE",
    help="Variant of the environment, e.g. cuda{cuda}.",
)


def limit(default: int | None = None) -> Decorator[Any]:
    """Return the option of the number of rows to print. Without ``default``, the default depends on the format."""
    has_default = default is not None
    help = "Rows of a table; 0 for all."
    if not has_default:
        help = f"Rows of a table; 0 for all ({ROWS} for people, all for programs)."
    return click.option(
        "--limit",
        type=COUNT,
        metavar="N",
        default=default,
        show_default=has_default,
        help=help,
    )


def recording(verb: str, declared: type[Options] | None = None) -> Decorator[Any]:
    """Return the options of a recording that a verb has. Each is an argument of :meth:`Options.of`; it is None or () if
    it is not given."""
    from ..collect.options import Options

    rows = [
        row for row in (declared or Options).declared().values() if verb in row.verbs
    ]

    def add(function: _Function) -> _Function:
        for row in reversed(rows):
            function = _option_of_recording(row, verb)(function)
        return function

    return add


def _option_of_recording(row: Option, verb: str) -> Decorator[Any]:
    help = row.help.replace("`'", "'").replace("'`", "'").replace("`", "")
    if row.switch is not None:
        return click.option(
            row.flag,
            row.keyword,
            is_flag=True,
            callback=lambda *given: row.switch if given[2] else None,
            help=help,
        )
    # `cutrace attach` uses the values of `cutrace arm` as defaults.
    if row.default and not (verb == "attach" and "arm" in row.verbs):
        help += f"  [default: {row.default}]"
    kind: click.ParamType[Any] | type = str
    if row.choices:
        kind = click.Choice(row.choices)
    elif row.number:
        kind = int
    if row.metavar == "KIND,...":
        return names(row.flag, metavar=row.metavar, help=help)
    return click.option(
        row.flag,
        row.keyword,
        type=kind,
        multiple=row.repeated,
        metavar=row.metavar,
        help=help,
    )


def list_reports(lines: Callable[[], Iterable[str]]) -> Decorator[Any]:
    """Return the option that prints ``lines`` about all reports."""

    def show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
        if value and not ctx.resilient_parsing:
            click.echo("\n".join(lines()))
            ctx.exit()

    return click.option(
        "--list-reports",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="List all reports.",
    )


format = click.option(
    "--format",
    metavar="NAME",
    help="The format, if the output's name does not give it: pftrace, json, sqlite, ...",
)
compress = click.option(
    "--compress",
    type=click.Choice(["zstd", "deflate"]),
    help="Compress groups of packets of a trace for Perfetto.",
)
table = click.option(
    "--table", metavar="NAME", help="The table to write, for formats that hold one."
)
clock = click.option(
    "--clock",
    type=click.Choice(["align", "keep"]),
    default="align",
    show_default=True,
    help="Align the times of several files from different machines, or keep them as they are.",
)
ranges = click.option(
    "--ranges",
    type=click.Choice(["adopted", "own"]),
    default="adopted",
    show_default=True,
    help="The work in an NVTX range: also work of threads without ranges, or work of its own thread only.",
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
redact = click.option(
    "--redact", is_flag=True, help="Leave out command lines, host names and paths."
)
