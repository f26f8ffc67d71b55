"""Running a batch: an engine maps the files, and reports reduce their parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from ... import plugins
from ...errors import CutraceError, did_you_mean
from ...loading import Clock, StrPath
from ...outputs import check_output, write_text
from ...patterns import matcher
from ...trace.arrow import pyarrow
from ...trace.quality import counted_loss
from ...units import count_of
from .absent import absences
from .collectives import COLLECTIVES
from .engines import Engine
from .gpu_use import GAPS, OVERLAP, UTILIZATION
from .kernels import KERNELS
from .memory import MEMORY
from .model import BatchOptions, BatchReport, Part, PartIdentity, Result
from .pace import PACE
from .parts import FileOutcome, Mapped, MappedPart, PartFolder, Task
from .remote import identity, stamp
from .runs import OUTLIERS, REGRESSIONS

_REPORTS = (
    KERNELS,
    PACE,
    COLLECTIVES,
    UTILIZATION,
    GAPS,
    OVERLAP,
    MEMORY,
    REGRESSIONS,
    OUTLIERS,
)
#: The name for all reports with complete inputs.
ALL = "all"

_DIED = "each worker that read it died: give it more memory, or use `mode='sequential'` to see why"
_UNREAD = "the batch ended before it was read: run it again"
_EXAMPLES = {
    "name": "`name='step *'` (`cutrace stats --report nvtx_sum FILE` lists the ranges)",
    "baseline": "`baseline='old/rank0.bin'`",
}


@cache
def batch_reports() -> dict[str, BatchReport]:
    """All reports by name: the reports of cutrace and of other packages."""
    added = (
        *plugins.of_extras("cutrace_batch_reports"),
        *plugins.others("cutrace_batch_reports"),
    )
    by_name: dict[str, BatchReport] = {}
    for report in (*_REPORTS, *added):
        by_name.setdefault(report.name, report)
    return by_name


@dataclass(frozen=True)
class BatchRun:
    """The results of a run: the result of each report by name, the sentence of each page about its files, the outcome
    of each file, and sentences about missing data of the files. The page of :data:`ALL` is the index."""

    results: dict[str, Result]
    about: dict[str, str]
    files: list[FileOutcome]
    missing: list[str]


def run(
    name: str,
    sources: Sequence[StrPath],
    folder: Path,
    *,
    engine: Engine | None = None,
    job: str = "",
    options: BatchOptions | None = None,
    clock: Clock = "align",
    progress: Callable[[int, int], None] | None = None,
) -> BatchRun:
    """Map the sources, absolute paths or URLs, into ``folder`` and reduce them, for one report or for :data:`ALL`. Each
    source is read once. ``clock`` is as in :func:`cutrace.load`. ``keep`` also prevents the alignment of ranks of
    different files.

    Raises :class:`CutraceError` if there is no such report, no file can be read, the engine cannot start or loses its
    workers, or the folder cannot be written. The manifest is then written with the outcomes known so far.
    """
    engine = engine or Engine()
    options = options or BatchOptions()
    reports = _chosen(name, options)
    engine.check()
    # Raises an error for a wrong pattern before any file is read.
    matcher(options.name)
    if not sources:
        raise CutraceError("there is nothing to read: name one file or more")
    pyarrow("batch")
    check_output(folder, (), folder=True)  # Only the files of these reports change.
    # A file is read once, under its first name, even if links or relative paths name it again.
    first: dict[str, str] = {}
    for named in map(str, sources):
        first.setdefault(identity(named), named)
    tasks = []
    for number, source in enumerate(first.values()):
        task = Task(
            reports=_reports_of(source, reports, options),
            source=source,
            number=number,
            job=job,
            options=options,
            stamp=stamp(source),
            clock=clock,
        )
        tasks.append(task)
    files = _Files(name, folder, reports, tasks)
    files.map(engine, progress)
    files.leave_duplicates()
    files.write_manifest()
    return files.reduce(options)


def _on_time(parts: Sequence[Part], ahead: Mapping[PartIdentity, int]) -> list[Part]:
    """The parts with the known errors of their clocks."""
    return [replace(part, ahead=ahead.get(part.identity, 0)) for part in parts]


class _Files:
    """The files of a batch, one for each of ``tasks``: their outcomes, and their parts by report."""

    def __init__(
        self,
        name: str,
        folder: Path,
        reports: Sequence[BatchReport],
        tasks: Sequence[Task],
    ) -> None:
        self._name = name
        self._folder = folder
        self._reports = reports
        self._tasks = tasks
        self._outcomes: dict[str, FileOutcome] = {}
        self._parts: dict[str, PartFolder] = {}
        for report in reports:
            parts = PartFolder(folder / report.name)
            parts.keep(set(self._sources(report)))
            self._parts[report.name] = parts

    def _sources(self, report: BatchReport) -> list[str]:
        return [task.source for task in self._tasks if report in task.reports]

    def map(self, engine: Engine, progress: Callable[[int, int], None] | None) -> None:
        """Map the files that have no parts. The manifest is written even if this ends early."""
        left = []
        for task in self._tasks:
            outcome = self._mapped_before(task)
            if outcome is None:
                left.append(task)
            else:
                self._outcomes[task.source] = replace(outcome, state="skipped")
        try:
            for task, mapped, tries in engine.mapped(left):
                self._add(task, mapped, tries > 1)
                if progress:
                    progress(len(self._outcomes), len(self._tasks))
        except (CutraceError, KeyboardInterrupt, SystemExit):
            # The command line raises SystemExit for SIGTERM.
            with suppress(CutraceError):
                self.write_manifest()
            raise

    def _mapped_before(self, task: Task) -> FileOutcome | None:
        """The outcome of a file that was already mapped for all of its reports, else None."""
        outcome = None
        for report in task.reports:
            outcome = self._parts[report.name].done(task.identity(report))
            if outcome is None:
                break
        return outcome

    def _add(self, task: Task, mapped: Mapped | None, retried: bool) -> None:
        """Replace the parts of a file; ``mapped`` is None if its workers died."""
        outcome = _bad(task.source, "failed", _DIED)
        parts: Sequence[MappedPart] = ()
        if mapped:
            outcome = mapped.outcome
            parts = mapped.parts
        self._outcomes[task.source] = replace(outcome, retried=retried)
        for report in task.reports:
            own = [part for part in parts if part.report == report.name]
            self._parts[report.name].add(task.source, own)

    def leave_duplicates(self) -> None:
        """Remove the parts of files with the recording of another file."""
        # One of the reports has the parts of all sources.
        widest = max(self._parts.values(), key=len)
        repeated = widest.duplicates([task.source for task in self._tasks])
        for source, other in repeated.items():
            note = f"it holds the same recording as {other}, or a part of it, and is not counted: leave it out"
            self._outcomes[source] = _bad(source, "duplicate", note)
        for report in self._reports:
            own = set(self._sources(report))
            self._parts[report.name].keep(own - repeated.keys())

    def write_manifest(self) -> None:
        files = []
        for task in self._tasks:
            unread = _bad(task.source, "unread", _UNREAD)
            outcome = self._outcomes.get(task.source, unread)
            files.append(asdict(outcome))
        manifest = {
            "kind": "cutrace batch manifest",
            "format": 1,
            "report": self._name,
            "reports": list(self._parts),
            "files": files,
        }
        path = self._folder / f"{self._name}.manifest.json"
        write_text(path, json.dumps(manifest, indent=1) + "\n")

    def reduce(self, options: BatchOptions) -> BatchRun:
        results: dict[str, Result] = {}
        about = {}
        left_out = []
        ahead: dict[PartIdentity, int] = {}
        every: list[Part] = []
        # The report of collectives is reduced first, because its clock errors correct the other reports.
        for report in sorted(self._reports, key=lambda one: one is not COLLECTIVES):
            files = [self._outcomes[source] for source in self._sources(report)]
            parts = self._parts[report.name].parts()
            _check_usable(parts, files)
            reason = _lacks_set(report, parts, files, options)
            if reason and self._name == ALL:
                left_out.append(f"{report.name} is left out: {reason}")
                continue
            if reason:
                raise CutraceError(f"{report.name} compares two sets of runs: {reason}")
            result = report.reduce(_on_time(parts, ahead), options)
            ahead |= result.ahead
            lacking = [*missing(files), *absences(_on_time(parts, ahead))]
            results[report.name] = result
            about[report.name] = _about(files, lacking, parts)
            every = max(every, parts, key=len)
        names = [report.name for report in self._reports if report.name in results]
        in_order = {name: results[name] for name in names}
        done = [self._outcomes[task.source] for task in self._tasks]
        lacking = [*left_out, *missing(done), *absences(_on_time(every, ahead))]
        about[ALL] = _about(done, lacking, every)
        return BatchRun(in_order, about, done, lacking)


def _bad(source: str, state: str, note: str) -> FileOutcome:
    return FileOutcome(source, state, (note,), bad=True)


def _chosen(name: str, options: BatchOptions) -> list[BatchReport]:
    """The report with this name, or for :data:`ALL` the reports with complete inputs."""
    known = batch_reports()
    if name == ALL:
        given = {option for option, value in vars(options).items() if value}
        return [report for report in known.values() if given.issuperset(report.needs)]
    report = known.get(name)
    if report is None:
        names = [*known, ALL]
        hint = did_you_mean(name, names, f"use one of {', '.join(names)}")
        raise CutraceError(f"there is no batch report {name!r}: {hint}")
    _check_options(report, options, known)
    return [report]


def _reports_of(
    source: str,
    reports: Sequence[BatchReport],
    options: BatchOptions,
) -> tuple[BatchReport, ...]:
    """The reports that count a source. A source of the baseline counts only for reports that compare with it."""
    if source not in options.baseline:
        return tuple(reports)
    return tuple(report for report in reports if "baseline" in report.needs)


def _check_usable(parts: Sequence[Part], files: Sequence[FileOutcome]) -> None:
    """Raise :class:`CutraceError` when a report has no parts."""
    if not parts:
        raise CutraceError(_none_counts(files, "files"))


def _lacks_set(
    report: BatchReport,
    parts: Sequence[Part],
    files: Sequence[FileOutcome],
    options: BatchOptions,
) -> str:
    """The reason why a report cannot compare the files with the baseline. "" if it can, or does not compare them."""
    if "baseline" not in report.needs:
        return ""
    counted = {part.source for part in parts}
    baseline = []
    others = []
    for file in files:
        if file.source in options.baseline:
            baseline.append(file)
        else:
            others.append(file)
    for own, what in ((baseline, "files of `baseline=`"), (others, "other files")):
        if counted.isdisjoint(file.source for file in own):
            return _none_counts(own, what)
    return ""


def _none_counts(files: Sequence[FileOutcome], what: str) -> str:
    """The sentence about files of which none counts, with the reason of the first one."""
    if not files:
        return "all files are in `baseline=`: name others to compare with them"
    source = files[0].source
    notes = "; ".join(files[0].notes)
    if source not in notes:
        notes = f"{source}: {notes}"
    return f"none of the {what} could be used: {notes}"


def _check_options(
    report: BatchReport,
    options: BatchOptions,
    known: dict[str, BatchReport],
) -> None:
    """Raise :class:`CutraceError` when a report lacks an option that it needs, or has one that it does not use."""
    for option, value in vars(options).items():
        needed = option in report.needs
        if needed and not value:
            raise CutraceError(
                f"{report.name} needs `{option}=`: for example {_EXAMPLES[option]}"
            )
        if value and not needed:
            users = ", ".join(r.name for r in known.values() if option in r.needs)
            raise CutraceError(
                f"{report.name} does not use `{option}=`: leave it out, or ask for {users}"
            )


def _about(
    files: Sequence[FileOutcome],
    lacking: Sequence[str],
    parts: Sequence[Part],
) -> str:
    """The sentence of a page about its files and their missing data."""
    if lacking:
        return "; ".join(lacking)
    whole = count_of(len(files), "file")
    untold = {part.source for part in parts if not part.told}
    if untold and len(files) > 1:
        return (
            f"{whole}. No records are known to be missing. The ranks in {len(untold):,} of {whole} are not known: "
            "ranks may be absent, or have started late or ended early."
        )
    return f"{whole}. Nothing is known to be missing."


def missing(files: Sequence[FileOutcome]) -> list[str]:
    """Sentences about missing data in all files together. Empty if no data are known to be missing."""
    bad = 0
    repeated = 0
    noted = []
    counts = Counter[str]()
    holders = Counter[str]()
    for file in files:
        if file.state == "duplicate":
            repeated += 1
            continue
        counts.update(dict(file.lost))
        holders.update(meaning for meaning, _ in file.lost)
        if file.bad:
            bad += 1
        elif file.notes and not file.lost:
            noted.append(file)
    whole = count_of(len(files), "file")
    sentences = []
    if bad:
        sentences.append(
            f"{bad:,} of {whole}: damaged, not read, or records are missing"
        )
    if repeated:
        sentences.append(
            f"{repeated:,} of {whole}: not counted, because they repeat the recording of another file"
        )
    for meaning, count in counts.most_common():
        lost = counted_loss(count, meaning)
        sentences.append(f"{lost}, in {holders[meaning]:,} of {whole}")
    if noted:
        sentences.append(
            f"{len(noted):,} of {whole}: with notes, for example: {noted[0].notes[0]}"
        )
    return sentences
