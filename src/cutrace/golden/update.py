"""Writing down what was measured: what a golden file says after an update, and why it says no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from ..analysis.metrics import METRICS, Gate, Metric, Metrics
from ..errors import CutraceError
from . import statistics
from .compare import memory_verdict, ordered, scope, without
from .model import KINDS, Golden, Interval, Section, Stored, Values, Verdict, metric, scoped
from .rules import DEFAULTS, Rules

#: ``missing`` adds what is not written down; ``changed`` also replaces what differs, but a worse time or more memory
#: only ``all`` does.
Mode = Literal["missing", "changed", "all"]
MODES: tuple[Mode, ...] = get_args(Mode)


def measured(
    runs: Sequence[Metrics],
    *,
    test: str,
    gpu: str,
    recorded: str,
    rules: Rules = DEFAULTS,
    known: Mapping[str, Metric] = METRICS,
) -> Golden:
    """A golden file of these runs alone: exact metrics in ``common``, memory and times under the GPU.

    What the runs do not agree on is listed as unstable. Raises :class:`CutraceError` when the numbers cannot be
    trusted.
    """
    problems = dict.fromkeys(problem for run in runs for problem in run.problems)
    if problems or not runs:
        raise CutraceError(f"nothing is recorded of {test}: {'; '.join(problems) or 'it did not run'}")
    common, own = _Draft(), _Draft(recorded)
    for region in dict.fromkeys(("", *(name for run in runs for name in run.regions))):
        scopes = [without(scope(run, region) or {}, rules.ignore) for run in runs]
        common.at(region)
        for name in ordered({name for values in scopes for name in values}, known):
            found = metric(name, known)
            if found is None or found.gate is Gate.INFO:
                continue
            draft = common if found.gate is Gate.EXACT else own
            values = [values.get(name, 0 if name in KINDS else None) for values in scopes]
            value = _agreed(found, values, rules)
            if name in KINDS and value == 0:
                continue
            if value is not None:
                draft.at(region)[name] = value
            elif not any(isinstance(value, float) for value in values):
                draft.unstable.append(scoped(region, name))
    return Golden(test, common.section(), {gpu: own.section()} if gpu else {})


def unsettled(
    runs: Sequence[Metrics], rules: Rules = DEFAULTS, known: Mapping[str, Metric] = METRICS
) -> tuple[str, ...]:
    """The exact and memory metrics on which these runs do not agree, those of regions as ``region/metric``."""
    if len(runs) < 2:
        return ()
    golden = measured(runs, test="-", gpu="-", recorded="", rules=rules, known=known)
    return (*golden.common.unstable, *golden.gpus["-"].unstable)


def updated(
    golden: Golden | None,
    runs: Sequence[Metrics],
    *,
    test: str,
    gpu: str,
    recorded: str,
    mode: Mode,
    rules: Rules = DEFAULTS,
    known: Mapping[str, Metric] = METRICS,
) -> tuple[Golden, tuple[str, ...]]:
    """The golden file after an update with these runs, and sentences on what was not taken over.

    ``recorded`` says on what was measured, see :func:`cutrace.golden.recorded_on`. Metrics that are the same within
    their rules keep their old values, so that the file does not change.
    """
    new = measured(runs, test=test, gpu=gpu, recorded=recorded, rules=rules, known=known)
    return merged(golden, new, mode=mode, rules=rules, known=known)


def merged(
    golden: Golden | None, new: Golden, *, mode: Mode, rules: Rules = DEFAULTS, known: Mapping[str, Metric] = METRICS
) -> tuple[Golden, tuple[str, ...]]:
    """What :func:`updated` does, with measurements that were written down as a golden file of their own."""
    if golden is None:
        return new, tuple(
            f"{name} is not recorded: runs do not agree on it"
            for section in (new.common, *new.gpus.values())
            for name in section.unstable
        )
    if golden.test != new.test:
        raise CutraceError(f"the golden file of {golden.test} cannot be updated with {new.test}")
    merge = _Merge(golden, mode, rules, known)
    for gpu in new.gpus or ("",):
        merge.take(gpu, new.on(gpu))
    return merge.golden(), tuple(merge.notes)


class _Draft:
    """A section that is being written."""

    def __init__(self, recorded: str = "") -> None:
        self.scopes: dict[str, Values] = {"": {}}
        self.recorded = recorded
        self.unstable: list[str] = []

    @classmethod
    def of(cls, section: Section) -> _Draft:
        draft = cls(section.recorded)
        draft.scopes = {region: dict(values) for region, values in section.scopes()}
        draft.unstable = list(section.unstable)
        return draft

    def at(self, region: str) -> Values:
        return self.scopes.setdefault(region, {})

    def get(self, region: str, name: str) -> Stored | None:
        return self.scopes.get(region, {}).get(name)

    def drop(self, region: str, name: str) -> None:
        self.scopes.get(region, {}).pop(name, None)

    def section(self) -> Section:
        regions = {region: dict(values) for region, values in self.scopes.items() if region}
        return Section(dict(self.scopes[""]), regions, self.recorded, tuple(self.unstable))


class _Merge:
    """A golden file that takes over what was measured on one GPU after the other."""

    def __init__(self, golden: Golden, mode: Mode, rules: Rules, known: Mapping[str, Metric]) -> None:
        self.old = golden
        self.mode = mode
        self.rules = rules
        self.known = known
        self.common = _Draft.of(golden.common)
        self.gpus = {gpu: _Draft.of(section) for gpu, section in golden.gpus.items()}
        self.notes: list[str] = []

    def golden(self) -> Golden:
        gpus = {gpu: draft.section() for gpu, draft in self.gpus.items()}
        return Golden(self.old.test, self.common.section(), gpus)

    def take(self, gpu: str, new: Section) -> None:
        # As it is at this moment: another GPU of the same file may have been taken over before.
        golden = self.golden()
        old = golden.on(gpu)
        own = self.gpus.setdefault(gpu, _Draft()) if gpu else _Draft()
        before = own.section()
        for region in dict.fromkeys(("", *old.regions, *new.regions)):
            if region and region not in new.regions:
                self._forget(region)
                continue
            values = old.regions.get(region, {}) if region else old.metrics
            now = new.regions[region] if region else new.metrics
            self.common.at(region)
            for name in ordered({*values, *now, *_listed(new.unstable, region)}, self.known):
                found = metric(name, self.known)
                if found is not None:
                    self._take(gpu, own, region, found, values, now, scoped(region, name) in new.unstable)
        own.scopes = {region: values for region, values in own.scopes.items() if values or not region}
        if own.section() != before or gpu not in self.old.gpus:
            own.recorded = new.recorded

    def _take(
        self, gpu: str, own: _Draft, region: str, found: Metric, old: Values, new: Values, unstable: bool
    ) -> None:
        name = found.name
        full = scoped(region, name)
        before = old.get(name, 0 if name in KINDS and "memcpy_count" in old else None)
        now = new.get(name, 0 if name in KINDS else None)
        if unstable:
            draft = self.common if found.gate is Gate.EXACT or not gpu else own
            if before is None and full not in draft.unstable:
                draft.unstable.append(full)
            kept = "is not recorded" if before is None else "keeps its value"
            self.notes.append(f"{full} {kept}: runs do not agree on it")
        elif now is None:
            if found.gate is Gate.EXACT:
                self._gone(region, name, full)
        elif before is None or self._replaces(found, full, before, now):
            self._put(gpu, own, region, name, now, common=found.gate is Gate.EXACT)

    def _replaces(self, found: Metric, full: str, old: Stored, new: Stored) -> bool:
        """Whether the new value takes the place of the old one; a note says so if it is worth one and may not."""
        if old == new:
            return False
        share = self.rules.tolerance_of(found)
        if found.gate is Gate.EXACT:
            verdict = Verdict.CHANGED
        elif isinstance(old, Interval) and isinstance(new, Interval):
            verdict = statistics.change(old, new, share)
        elif isinstance(old, int) and isinstance(new, int):
            verdict = memory_verdict(old, new, share)
        else:
            return self.mode != "missing"
        if verdict is Verdict.SAME or self.mode == "all":
            return verdict is not Verdict.SAME
        if self.mode == "changed" and verdict in (Verdict.CHANGED, Verdict.BETTER, Verdict.FAST):
            return True
        if found.gate in self.rules.gate and verdict is not Verdict.AMBIGUOUS:
            wanted = "all" if verdict in (Verdict.WORSE, Verdict.SLOW) else "changed"
            self.notes.append(f"{full} keeps its value ({verdict.value}): --cutrace-update={wanted} replaces it")
        return False

    def _put(self, gpu: str, own: _Draft, region: str, name: str, value: Stored, *, common: bool) -> None:
        """Write a value where it belongs: memory and times under their GPU; exact metrics for all GPUs, unless another
        GPU is known, for which the old value holds until it says otherwise."""
        full = scoped(region, name)
        for draft in (self.common, own):
            draft.unstable = [listed for listed in draft.unstable if listed != full]
        if not common:
            if gpu:
                own.at(region)[name] = value
            return
        others = [draft for key, draft in self.gpus.items() if key != gpu]
        implied = 0 if name in KINDS and "memcpy_count" in self.common.at(region) else None
        shared = self.common.get(region, name)
        shared = implied if shared is None else shared
        if shared is None or all(draft.get(region, name) == value for draft in others):
            # It is new, or every GPU that is known agrees.
            self._set(self.common, region, name, value, implied)
            for draft in (own, *others):
                if draft is own or draft.get(region, name) == value:
                    draft.drop(region, name)
        elif gpu:
            self._set(own, region, name, value, shared)
        else:
            self.notes.append(f"{full} keeps its value: say on which GPU it differs")

    @staticmethod
    def _set(draft: _Draft, region: str, name: str, value: Stored, implied: Stored | None) -> None:
        """Write a line, or none for the value that holds without one."""
        if value == implied:
            draft.drop(region, name)
        else:
            draft.at(region)[name] = value

    def _gone(self, region: str, name: str, full: str) -> None:
        if self.mode == "missing":
            self.notes.append(f"{full} keeps its value: it was not measured")
            return
        for draft in (self.common, *self.gpus.values()):
            draft.drop(region, name)

    def _forget(self, region: str) -> None:
        if self.mode == "missing":
            self.notes.append(f"the region {region} keeps its values: it was not entered")
            return
        for draft in (self.common, *self.gpus.values()):
            draft.scopes.pop(region, None)
            draft.unstable = [name for name in draft.unstable if name.rpartition("/")[0] != region]


def _agreed(found: Metric, values: Sequence[Stored | None], rules: Rules) -> Stored | None:
    """What is written down of several runs, or None if they do not agree."""
    if any(value is None for value in values):
        return None
    if found.gate is Gate.TIME:
        return statistics.interval([value for value in values if isinstance(value, int | float)])
    if found.gate is Gate.MEMORY:
        levels = [round(value) for value in values if isinstance(value, int | float)]
        same = memory_verdict(min(levels), max(levels), rules.tolerance_of(found)) is Verdict.SAME
        return max(levels) if same else None
    first = values[0]
    if isinstance(first, float) or any(value != first for value in values):
        return None
    return first


def _listed(unstable: Sequence[str], region: str) -> list[str]:
    """The metrics of a region among those of a list."""
    return [name.rpartition("/")[2] for name in unstable if name.rpartition("/")[0] == region]
