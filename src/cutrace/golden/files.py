"""Golden files on disk: one small TOML file a test, written by a machine and read by people.

One metric is one line and the order is fixed, so that a diff reads like a change of behaviour.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..analysis.metrics import METRICS, Gate, Metric
from ..errors import CutraceError
from ..outputs import unwritable
from .lines import Damaged, line_of, parsed
from .model import FORMAT, SIGNED, Golden, Interval, Section, Stored, Values, metric

HEADER = "# Written by `pytest --cutrace --cutrace-update`. Review it like code."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LARGEST = 2**63 - 1


def read(path: Path, *, test: str | None = None, known: Mapping[str, Metric] = METRICS) -> Golden:
    """The golden file at ``path``, which has to be that of ``test`` if one is given.

    ``known`` are the metrics that may occur, besides those of projects, which have a dot in their names. Raises
    :class:`CutraceError` with file and line for whatever is wrong with it.
    """
    try:
        # A pipe would make the reader wait for ever.
        data = path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        raise CutraceError(f"cannot read the golden file {path}: {error.strerror}") from None
    if data is None:
        raise CutraceError(f"cannot read the golden file {path}: it is not a file")
    try:
        source = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CutraceError(f"{path}:{line}: this is not UTF-8 text. {_AGAIN}") from None
    return _Reader(path, source, known).golden(test)


def text(golden: Golden) -> str:
    """The golden file as text. Equal ones have equal texts, and reading a text and writing it again changes nothing."""
    lines = [HEADER, f"format = {golden.format}", f"test = {_string(golden.test)}", *_section("common", golden.common)]
    for key in sorted(golden.gpus):
        lines += _section(f"gpu.{_key(key)}", golden.gpus[key])
    return "\n".join(lines) + "\n"


def write(golden: Golden, path: Path, *, known: Mapping[str, Metric] = METRICS) -> bool:
    """Write a golden file in one step, its folders too, and tell whether it changed.

    A file that says the same already is left as it is, with the comments that people may have added.
    """
    content = text(golden)
    if path.exists() and _says(path, golden, content, known):
        return False
    temporary = path.with_name(f".{path.name[:40]}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(content, encoding="utf-8", newline="\n")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    return True


def golden_files(root: Path) -> Iterator[Path]:
    """The golden files under a folder, in the order of their names."""
    yield from sorted(
        path
        for path in root.rglob("*.toml")
        if not any(part.startswith(".") for part in path.relative_to(root).parts) and path.is_file()
    )


def _says(path: Path, golden: Golden, content: str, known: Mapping[str, Metric]) -> bool:
    with contextlib.suppress(CutraceError):
        return text(read(path, known=known)) == content
    return False


# Reading

_AGAIN = "Take the file from version control, or delete it and run pytest --cutrace --cutrace-update"


class _Reader:
    """What of one file is being read, so that every error can name its line."""

    def __init__(self, path: Path, source: str, known: Mapping[str, Metric]) -> None:
        self.path = path
        self.source = source
        self.known = known

    def golden(self, test: str | None) -> Golden:
        try:
            tables = parsed(self.source)
        except Damaged as error:
            raise CutraceError(f"{self.path}:{error.line}: {error.reason}. {_AGAIN}") from None
        self._format(tables)
        for key in tables:
            if key not in ("format", "test", "common", "gpu"):
                self._fail((key,), f"{key!r} is not known here: a golden file has format, test, [common] and [gpu.KEY]")
        stored = self._text(tables, ("test",))
        if not stored:
            self._fail((), f"there is no line 'test = ...' with the id of the test. {_AGAIN}")
        if test is not None and stored != test:
            self._fail(
                ("test",),
                f"this is the golden file of {stored!r}, but {test!r} was looked for here. If the test was renamed, "
                "delete the file and run pytest --cutrace --cutrace-update",
            )
        gpus = self._table(tables, ("gpu",))
        return Golden(
            stored,
            self._section(self._table(tables, ("common",)), ("common",)),
            {key: self._section(self._table(gpus, ("gpu", key)), ("gpu", key)) for key in gpus},
        )

    def _format(self, tables: dict[str, Any]) -> None:
        number = tables.get("format")
        if type(number) is not int or number < 1:
            self._fail(("format",), f"there is no line 'format = {FORMAT}': this is no golden file. {_AGAIN}")
        if number > FORMAT:
            self._fail(
                ("format",), f"format {number} is newer than {FORMAT}, the newest known here: install a newer cutrace"
            )

    def _section(self, table: dict[str, Any], keys: tuple[str, ...]) -> Section:
        regions = self._table(table, (*keys, "region"))
        return Section(
            self._values({k: v for k, v in table.items() if k not in ("region", "recorded", "unstable")}, keys),
            {
                name: self._values(self._table(regions, (*keys, "region", name)), (*keys, "region", name))
                for name in regions
            },
            self._text(table, (*keys, "recorded")),
            self._unstable(table.get("unstable", []), (*keys, "unstable")),
        )

    def _values(self, table: dict[str, Any], keys: tuple[str, ...]) -> Values:
        return {name: self._value(name, value, (*keys, name)) for name, value in table.items()}

    def _value(self, name: str, value: Any, keys: tuple[str, ...]) -> Stored:
        found = self._metric(name, keys)
        if found.gate is Gate.INFO:
            self._fail(keys, f"{name} is never compared: remove the line")
        if found.gate is Gate.TIME:
            return self._interval(name, value, keys)
        if found.counts or (name not in self.known and isinstance(value, dict)):
            if not isinstance(value, dict):
                self._fail(keys, f"{name} is a table of counts by name, such as {{ softmax = 1 }}")
            return {key: self._count(value[key], (*keys, key)) for key in value}
        return self._count(value, keys, least=-_LARGEST if name in SIGNED else 0)

    def _interval(self, name: str, value: Any, keys: tuple[str, ...]) -> Interval:
        numbers = {"min", "median", "q3", "n"}
        if not isinstance(value, dict) or not numbers <= set(value) <= {*numbers, "samples"}:
            self._fail(
                keys, f"{name} is an interval of ns such as {{ min = 18400, median = 18700, q3 = 18900, n = 10 }}"
            )
        least, median, q3, n = (self._count(value[key], (*keys, key)) for key in ("min", "median", "q3", "n"))
        samples = value.get("samples", [])
        if not isinstance(samples, list):
            self._fail(keys, "samples is a list of ns")
        times = tuple(self._count(sample, (*keys, "samples")) for sample in samples)
        if not least <= median <= q3 or n < 1 or (times and len(times) != n):
            self._fail(keys, f"{name} is no interval: min <= median <= q3, n >= 1, and n samples if there are any")
        return Interval(least, median, q3, n, times)

    def _unstable(self, names: Any, keys: tuple[str, ...]) -> tuple[str, ...]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._fail(keys, "unstable is a list of metrics, such as ['sync_calls', 'forward/kernel_launches']")
        for name in names:
            self._metric(name.rpartition("/")[2], keys)
        return tuple(names)

    def _metric(self, name: str, keys: tuple[str, ...]) -> Metric:
        found = metric(name, self.known)
        if found is None:
            close = difflib.get_close_matches(name, self.known, 1)
            hint = f"did you mean {close[0]}?" if close else "docs/metrics.md lists them."
            self._fail(keys, f"there is no metric {name!r}: {hint} If a newer cutrace wrote it, install that")
        return found

    def _count(self, value: Any, keys: tuple[str, ...], *, least: int = 0) -> int:
        if type(value) is not int:
            self._fail(keys, f"{keys[-1]} is a whole number, not {_kind(value)}")
        if not least <= value <= _LARGEST:
            self._fail(keys, f"{keys[-1]} cannot be {value}: it counts from 0")
        return value

    def _table(self, parent: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        table = parent.get(keys[-1], {})
        if not isinstance(table, dict):
            self._fail(keys, f"{keys[-1]} is a section, not {_kind(table)}")
        return table

    def _text(self, parent: dict[str, Any], keys: tuple[str, ...]) -> str:
        value = parent.get(keys[-1], "")
        if not isinstance(value, str):
            self._fail(keys, f"{keys[-1]} is a text in quotes, not {_kind(value)}")
        return value

    def _fail(self, keys: Sequence[str], message: str) -> NoReturn:
        raise CutraceError(f"{self.path}:{line_of(self.source, keys)}: {message}")


def _kind(value: Any) -> str:
    kinds = {
        bool: "true or false",
        int: "a number",
        float: "a fraction",
        str: "a text",
        list: "a list",
        dict: "a table",
    }
    return kinds.get(type(value), "a date or time")


# Writing


def _section(name: str, section: Section) -> list[str]:
    lines = ["", f"[{name}]"]
    if section.recorded:
        lines.append(f"recorded = {_string(section.recorded)}")
    lines += _values(section.metrics)
    if section.unstable:
        lines.append(f"unstable = [{', '.join(_string(name) for name in section.unstable)}]")
    for region in sorted(section.regions):
        lines += [f"[{name}.region.{_key(region)}]", *_values(section.regions[region])]
    return lines


def _values(values: Values) -> list[str]:
    place = {name: at for at, name in enumerate(METRICS)}
    ordered = sorted(values, key=lambda name: (place.get(name, len(place)), name))
    return [f"{_key(name)} = {_value(values[name])}" for name in ordered]


def _value(value: Stored) -> str:
    if isinstance(value, Interval):
        samples = f", samples = {list(value.samples)}" if value.samples else ""
        return f"{{ min = {value.min}, median = {value.median}, q3 = {value.q3}, n = {value.n}{samples} }}"
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(name)} = {value[name]}" for name in sorted(value))
        return f"{{ {inside} }}" if inside else "{}"
    return str(value)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(value: str) -> str:
    """A TOML string in which nothing steers a terminal or turns the direction of what is read."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escaped(ord(c))) for c in value) + '"'


def _escaped(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise CutraceError(f"a name has the character U+{code:04X}, which no text file can hold: rename the test")
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
