"""What is compared and how strictly: the words of options, markers and ini files, understood and checked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..analysis.metrics import METRICS, Gate, Metric
from ..errors import CutraceError
from ..units import parse_duration, parse_size

#: Memory fails above both: this share more than the golden value, and this many bytes more.
MEMORY_TOLERANCE = 0.02
MEMORY_FLOOR = 1 << 20
#: How much slower than the golden interval a time may be.
TIME_TOLERANCE = 0.05

_GATES = {gate.name.lower(): gate for gate in (Gate.EXACT, Gate.MEMORY, Gate.TIME)}
_SHARE = re.compile(r"([0-9]*\.?[0-9]+)\s*(%?)", re.ASCII)


@dataclass(frozen=True)
class Rules:
    """Which classes of metrics fail, tolerances by metric (shares: 0.05 is 5 %), patterns of kernels that do not count,
    and whether improvements and missing golden values fail too."""

    gate: frozenset[Gate] = frozenset({Gate.EXACT, Gate.MEMORY})
    tolerance: Mapping[str, float] = field(default_factory=dict)
    ignore: tuple[str, ...] = ()
    strict: bool = False

    def tolerance_of(self, metric: Metric) -> float:
        """The share by which a metric may exceed its golden value: the given one, or that of its class."""
        default = {Gate.MEMORY: MEMORY_TOLERANCE, Gate.TIME: TIME_TOLERANCE}.get(metric.gate, 0.0)
        return self.tolerance.get(metric.name, default)

    def words(self, metric: Metric) -> str:
        """The rule of a metric in a table: ``exact``, ``+2 %``, ``5 %``."""
        share = self.tolerance_of(metric)
        if metric.gate is Gate.EXACT and not share:
            return "exact"
        return f"{'' if metric.gate is Gate.TIME else '+'}{share * 100:.4g} %"


#: What holds where nothing else is said.
DEFAULTS = Rules()


def parse_gate(words: str | Iterable[str]) -> frozenset[Gate]:
    """The classes of ``"exact,memory"`` or ``["exact", "memory"]``; ``"none"`` is no class."""
    listed = words.split(",") if isinstance(words, str) else list(words)
    names = [str(word).strip().lower() for word in listed]
    for name in names:
        if name not in _GATES and name != "none":
            raise CutraceError(f"{name!r} cannot be gated: write some of {', '.join(_GATES)}, or none")
    if "none" in names and len(names) > 1:
        raise CutraceError("'none' stands alone: write it, or the classes that are gated")
    return frozenset(_GATES[name] for name in names if name != "none")


def parse_tolerance(
    given: str | Iterable[str] | Mapping[str, object], known: Mapping[str, Metric] = METRICS
) -> dict[str, float]:
    """Tolerances of ``"kernel_time=10% peak_memory=0.05"``, of such texts, or of ``{"kernel_time": 0.1}``: shares by
    the full names of metrics. Several in one text are divided by commas or spaces."""
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    else:
        texts = [given] if isinstance(given, str) else list(given)
        pairs = []
        for word in (word for text in texts for word in _words(text)):
            name, equals, value = word.partition("=")
            if not equals:
                raise CutraceError(f"{word!r} is no tolerance: write a metric and a share, such as kernel_time=5%")
            pairs.append((name, value))
    return {found.name: _share(found, value) for name, value in pairs for found in [metric_named(name, known)]}


def parse_limits(given: Mapping[str, object], known: Mapping[str, Metric] = METRICS) -> dict[str, int | float]:
    """The budgets of ``gpu_limit(kernel_launches=3, peak_memory="64 MiB", kernel_time="20us")`` by the full names of
    metrics: counts, bytes, ns."""
    return {found.name: _limit(found, value) for name, value in given.items() for found in [metric_named(name, known)]}


def metric_named(name: str, known: Mapping[str, Metric] = METRICS) -> Metric:
    """The metric of this name; its unit (``_ns``, ``_bytes``) may be left away: ``peak_memory``."""
    wanted = name.strip()
    for full in (wanted, f"{wanted}_ns", f"{wanted}_bytes"):
        if full in known:
            if known[full].counts:
                raise CutraceError(
                    f"{name} is a list by name: it has no tolerance and no limit. Take its total instead"
                )
            return known[full]
    close = difflib.get_close_matches(wanted, known, 3)
    hint = f"did you mean {' or '.join(close)}?" if close else "docs/metrics.md lists them."
    raise CutraceError(f"there is no metric {name!r}: {hint}")


def _words(text: str) -> list[str]:
    """``metric=share`` by ``metric=share``, however they are spaced."""
    return [word for word in re.split(r"[,\s]+", re.sub(r"\s*=\s*|\s+(?=%)", lambda m: m[0].strip(), text)) if word]


def _share(metric: Metric, value: object) -> float:
    if metric.gate is Gate.INFO:
        raise CutraceError(f"{metric.name} is never compared: it has no tolerance")
    share = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        share = float(value)
    elif isinstance(value, str) and (match := _SHARE.fullmatch(value.strip())):
        share = float(match[1]) / (100 if match[2] else 1)
    if not 0 <= share < float("inf"):
        raise CutraceError(f"{value!r} is no tolerance of {metric.name}: write a share such as 0.05, or '5%'")
    return share


def _limit(metric: Metric, value: object) -> int | float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return value
    if isinstance(value, str) and metric.name.endswith(("_bytes", "_ns")):
        return (parse_size if metric.name.endswith("_bytes") else parse_duration)(value)
    kind = {"_bytes": "bytes, or a text such as '64 MiB'", "_ns": "ns, or a text such as '20us'"}
    what = next((words for ending, words in kind.items() if metric.name.endswith(ending)), "times, from 0")
    raise CutraceError(f"{value!r} is no limit of {metric.name}: write a number of {what}")
