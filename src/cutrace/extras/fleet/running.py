"""Running a batch: mapping files by an engine, and reducing their parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from ... import plugins
from ...errors import CutraceError, did_you_mean
from ...loading import Clock, StrPath
from ...outputs import check_output, write_text
from ...patterns import matcher
from ...trace.arrow import pyarrow
from ...units import count_of
from .absent import absences
from .collectives import COLLECTIVES
from .engines import Engine
from .gpu_use import GAPS, OVERLAP, UTILIZATION
from .kernels import KERNELS
from .memory import MEMORY
from .model import BatchOptions, BatchReport, Part, PartIdentity, Result
from .pace import PACE
from .parts import FileQuality, Mapped, PartFolder, Task
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
#: The name of all reports that have what they need.
ALL = "all"

_DIED = "each worker that read it died: give it more memory, or use --mode sequential to see why"
_UNREAD = "the batch ended before it was read: run it again"
_EXAMPLES = {"name": "--name 'step *'", "baseline": "--baseline old/rank0.bin"}


@cache
def batch_reports() -> dict[str, BatchReport]:
    """All reports by name: cutrace's own and those of other packages."""
    added = (
        *plugins.of_extras("cutrace_batch_reports"),
        *plugins.others("cutrace_batch_reports"),
    )
    by_name: dict[str, BatchReport] = {}
    for report in (*_REPORTS, *added):
        by_name.setdefault(report.name, report)
    return by_name


@dataclass(frozen=True)
class FileOutcome:
    """What became of a file. ``state`` is ``done``, ``skipped`` (its parts were there), ``incomplete`` (records are
    missing), ``duplicate`` (an earlier file has its recording; it is not counted), ``damaged`` (a part of it, or all,
    could not be read), ``failed`` (each of its workers died) or ``unread`` (the batch ended before). ``notes`` are
    sentences, also of a file that lacks nothing. ``retried`` if a worker died. ``lost`` counts missing records by
    meaning."""

    source: str
    state: str
    notes: Sequence[str] = ()
    retried: bool = False
    bad: bool = False
    lost: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class BatchRun:
    """What a run has made: the result and the number of files of each report by its name, what became of each file, and
    sentences about what all files lack."""

    results: dict[str, Result]
    counts: dict[str, int]
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
    """Map the sources, absolute paths or URLs, into ``folder`` and reduce them, for one report or for :data:`ALL`.
    Each source is read once. ``clock`` is as in :func:`cutrace.load`, and with ``keep`` ranks of different files are
    not aligned either.

    Raises :class:`CutraceError` if there is no such report, nothing can be read, the engine cannot work or loses its
    workers, or the folder cannot be written. The manifest is written as far as the files are known.
    """
    engine = engine or Engine()
    options = options or BatchOptions()
    reports = _chosen(name, options)
    engine.check()
    # Raises an error for a wrong pattern, which is no fault of the files.
    matcher(options.name)
    if not sources:
        raise CutraceError("there is nothing to read: name one file or more")
    pyarrow("batch")
    check_output(folder, (), folder=True)  # Only its files of these reports change.
    # A file counts once, by its first name: links and relative paths may name it again.
    first: dict[str, str] = {}
    for named in map(str, sources):
        first.setdefault(identity(named), named)
    paths = list(first.values())
    tasks = []
    for number, source in enumerate(paths):
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
    folders: dict[str, PartFolder] = {}
    sources_of: dict[str, list[str]] = {}
    for report in reports:
        folders[report.name] = PartFolder(folder / report.name)
        own = [task.source for task in tasks if report in task.reports]
        sources_of[report.name] = own
        folders[report.name].keep(set(own))

    outcomes: dict[str, FileOutcome] = {}
    for task in tasks:
        quality = _quality_of_parts(task, folders)
        if quality is not None:
            outcomes[task.source] = _outcome(task, quality, 1, skipped=True)
    left = [task for task in tasks if task.source not in outcomes]
    manifest = _Manifest(
        folder,
        name,
        list(folders),
        paths,
    )
    with manifest.kept(outcomes):
        for task, mapped, tries in engine.mapped(left):
            _add(task, mapped or Mapped(), folders)
            if mapped is None:
                outcomes[task.source] = FileOutcome(
                    task.source,
                    "failed",
                    (_DIED,),
                    retried=True,
                    bad=True,
                )
            else:
                outcomes[task.source] = _outcome(task, mapped.quality, tries)
            if progress:
                progress(len(outcomes), len(tasks))

    # All sources are those of one of the reports.
    widest = max(folders.values(), key=len)
    repeated = widest.duplicates(paths)
    for source, other in repeated.items():
        note = f"it holds the same recording as {other}, or a part of it, and is not counted: leave one of them out"
        outcomes[source] = FileOutcome(
            source,
            "duplicate",
            (note,),
            bad=True,
        )
    done = [outcomes[path] for path in paths]
    manifest.write(outcomes)

    results: dict[str, Result] = {}
    ahead: dict[PartIdentity, int] = {}
    # What collectives tell of clocks corrects the other reports.
    for report in sorted(reports, key=lambda one: one is not COLLECTIVES):
        own_sources = sources_of[report.name]
        own_files = [outcomes[source] for source in own_sources]
        parts = folders[report.name]
        parts.keep(set(own_sources) - set(repeated))
        usable = parts.parts()
        _check_usable(usable, own_files)
        result = report.reduce(_on_time(usable, ahead), options)
        ahead |= result.ahead
        lacking = [*missing(own_files), *absences(_on_time(usable, ahead))]
        results[report.name] = replace(result, missing=lacking)
    results = {report.name: results[report.name] for report in reports}
    lacking = [*missing(done), *absences(_on_time(widest.parts(), ahead))]
    counts = {report: len(own) for report, own in sources_of.items()}
    return BatchRun(
        results,
        counts,
        done,
        lacking,
    )


