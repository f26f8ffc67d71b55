"""Golden files on disk: one TOML file a test module, written by a machine and read by people.

A test is a table and a metric is a line. What all environments share is written once; ``[TEST.on.ENVIRONMENT]`` has the
rest. Work that did not happen has no line, nor has a total of what is listed by name.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ..analysis.definitions import METRICS, Metric, MetricClass
from ..errors import CutraceError
from ..outputs import write_text
from .lines import Damaged, line_of, parsed
from .model import (
    DIVIDED,
    SIGNED,
    Count,
    Entry,
    Interval,
    Module,
    Observed,
    Parts,
    Span,
    Stored,
    Values,
    metric,
    ordered,
    part_of,
    total_of,
)

#: The format of golden files that is written, and the only one that is read.
FORMAT = 2
HEADER = "# Written by `pytest --cutrace-update`. Review it like code."
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_LARGEST = 2**63 - 1
#: Characters of names from which counts by name take a line each.
_WIDE = 90
_TOP = ("format", "module", "seen")
#: The keys that are no metrics, in the table of a test, of an environment, and of a region.
_OF_TEST = ("seen", "unconfirmed", "against", "unstable", "region", "on")
_OF_ENVIRONMENT = ("unstable", "region")
_OF_REGION = ("unstable",)
#: The breakdown of a total by name, under which golden files list it: ``kernels`` of ``kernel_launches``.
_LISTED = {found.total: found.name for found in METRICS.values() if found.counts and found.total in DIVIDED}
_AGAIN = "Take the file from version control, or delete it and run pytest --cutrace-update"
_KINDS = {bool: "true or false", int: "a number", float: "a fraction", str: "a text", list: "a list", dict: "a table"}


def read(path: Path, *, module: str | None = None) -> Module:
    """The golden file at ``path``, which has to be that of the test file ``module`` if one is given.

    Raises :class:`CutraceError` with file and line for whatever is wrong with it.
    """
    try:
        # A pipe would make the reader wait for ever.
        data = path.read_bytes() if stat.S_ISREG(path.stat().st_mode) else None
    except OSError as error:
        raise _unreadable(path, error) from None
    if data is None:
        raise CutraceError(f"cannot read the golden file {path}: it is not a file")
    try:
        source = data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CutraceError(f"{path}:{line}: this is not UTF-8 text. {_AGAIN}") from None
    return _Reader(path, source).module(module)


def existing(path: Path, module: str) -> Module | None:
    """The golden file of the test file ``module``, None where there is none. Raises :class:`CutraceError` where it
    cannot be read, as in a folder that may not be read."""
    try:
        return read(path, module=module) if path.exists() else None
    except OSError as error:
        raise _unreadable(path, error) from None


def text(module: Module) -> str:
    """The golden file as text. Equal ones have equal texts, and reading a text and writing it again changes nothing."""
    seen = _common_seen(module)
    lines = [HEADER, f"format = {FORMAT}", f"module = {_string(module.path)}", f"seen = {_strings(seen)}"]
    for test, entry in module.tests.items():
        lines += ["", *_entry(_key(_key_of(test)), entry, seen, module.against.get(test, ""))]
    return "\n".join(lines) + "\n"


def write(module: Module, path: Path, before: Module | None = None) -> bool:
    """Write a golden file in one step, its folders too, and tell whether it changed.

    ``before`` is what the caller has read there. A file that says the same already is left as it is, with the comments
    that people may have added.
    """
    content = text(module)
    if before is not None and text(before) == content:
        return False
    write_text(path, content)
    return True


def golden_files(root: Path) -> Iterator[Path]:
    """The golden files under a folder, in the order of their names."""
    yield from sorted(
        path
        for path in root.rglob("*.toml")
        if not any(part.startswith(".") for part in path.relative_to(root).parts) and path.is_file()
    )


def line_of_test(path: Path, test: str) -> int:
    """The line, from 1, on which a golden file speaks of a test; 1 if it does not."""
    try:
        return line_of(path.read_text(encoding="utf-8"), (_key_of(test),))
    except (OSError, UnicodeDecodeError):
        return 1


def _unreadable(path: Path, error: OSError) -> CutraceError:
    return CutraceError(f"cannot read the golden file {path}: {error.strerror}")


# Reading


class _Reader:
    """Reads one file, so that every error can name its line."""

    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source

    def module(self, wanted: str | None) -> Module:
        tables = self._tables()
        self._format(tables)
        path = self._text(tables, ("module",))
        if "module" not in tables:
            self._fail((), f"there is no line 'module = ...' with the path of the test file. {_AGAIN}")
        if wanted is not None and path != wanted:
            self._fail(
                ("module",),
                f"this is the golden file of {path!r}, but {wanted!r} was looked for here. If the test file was "
                "renamed, correct the line, or delete the file and run pytest --cutrace-update",
            )
        seen = self._names(tables, ("seen",))
        module = Module(path)
        for key in tables:
            if key not in _TOP:
                table = self._table(tables, (key,))
                test = key.removeprefix("::") if key.startswith("::") else key
                module.tests[test] = self._entry(table, (key,), seen)
                if stamp := self._text(table, (key, "against")):
                    module.against[test] = stamp
        return module

    def _tables(self) -> dict[str, Any]:
        for number, line in enumerate(self.source.split("\n"), 1):
            if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                raise CutraceError(
                    f"{self.path}:{number}: there are marks of a merge conflict. Choose a side for each test between "
                    "the marks, remove the marks, and run pytest --cutrace"
                )
        try:
            return parsed(self.source)
        except Damaged as error:
            raise CutraceError(f"{self.path}:{error.line}: {error.reason}. {_AGAIN}") from None

    def _format(self, tables: dict[str, Any]) -> None:
        number = tables.get("format")
        if type(number) is not int or number < 1:
            self._fail(("format",), f"there is no line 'format = {FORMAT}': this is no golden file. {_AGAIN}")
        if number < FORMAT:
            advice = "is read no more: delete the folder of golden files and run pytest --cutrace-update"
            self._fail(("format",), f"format {number} {advice}")
        if number > FORMAT:
            advice = f"is newer than {FORMAT}, the newest known here: install a newer cutrace"
            self._fail(("format",), f"format {number} {advice}")

    def _entry(self, table: dict[str, Any], keys: tuple[str, ...], seen: Sequence[str]) -> Entry:
        environments = self._names(table, (*keys, "seen")) or seen
        if not environments:
            self._fail(keys, "no line 'seen = [...]' says in which environments the values were seen")
        unconfirmed = self._names(table, (*keys, "unconfirmed"))
        special = self._table(table, (*keys, "on"))
        for key, names in (("unconfirmed", unconfirmed), ("on", special)):
            for name in names:
                if name not in environments:
                    self._fail((*keys, key, name), f"{name!r} is not among the environments in 'seen'")
        shared = self._observed(table, keys, _OF_TEST)
        entry = {}
        for name in environments:
            place = (*keys, "on", name)
            own = self._observed(self._table(special, place), place, _OF_ENVIRONMENT) if name in special else Observed()
            entry[name] = Observed(
                _united(shared.values, own.values), _united(shared.unstable, own.unstable), name not in unconfirmed
            )
        return entry

    def _observed(self, table: dict[str, Any], keys: tuple[str, ...], special: Sequence[str]) -> Observed:
        """What one table says: values by region, and what is unstable of them."""
        observed = Observed({"": self._values(table, keys, special)})
        scopes = {"": (table, keys)}
        regions = self._table(table, (*keys, "region"))
        for name in regions:
            scopes[name] = (self._table(regions, (*keys, "region", name)), (*keys, "region", name))
            observed.values[name] = self._values(*scopes[name], _OF_REGION)
        for name, (values, place) in scopes.items():
            if unstable := self._values(self._table(values, (*place, "unstable")), (*place, "unstable")):
                observed.unstable[name] = unstable
        return observed

    def _values(self, table: dict[str, Any], keys: tuple[str, ...], special: Sequence[str] = ()) -> Values:
        values: Values = {}
        for name, value in table.items():
            if name in special:
                continue
            found = self._metric(name, (*keys, name))
            total = total_of(found)
            if total in values:
                self._fail((*keys, name), f"{name} says again what another line of this table says: keep one of them")
            values[total] = self._value(found, value, (*keys, name))
        return values

    def _value(self, found: Metric, value: Any, keys: tuple[str, ...]) -> Stored:
        if found.kind is MetricClass.INFO:
            self._fail(keys, f"{found.name} is never compared: remove the line")
        if found.total and not found.counts:
            self._fail(keys, f"a part has no line of its own: write {found.total} = {{ {part_of(found)} = 1 }}")
        if found.kind is MetricClass.TIME:
            return self._interval(found.name, value, keys)
        if found.kind is MetricClass.STATE:
            return self._span(found.name, value, keys)
        if isinstance(value, dict) and (found.counts or found.name in DIVIDED):
            return {key: self._counts(value[key], (*keys, key)) for key in value}
        if found.counts:
            self._fail(keys, f"{found.name} is a table of counts by name, such as {{ softmax = 1 }}")
        return self._counts(value, keys, least=-_LARGEST if found.kind is MetricClass.COUNTER else 0)

    def _counts(self, value: Any, keys: tuple[str, ...], *, least: int = 0) -> Count:
        if not isinstance(value, list):
            return self._count(value, keys, least=least)
        found = tuple(sorted({self._count(one, keys, least=least) for one in value}))
        if len(found) < 2:
            self._fail(keys, f"{keys[-1]} lists alternatives, of which there are two or more: [1, 2]")
        return found

    def _span(self, name: str, value: Any, keys: tuple[str, ...]) -> Span:
        least = -_LARGEST if name in SIGNED else 0
        if isinstance(value, dict) and set(value) == {"min", "max"}:
            low, high = (self._count(value[key], (*keys, key), least=least) for key in ("min", "max"))
            if low <= high:
                return Span(low, high)
        elif type(value) is int:
            return Span(self._count(value, keys, least=least), value)
        self._fail(keys, f"{name} is a range of what runs have shown, such as {{ min = 0, max = 4096 }}")

    def _interval(self, name: str, value: Any, keys: tuple[str, ...]) -> Interval:
        numbers = {"min", "median", "q3", "n"}
        if not isinstance(value, dict) or not numbers <= set(value) <= {*numbers, "samples"}:
            example = "{ min = 18400, median = 18700, q3 = 18900, n = 10 }"
            self._fail(keys, f"{name} is an interval of ns such as {example}")
        least, median, q3, n = (self._count(value[key], (*keys, key)) for key in ("min", "median", "q3", "n"))
        samples = value.get("samples", [])
        if not isinstance(samples, list):
            self._fail(keys, "samples is a list of ns")
        times = tuple(self._count(sample, (*keys, "samples")) for sample in samples)
        if not least <= median <= q3 or n < 1 or (times and len(times) != n):
            self._fail(keys, f"{name} is no interval: min <= median <= q3, n >= 1, and n samples if there are any")
        return Interval(least, median, q3, n, times)

    def _metric(self, name: str, keys: tuple[str, ...]) -> Metric:
        found = metric(name)
        if found is None:
            close = difflib.get_close_matches(name, (*METRICS, *_OF_TEST), 1)
            hint = f"did you mean {close[0]}?" if close else "docs/metrics.md lists them."
            self._fail(keys, f"there is no metric {name!r}: {hint} If a newer cutrace wrote it, install that")
        return found

    def _count(self, value: Any, keys: tuple[str, ...], *, least: int = 0) -> int:
        if type(value) is not int:
            self._fail(keys, f"{keys[-1]} is a whole number, not {_kind(value)}")
        if not least <= value <= _LARGEST:
            self._fail(keys, f"{keys[-1]} cannot be {value}: it is a number from {least} to {_LARGEST}")
        return value

    def _names(self, parent: dict[str, Any], keys: tuple[str, ...]) -> list[str]:
        value = parent.get(keys[-1], [])
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            self._fail(keys, f"{keys[-1]} is a list of environments, such as ['sm_90']")
        return value

    def _table(self, parent: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
        table = parent.get(keys[-1], {})
        if not isinstance(table, dict):
            self._fail(keys, f"{keys[-1]} is a table, not {_kind(table)}")
        return table

    def _text(self, parent: dict[str, Any], keys: tuple[str, ...]) -> str:
        value = parent.get(keys[-1], "")
        if not isinstance(value, str):
            self._fail(keys, f"{keys[-1]} is a text in quotes, not {_kind(value)}")
        return value

    def _fail(self, keys: Sequence[str], message: str) -> NoReturn:
        raise CutraceError(f"{self.path}:{line_of(self.source, keys)}: {message}")


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a date or time")


def _united(base: dict[str, Values], own: dict[str, Values]) -> dict[str, Values]:
    """What an environment shares with all, and what it has of its own: counts by name are joined, of other values its
    own wins."""
    regions = {}
    for region in {**base, **own}:
        values = dict(base.get(region, {}))
        for name, value in own.get(region, {}).items():
            shared = values.get(name)
            values[name] = {**shared, **value} if isinstance(shared, dict) and isinstance(value, dict) else value
        regions[region] = values
    return regions


# Writing


def _common_seen(module: Module) -> tuple[str, ...]:
    """The environments that most tests have, which the file names once."""
    lists = Counter(tuple(sorted(entry)) for entry in module.tests.values())
    return max(lists, key=lambda names: (lists[names], len(names), names), default=())


def _entry(name: str, entry: Entry, seen: Sequence[str], against: str) -> list[str]:
    environments = sorted(entry)
    lines = [f"[{name}]"]
    if tuple(environments) != tuple(seen):
        lines.append(f"seen = {_strings(environments)}")
    if against:
        lines.append(f"against = {_string(against)}")
    if unconfirmed := [one for one in environments if not entry[one].confirmed]:
        lines.append(f"unconfirmed = {_strings(unconfirmed)}")
    values, own_values = _divided([entry[one].values for one in environments])
    unstable, own_unstable = _divided([entry[one].unstable for one in environments])
    lines += _part(name, values, unstable)
    for at, one in enumerate(environments):
        if own_values[at] or own_unstable[at]:
            table = f"{name}.on.{_key(one)}"
            part = _part(table, own_values[at], own_unstable[at])
            # A table with regions alone needs no line of its own.
            lines += [f"[{table}]"] * (not part[:1] or not part[0].startswith("[")) + part
    return lines


def _divided(scopes: Sequence[dict[str, Values]]) -> tuple[dict[str, Values], list[dict[str, Values]]]:
    """Values of all environments by region as what they share and what each has of its own."""
    shared: dict[str, Values] = {}
    own: list[dict[str, Values]] = [{} for _ in scopes]
    for region in dict.fromkeys(region for values in scopes for region in values):
        here = [values.get(region, {}) for values in scopes]
        if everywhere := all(region in values for values in scopes):
            shared[region] = {}
        for at, values in enumerate(scopes):
            if region in values and not everywhere:
                own[at][region] = {}
        for name in dict.fromkeys(name for values in here for name in values):
            found = [values.get(name) for values in here]
            first = found[0]
            if everywhere and first is not None and all(value == first for value in found):
                shared[region][name] = first
                continue
            if common := _common(found) if everywhere else {}:
                shared[region][name] = common
            for at, value in enumerate(found):
                if isinstance(value, dict):
                    value = {key: count for key, count in value.items() if key not in common}
                if value is not None and value != {}:
                    own[at].setdefault(region, {})[name] = value
    return shared, own


def _common(found: Sequence[Stored | None]) -> Parts:
    """The counts by name that all of these values have."""
    parts = [value for value in found if isinstance(value, dict)]
    if len(parts) < len(found):
        return {}
    return {key: count for key, count in parts[0].items() if all(other.get(key) == count for other in parts)}


def _part(name: str, values: dict[str, Values], unstable: dict[str, Values]) -> list[str]:
    lines = [*_values(values.get("", {})), *_values(unstable.get("", {}), "unstable.")]
    for region in sorted({*values, *unstable} - {""}):
        lines.append(f"[{name}.region.{_key(region)}]")
        lines += [*_values(values.get(region, {})), *_values(unstable.get(region, {}), "unstable.")]
    return lines


def _values(values: Values, prefix: str = "") -> list[str]:
    lines = []
    for total in (found.name for found in ordered(values)):
        value = values[total]
        if not isinstance(value, dict):
            lines.append(f"{prefix}{_key(total)} = {_value(value)}")
            continue
        name = prefix + _key(_LISTED.get(total, total))
        if sum(len(key) + 4 for key in value) > _WIDE:
            lines += [f"{name}.{_key(key)} = {_value(value[key])}" for key in sorted(value)]
        else:
            lines.append(f"{name} = {_value(value)}")
    return lines


def _value(value: Stored) -> str:
    if isinstance(value, Interval):
        samples = f", samples = {list(value.samples)}" if value.samples else ""
        return f"{{ min = {value.min}, median = {value.median}, q3 = {value.q3}, n = {value.n}{samples} }}"
    if isinstance(value, Span):
        return str(value.min) if value.min == value.max else f"{{ min = {value.min}, max = {value.max} }}"
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(name)} = {_value(value[name])}" for name in sorted(value))
        return f"{{ {inside} }}" if inside else "{}"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def _key_of(test: str) -> str:
    """The key of a test's table: a test that is called as a line of the file gets colons before its name."""
    return f"::{test}" if test in _TOP or test.startswith("::") else test


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _strings(names: Sequence[str]) -> str:
    return f"[{', '.join(map(_string, names))}]"


def _string(value: str) -> str:
    """A TOML string in which nothing steers a terminal or turns the direction of what is read."""
    return '"' + "".join(_ESCAPES.get(c) or (c if c.isprintable() else _escaped(ord(c))) for c in value) + '"'


def _escaped(code: int) -> str:
    if 0xD800 <= code <= 0xDFFF:
        raise CutraceError(f"a name has the character U+{code:04X}, which no text file can hold: rename the test")
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"
