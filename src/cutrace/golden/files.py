"""Golden files on disk: a TOML file for each test module, written by cutrace and reviewed by people.

A test is a table and a metric is a line. Values that all environments share are written once; ``[TEST.on.ENVIRONMENT]``
has the others. Absent work has no line. A total has no line either if its parts are listed by name.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from ..analysis.definitions import METRICS, Metric, MetricClass
from ..errors import CutraceError, cannot_read, did_you_mean
from ..outputs import write_text
from .codes import is_code
from .model import (
    BREAKDOWNS,
    CODE,
    DIVIDED,
    SIGNED,
    Codes,
    Count,
    Entry,
    Interval,
    Module,
    Observed,
    Span,
    Stored,
    Values,
    find_metric,
    function_of,
    ordered,
    part_of,
    total_of,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: The only format of golden files that is written and read.
FORMAT = 2
#: Files with settings of pytest.
_SETTINGS = ("pyproject.toml", "pytest.toml")
HEADER = "# Written by cutrace. Review it like code."
#: The line of a file with marks.
_ABOUT_MARKS = '# A line such as "# 3f2a" marks the next test. It stays if the test is renamed, so that git can merge.'
#: The mark of a test, and the header of its table.
_MARK = re.compile(r"\n# ([0-9a-f]{4})\n\[(.+)\]")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
    '"': '\\"',
    "\\": "\\\\",
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_LARGEST = 2**63 - 1
#: The maximum length of all names in one line. With longer names, each count by name gets its own line.
_WIDE = 90
#: The keys of a file other than its tests, with their meanings.
KEYS_OF_FILE = {
    "format": "number of the format: 2",
    "module": "path of the test file, relative to the rootdir",
    "seen": "environments in which the tests were seen, such as sm_90",
}
#: The keys other than metrics in the table of a test, of an environment, and of a region.
KEYS_OF_TEST = {
    "seen": "environments of the test, if they differ from the list of the file",
    "unconfirmed": "environments whose values come from one run that could not be repeated",
    "against": "in a candidate: digest of the golden values that it was compared with",
    "unstable": "metrics on which the runs differed, with their values",
    "region": "metrics of each region of the test, by its name",
    "on": "values that one environment has alone, by its name",
}
_OF_ENVIRONMENT = ("unstable", "region")
_OF_REGION = ("unstable",)
#: The numbers of an interval. An interval may also have samples.
KEYS_OF_INTERVAL = {
    "min": "smallest value of all runs",
    "median": "median of the runs",
    "q3": "third quartile of the runs",
    "n": "number of runs",
}
_AGAIN = (
    "Take the file from version control, or delete it and run pytest --cutrace-update"
)
_KINDS = {
    bool: "true or false",
    int: "a number",
    float: "a fraction",
    str: "a string",
    list: "a list",
    dict: "a table",
}
#: The starts of lines with machine code. No other key has this start.
_CODE_LINES = (b"\ncode", b"\nunstable.code")
_AT_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)$")
#: A number with more digits than Python reads.
_ENDLESS = re.compile(r"\d{4300}")


def read(path: Path, *, module: str | None = None) -> Module:
    """Read the golden file at ``path``, which must belong to the test file ``module`` if one is given.

    Raises :class:`CutraceError` with file and line for any error in it.
    """
    try:
        # Reading a pipe would block.
        if not stat.S_ISREG(path.stat().st_mode):
            raise CutraceError(
                f"cannot read the golden file {path}: it is not a file. Move it away, or name another."
            )
        data = path.read_bytes()
    except OSError as error:
        raise CutraceError(cannot_read(path, error, "the golden file ")) from None
    try:
        # Editors on Windows may add a byte order mark to a file.
        source = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CutraceError(f"{path}:{line}: this is not UTF-8 text. {_AGAIN}") from None
    return parse(source, path, module)


def parse(source: str, path: Path, module: str | None = None) -> Module:
    """Parse the content of a golden file. Errors name it ``path``. ``module`` is as in :func:`read`."""
    return _module(_Place(path, source, _tables(path, source)), module)


def existing(path: Path, module: str) -> Module:
    """The golden file of the test file ``module``. A missing file has no tests. Raises :class:`CutraceError` for a
    file that cannot be read."""
    with contextlib.suppress(OSError):  # read() raises the error with the reason.
        if not path.exists():
            return Module(module)
    return read(path, module=module)


def text(module: Module) -> str:
    """The content of a golden file. Equal files have equal contents. Reading and writing does not change them."""
    # The most frequent list of environments is written once.
    lists = Counter(tuple(sorted(entry)) for entry in module.tests.values())
    ranked = [(count, len(names), names) for names, count in lists.items()]
    _, _, seen = max(ranked, default=(0, 0, ()))
    head = [
        HEADER,
        f"format = {FORMAT}",
        f"module = {_string(module.path)}",
        f"seen = {_strings(seen)}",
    ]
    lines: list[str] = []
    marked: set[str] = set()
    for test, entry in module.tests.items():
        name = _key(_key_of(test))
        against = module.against.get(test, "")
        function = function_of(test)
        lines.append("")
        if function in module.marks and function not in marked:
            marked.add(function)
            lines.append(f"# {module.marks[function]}")
        lines += _test_lines(name, entry, seen, against)
    lines.append("")
    if marked:
        head.insert(1, _ABOUT_MARKS)
    return "\n".join([*head, *lines])


def write(module: Module, path: Path) -> None:
    """Write a golden file atomically, and create its folders."""
    write_text(path, text(module))


def golden_files(root: Path) -> Iterator[Path]:
    """The golden files under a folder, sorted by path. The folder may be the rootdir, so files with pytest's settings
    do not count. Raises :class:`CutraceError` for a folder that cannot be read."""
    found = []
    for folder, folders, names in os.walk(root, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name in _SETTINGS:
                continue
            path = Path(folder, name)
            if path.suffix == ".toml" and not name.startswith(".") and path.is_file():
                found.append(path)
    yield from sorted(found)


def _refuse_folder(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise CutraceError(cannot_read(error.filename, error, "the folder "))


def may_have_code(path: Path) -> bool:
    """Whether a golden file may have values of machine code. The file is not parsed, because sessions call this before
    any test runs."""
    try:
        data = path.read_bytes()
    except OSError:  # The tests of the module fail with this error.
        return False
    return any(map(data.__contains__, _CODE_LINES))


def line_of_test(path: Path, test: str) -> int:
    """The line (from 1) of a test in a golden file; 1 if the test is not in it."""
    try:
        return _line_of(path.read_text(encoding="utf-8"), (_key_of(test),))
    except (OSError, UnicodeDecodeError):
        return 1


# Reading


@dataclass(slots=True)
class _Place:
    """A value in a golden file with its keys. Errors find their line by the keys."""

    path: Path
    source: str
    value: Any
    keys: tuple[str, ...] = ()

    def at(self, key: str, default: Any = None, what: str = "") -> _Place:
        """The value of a key. If ``default`` is given, the value must have its type, which ``what`` describes."""
        value = self.value.get(key, default)
        place = _Place(self.path, self.source, value, (*self.keys, key))
        expected = type(default)
        if default is not None and not isinstance(value, expected):
            place.fail(f"{key} is {what}, not {_kind(value)}")
        return place

    def table(self, key: str) -> _Place:
        return self.at(key, {}, "a table")

    def text(self, key: str) -> str:
        return str(self.at(key, "", "a string in quotes").value)

    def names(self, key: str) -> list[str]:
        value = self.value.get(key, [])
        listed = isinstance(value, list)
        if not listed or not all(isinstance(name, str) and name for name in value):
            self.fail(f"{key} is a list of environments, such as ['sm_90']", key)
        names: list[str] = value
        return names

    def count(self, least: int = 0) -> int:
        value = self.value
        name = self.keys[-1]
        if type(value) is not int:
            self.fail(f"{name} is a whole number, not {_kind(value)}")
        if not least <= value <= _LARGEST:
            self.fail(
                f"{name} cannot be {value}: write a number from {least} to {_LARGEST}"
            )
        return value

    def fail(self, message: str, *keys: str) -> NoReturn:
        line = _line_of(self.source, (*self.keys, *keys))
        raise CutraceError(f"{self.path}:{line}: {message}")


def _tables(path: Path, source: str) -> dict[str, Any]:
    for number, line in enumerate(source.split("\n"), 1):
        if line.startswith(("<<<<<<< ", ">>>>>>> ")):
            raise CutraceError(
                f"{path}:{number}: there are marks of a merge conflict: choose one side for each test, remove the "
                "marks, and run pytest --cutrace"
            )
    try:
        tables: dict[str, Any] = tomllib.loads(source)
        return tables
    except RecursionError:
        raise CutraceError(f"{path}:1: it is nested too deeply. {_AGAIN}") from None
    except ValueError as error:
        reason = str(error)
    number = _line_of_error(source, reason)
    reason = _AT_LINE.sub("", reason)
    reason = reason.replace(" (at end of document)", " at the end of the file")
    raise CutraceError(f"{path}:{number}: {reason}. {_AGAIN}")


def _line_of_error(source: str, reason: str) -> int:
    """The line (from 1) of an error in the syntax of a file."""
    named = _AT_LINE.search(reason)
    if named:
        return int(named[1])
    # The error of a number with too many digits has no line.
    before = _ENDLESS.split(source, maxsplit=1)[0]
    return before.count("\n") + 1


def _line_of(source: str, keys: tuple[str, ...]) -> int:
    """The line (from 1) of a key given with its parents, or of its closest parent in the file."""
    result = 1
    depth = 0
    section: tuple[str, ...] = ()
    for number, line in enumerate(source.split("\n"), 1):
        if line.lstrip().startswith("["):
            section = _keys_in(line)
            here = section
        else:
            here = (*section, *_assigned_keys(line))
        shared = sum(here[:count] == keys[:count] for count in range(1, len(keys) + 1))
        if shared > depth:
            result = number
            depth = shared
    return result


def _assigned_keys(line: str) -> tuple[str, ...]:
    """The keys before the equals sign of a line. A quoted key may contain an equals sign."""
    for at, character in enumerate(line):
        if character == "=":
            keys = _keys_in(line[:at] + "= 0")
            if keys:
                return keys
    return ()


def _keys_in(line: str) -> tuple[str, ...]:
    """The keys of a line, () if it has none."""
    try:
        table: Any = tomllib.loads(line)
    except ValueError:
        return ()
    keys: list[str] = []
    while isinstance(table, dict) and table:
        key: str = next(iter(table))
        keys.append(key)
        table = table[key]
        if isinstance(table, list):
            table = table[0]
    return tuple(keys)


def _module(file: _Place, expected: str | None) -> Module:
    number = file.value.get("format")
    if type(number) is not int or number < 1:
        file.fail(
            f"there is no line 'format = {FORMAT}': this is not a golden file. {_AGAIN}",
            "format",
        )
    if number < FORMAT:
        file.fail(
            f"format {number} is no longer supported: delete the folder of golden files and run pytest "
            "--cutrace-update",
            "format",
        )
    if number > FORMAT:
        file.fail(
            f"format {number} is newer than {FORMAT}, the newest known here: install a newer cutrace",
            "format",
        )
    path = file.text("module")
    if "module" not in file.value:
        file.fail(
            f"there is no line 'module = ...' with the path of the test file. {_AGAIN}"
        )
    if expected is not None and path != expected:
        file.fail(
            f"this is the golden file of {path!r}, not of {expected!r}. If the test file was renamed, correct the "
            "line, or delete the file and run pytest --cutrace-update",
            "module",
        )
    seen = file.names("seen")
    module = Module(path)
    marks = {header: mark for mark, header in _MARK.findall(file.source)}
    for key in file.value:
        if key in KEYS_OF_FILE:
            continue
        table = file.table(key)
        test = key.removeprefix("::")
        module.tests[test] = _entry(table, seen)
        mark = marks.get(_key(key))
        if mark:
            module.marks.setdefault(function_of(test), mark)
        digest = table.text("against")
        if digest:
            module.against[test] = digest
    return module


def _entry(test: _Place, seen: Sequence[str]) -> Entry:
    environments = test.names("seen") or seen
    if not environments:
        test.fail(
            "the environments of the values are missing: add a line such as seen = ['sm_90']"
        )
    unconfirmed = test.names("unconfirmed")
    special = test.table("on")
    for key, names in (("unconfirmed", unconfirmed), ("on", special.value)):
        for name in names:
            if name not in environments:
                test.fail(
                    f"{name!r} is not among the environments in 'seen'", key, name
                )
    shared = _observed(test, KEYS_OF_TEST)
    entry = {}
    for name in environments:
        own = _observed(special.table(name), _OF_ENVIRONMENT)
        values = _united(shared.values, own.values)
        unstable = _united(shared.unstable, own.unstable)
        entry[name] = Observed(values, unstable, name not in unconfirmed)
    return entry


def _observed(table: _Place, special: Container[str]) -> Observed:
    """The stable and the unstable values of a table, by region."""
    observed = Observed()
    _observe(observed, "", table, special)
    regions = table.table("region")
    for name in regions.value:
        _observe(observed, name, regions.table(name), _OF_REGION)
    return observed


def _observe(
    observed: Observed, region: str, table: _Place, special: Container[str]
) -> None:
    """Add the values of one region."""
    observed.values[region] = _values(table, special)
    unstable = _values(table.table("unstable"))
    if unstable:
        observed.unstable[region] = unstable


def _values(table: _Place, special: Container[str] = ()) -> Values:
    values: Values = {}
    for name in table.value:
        if name in special:
            continue
        place = table.at(name)
        metric = find_metric(name)
        if metric is None:
            known = (*METRICS, *KEYS_OF_TEST)
            hint = did_you_mean(
                name, known, "the reference of the pytest plugin lists them.", most=1
            )
            place.fail(
                f"there is no metric {name!r}: {hint} If a newer cutrace wrote it, install that"
            )
        total = total_of(metric)
        if total in values:
            place.fail(
                f"{name} repeats the value of another line of this table: keep one of them"
            )
        values[total] = _value(metric, place)
    return values


def _value(metric: Metric, place: _Place) -> Stored:
    if metric.kind is MetricClass.INFO:
        place.fail(f"{metric.name} is never compared: remove the line")
    if metric.total and not metric.counts:
        place.fail(
            f"a part has no line of its own: write {metric.total} = {{ {part_of(metric)} = 1 }}"
        )
    if metric.kind is MetricClass.TIME:
        return _interval(place)
    if metric.kind is MetricClass.STATE:
        return _span(place)
    if metric.kind is MetricClass.CODE:
        return _codes(place)
    by_name = metric.counts or metric.name in DIVIDED
    if isinstance(place.value, dict) and by_name:
        return {key: _count(place.at(key)) for key in place.value}
    if metric.counts:
        place.fail(
            f"{metric.name} is a table of counts by name, such as {{ softmax = 1 }}"
        )
    if metric.kind is MetricClass.COUNTER:
        return _count(place, -_LARGEST)
    return _count(place)


def _codes(place: _Place) -> Codes:
    """The machine code of kernels. It must be in the table of an environment."""
    if place.keys[1] != "on":
        place.fail(
            f"code depends on the GPU: write it below [{_key(place.keys[0])}.on.sm_90], for the GPU that ran it"
        )
    if place.keys[3] == "region":
        place.fail("code belongs to the whole test: remove it from the region")
    if not isinstance(place.value, dict):
        place.fail(
            f'code is a table of strings by kernel, not {_kind(place.value)}: write code.softmax = "..."'
        )
    codes = {}
    for kernel in place.value:
        codes[kernel] = _codes_of_kernel(place.at(kernel))
    return Codes(codes)


def _codes_of_kernel(place: _Place) -> tuple[str, ...]:
    """The codes of one kernel: a string, or a list of several."""
    codes = place.value
    if isinstance(codes, str):
        codes = [codes]
    valid = isinstance(codes, list) and codes
    if not valid or not all(isinstance(one, str) and is_code(one) for one in codes):
        place.fail(
            f"the code of {place.keys[-1]} is a hash of 16 digits with properties, such as "
            '"9f3c52d0a1b2c3d4 registers=32 shared=1024 bytes=512", or a list of such strings. Remove the line, and '
            "run pytest --cutrace-update=code"
        )
    return tuple(sorted(set(codes)))


def _count(place: _Place, least: int = 0) -> Count:
    if not isinstance(place.value, list):
        return place.count(least)
    counts = sorted(set(_counts(place, least)))
    if len(counts) < 2:
        place.fail(
            f"{place.keys[-1]} needs two or more different alternatives, such as [1, 2]"
        )
    return tuple(counts)


def _counts(place: _Place, least: int = 0) -> list[int]:
    """The numbers of a list."""
    return [replace(place, value=one).count(least) for one in place.value]


def _span(place: _Place) -> Span:
    name = place.keys[-1]
    value = place.value
    least = 0
    if name in SIGNED:
        least = -_LARGEST
    if type(value) is int:
        return Span(place.count(least), value)
    if isinstance(value, dict) and set(value) == {"min", "max"}:
        low = place.at("min").count(least)
        high = place.at("max").count(least)
        if low <= high:
            return Span(low, high)
    place.fail(
        f"{name} is a range of measured values, such as {{ min = 0, max = 4096 }}"
    )


def _interval(place: _Place) -> Interval:
    name = place.keys[-1]
    value = place.value
    if not isinstance(value, dict) or set(value) - {"samples"} != set(KEYS_OF_INTERVAL):
        place.fail(
            f"{name} is an interval of ns such as {{ min = 18400, median = 18700, q3 = 18900, n = 10 }}"
        )
    least, median, q3, n = [place.at(key).count() for key in KEYS_OF_INTERVAL]
    samples = place.at("samples")
    if not isinstance(samples.value, list | None):
        samples.fail("samples is a list of ns")
    times: tuple[int, ...] = ()
    if samples.value:
        times = tuple(_counts(samples))
    if not least <= median <= q3 or n < 1 or (times and len(times) != n):
        place.fail(
            f"{name} is not an interval: min <= median <= q3, n >= 1, and either n samples or none"
        )
    return Interval(least, median, q3, n, times)


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a date or time")


def _united(base: dict[str, Values], own: dict[str, Values]) -> dict[str, Values]:
    """The values of an environment: the shared values and its own values. Counts by name are joined. Other values of
    the environment replace the shared values."""
    united = {region: dict(values) for region, values in base.items()}
    for region, values in own.items():
        of_region = united.setdefault(region, {})
        for name, value in values.items():
            shared = of_region.get(name)
            if isinstance(shared, dict) and isinstance(value, dict):
                value = {**shared, **value}
            of_region[name] = value
    return united


# Writing


#: The prefix of metrics on which runs differed.
_UNSTABLE = "unstable."
#: Where a value is in an environment: the region, :data:`_UNSTABLE` or "", the metric, and the name of a count (None
#: for a whole value).
_Where = tuple[str, str, str, str | None]


def _test_lines(
    name: str, entry: Entry, seen: Sequence[str], against: str
) -> list[str]:
    environments = sorted(entry)
    lines = [f"[{name}]"]
    if tuple(environments) != tuple(seen):
        lines.append(f"seen = {_strings(environments)}")
    if against:
        lines.append(f"against = {_string(against)}")
    unconfirmed = [one for one in environments if not entry[one].confirmed]
    if unconfirmed:
        lines.append(f"unconfirmed = {_strings(unconfirmed)}")
    values = [_by_key(entry[one]) for one in environments]
    shared = _shared(values)
    lines += _table_lines(name, shared)
    for environment, of_environment in zip(environments, values, strict=True):
        table = f"{name}.on.{_key(environment)}"
        own = {key: value for key, value in of_environment.items() if key not in shared}
        own_lines = _table_lines(table, own)
        # TOML needs no header for a table that has only regions.
        if own_lines and not own_lines[0].startswith("["):
            lines.append(f"[{table}]")
        lines += own_lines
    return lines


def _by_key(observed: Observed) -> dict[_Where, Any]:
    """The values of an environment, each count by name on its own."""
    found: dict[_Where, Any] = {}
    for prefix, regions in (("", observed.values), (_UNSTABLE, observed.unstable)):
        for region, values in regions.items():
            # A region without values has a table, too.
            found[region, "", "", None] = None
            for name, value in values.items():
                parts: Any = value
                if isinstance(value, Codes):
                    parts = value.by_kernel
                if isinstance(parts, dict) and parts:
                    for part in parts:
                        found[region, prefix, name, part] = parts[part]
                else:
                    found[region, prefix, name, None] = parts
    return found


def _shared(environments: Sequence[dict[_Where, Any]]) -> dict[_Where, Any]:
    """The values that all environments have in common."""
    shared = {}
    for key, value in environments[0].items() if environments else ():
        _, _, name, _ = key
        # Code depends on the GPU, even if only one GPU was seen.
        if name != CODE and all(
            key in one and one[key] == value for one in environments
        ):
            shared[key] = value
    return shared


def _table_lines(table: str, values: dict[_Where, Any]) -> list[str]:
    regions: dict[str, dict[str, Values]] = {}
    for (region, prefix, name, part), value in values.items():
        tables = regions.setdefault(region, {"": {}, _UNSTABLE: {}})
        if part is not None:
            counts: Any = tables[prefix].setdefault(name, {})
            counts[part] = value
        elif name:
            tables[prefix][name] = value
    lines = []
    for region in sorted(regions):
        if region:
            lines.append(f"[{table}.region.{_key(region)}]")
        for prefix, of_prefix in regions[region].items():
            for metric in ordered(of_prefix):
                lines += _value_lines(prefix, metric.name, of_prefix[metric.name])
    return lines


def _value_lines(prefix: str, name: str, value: Any) -> Iterator[str]:
    wide = False
    if isinstance(value, dict):
        # Each kernel has its own line of code.
        wide = name == CODE or sum(len(key) + 4 for key in value) > _WIDE
        name = BREAKDOWNS.get(name, name)
    name = f"{prefix}{_key(name)}"
    if not value or not wide:
        yield f"{name} = {_value_text(value)}"
        return
    for key in sorted(value):
        yield f"{name}.{_key(key)} = {_value_text(value[key])}"


def _value_text(value: Any) -> str:
    if isinstance(value, Interval):
        samples = ""
        if value.samples:
            samples = f", samples = {list(value.samples)}"
        return f"{{ min = {value.min}, median = {value.median}, q3 = {value.q3}, n = {value.n}{samples} }}"
    if isinstance(value, Span):
        if value.min == value.max:
            return str(value.min)
        return f"{{ min = {value.min}, max = {value.max} }}"
    if isinstance(value, dict):
        parts = [f"{_key(name)} = {_value_text(value[name])}" for name in sorted(value)]
        if parts:
            return f"{{ {', '.join(parts)} }}"
        return "{}"
    if isinstance(value, tuple) and isinstance(value[0], str):
        if len(value) == 1:
            return _string(value[0])
        return _strings(value)
    if isinstance(value, tuple):
        return str(list(value))
    return str(value)


def _key_of(test: str) -> str:
    """The key of a test's table: colons before the name of a test distinguish it from a top-level key."""
    if test in KEYS_OF_FILE or test.startswith("::"):
        return f"::{test}"
    return test


def _key(name: str) -> str:
    if _BARE.fullmatch(name):
        return name
    return _string(name)


def _strings(names: Sequence[str]) -> str:
    return f"[{', '.join(map(_string, names))}]"


def _string(value: str) -> str:
    """A TOML string without control characters and characters that change the direction of text."""
    if value.isprintable() and '"' not in value and "\\" not in value:
        return f'"{value}"'
    if _SURROGATE.search(value):
        raise CutraceError(
            f"the name {value!a} has a character that no text file can hold: rename it"
        )
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(character: str) -> str:
    """A character of a TOML string, escaped if it has to be."""
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    code = ord(character)
    if code <= 0xFFFF:
        return f"\\u{code:04X}"
    return f"\\U{code:08X}"