def _on_time(parts: Sequence[Part], ahead: Mapping[PartIdentity, int]) -> list[Part]:
    """The parts with what is known of their clocks."""
    return [replace(part, ahead=ahead.get(part.identity, 0)) for part in parts]


@dataclass(frozen=True)
class _Manifest:
    """What became of the ``sources`` of a batch, in its folder."""

    folder: Path
    report: str
    reports: list[str]
    sources: list[str]

    @contextmanager
    def kept(self, outcomes: dict[str, FileOutcome]) -> Iterator[None]:
        """Write the manifest also if the batch ends early."""
        try:
            yield
        except (CutraceError, KeyboardInterrupt):
            with suppress(CutraceError):
                self.write(outcomes)
            raise

    def write(self, outcomes: dict[str, FileOutcome]) -> None:
        files = []
        for source in self.sources:
            outcome = outcomes.get(source)
            if outcome is None:
                outcome = FileOutcome(
                    source,
                    "unread",
                    (_UNREAD,),
                    bad=True,
                )
            files.append(asdict(outcome))
        manifest = {
            "kind": "cutrace batch manifest",
            "format": 1,
            "report": self.report,
            "reports": self.reports,
            "files": files,
        }
        path = self.folder / f"{self.report}.manifest.json"
        write_text(path, json.dumps(manifest, indent=1) + "\n")


def _chosen(name: str, options: BatchOptions) -> list[BatchReport]:
    """The report of this name, or all that have what they need."""
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
    """The reports that count a source. The baseline is for those that compare with it."""
    if source not in options.baseline:
        return tuple(reports)
    return tuple(report for report in reports if "baseline" in report.needs)


def _quality_of_parts(
    task: Task,
    folders: Mapping[str, PartFolder],
) -> FileQuality | None:
    """The quality of a file that was mapped before for all of its reports; else None."""
    quality = None
    for report in task.reports:
        parts = folders[report.name]
        quality = parts.done(task.identity(report))
        if quality is None:
            break
    return quality


def _add(task: Task, mapped: Mapped, folders: Mapping[str, PartFolder]) -> None:
    """Replace the parts of a file in the folders of its reports."""
    for report in task.reports:
        own = [part for part in mapped.parts if part.report == report.name]
        folders[report.name].add(task.source, own)


def _check_usable(parts: Sequence[Part], files: Sequence[FileOutcome]) -> None:
    """Raise :class:`CutraceError` when a report has no parts."""
    if parts:
        return
    if not files:
        raise CutraceError(
            "all files are in --baseline: name others to compare with them"
        )
    notes = " ".join(files[0].notes)
    raise CutraceError(f"none of the files could be read: {files[0].source}: {notes}")


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
                f"{report.name} needs --{option}: for example {_EXAMPLES[option]}"
            )
        if value and not needed:
            users = ", ".join(r.name for r in known.values() if option in r.needs)
            raise CutraceError(
                f"{report.name} does not use --{option}: leave it out, or ask for {users}"
            )


def _outcome(
    task: Task,
    quality: FileQuality,
    tries: int,
    *,
    skipped: bool = False,
) -> FileOutcome:
    """What became of a file that was read, in this run or, if ``skipped``, in the one that made its parts."""
    state = "done"
    if skipped:
        state = "skipped"
    elif quality.damage:
        state = "damaged"
    elif quality.incomplete:
        state = "incomplete"
    bad = quality.incomplete or bool(quality.damage)
    return FileOutcome(
        task.source,
        state,
        quality.notes,
        tries > 1,
        bad,
        quality.lost,
    )


def missing(files: Sequence[FileOutcome]) -> list[str]:
    """Sentences about what is missing in all files together; none if nothing is known to be missing."""
    bad = [file for file in files if file.bad and file.state != "duplicate"]
    repeated = sum(file.state == "duplicate" for file in files)
    counts = Counter[str]()
    holders = Counter[str]()
    for file in bad:
        for meaning, count in file.lost:
            counts[meaning] += count
            holders[meaning] += 1
    whole = count_of(len(files), "file")
    sentences = []
    if bad:
        sentences.append(
            f"{len(bad):,} of {whole}: damaged, not read, or records are missing"
        )
    if repeated:
        sentences.append(
            f"{repeated:,} of {whole}: not counted, because they repeat the recording of another one"
        )
    for meaning, count in counts.most_common():
        sentences.append(f"{count:,} {meaning}, in {holders[meaning]:,} of {whole}")
    return sentences
