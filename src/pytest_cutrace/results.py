"""What is left of a test when it is over: its golden file or a candidate of one, its capture and trace, its case."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cutrace.analysis.metrics import Gate
from cutrace.collect.join import join
from cutrace.conversion import convert
from cutrace.errors import CutraceError
from cutrace.golden import Golden, Section, measured, propose, recorded_on, updated, write
from cutrace.golden import read as read_golden
from cutrace.golden.model import WORK, Values, metric
from cutrace.reports import jsonfile
from cutrace.reports.model import Case, State

if TYPE_CHECKING:
    from .attempt import Attempt
    from .session import Session

_FILES = ("run.bin", "trace.pftrace", "metrics.json")


def conclude(session: Session, attempt: Attempt, *, passed: bool) -> Case:
    """The test is over, its teardown too; ``passed`` is how that went. What cannot be written becomes a note."""
    good = passed and not attempt.failed and attempt.outcome == "passed"
    try:
        if good and session.updates(attempt):
            _update(session, attempt)
        else:
            _propose(session, attempt)
    except CutraceError as error:
        attempt.notes.append(str(error))
    if not passed:
        attempt.outcome = "failed"
    if not attempt.runs:
        attempt.reason = "skipped" if attempt.outcome == "skipped" else "it did not run"
    try:
        case = _pictured(session, attempt, attempt.case(artifacts=_keep(session, attempt)))
        if attempt.judged:
            jsonfile.write(session.folder(attempt.item) / "metrics.json", jsonfile.case_text(case))
    except CutraceError as error:
        attempt.notes.append(str(error))
        case = attempt.case(artifacts={})
    session.captures.release(attempt.runs)
    return case


def _pictured(session: Session, attempt: Attempt, case: Case) -> Case:
    """The case with what the HTML page shows of its trace, if there is to be one."""
    files = attempt.judged[-1].files if attempt.judged else []
    if not files or not any(kind == "html" for kind, _ in session.settings.reports):
        return case
    from cutrace.reports.timeline import timeline, top_kernels

    window, captures = attempt.judged[-1].window, session.captures
    with captures.opened(files) as trace:
        return replace(
            case,
            kernels=top_kernels(trace, window, normalize=captures.normalize),
            timeline=timeline(trace, window, normalize=captures.normalize),
        )


def _update(session: Session, attempt: Attempt) -> None:
    runs = [run.metrics for run in attempt.judged]
    if not runs or session.settings.update is None or any(run.problems for run in runs):
        return
    path, nodeid = attempt.expected.path, session.nodeid(attempt.item)
    # Another test of the session may have written it since: one that has the same file is found out here.
    old = read_golden(path, test=nodeid) if path.is_file() else None
    mode = session.settings.update
    nothing = not any(run.gpu_records for run in runs)
    if old is not None and mode != "all" and nothing and any(old.common.metrics.get(name) for name in WORK):
        attempt.notes.append("the golden file stays: no GPU work was seen, which only --cutrace-update=all writes down")
        return
    golden, notes = updated(
        old, runs, test=nodeid, gpu=attempt.gpu_key(runs), recorded=recorded_on(runs[-1]), mode=mode,
        rules=attempt.expected.wishes.rules,
    )  # fmt: skip
    attempt.notes += notes
    gated = Gate.TIME in attempt.expected.wishes.rules.gate
    if old is not None and mode != "all" and not gated and _without_times(old) == _without_times(golden):
        return  # times are never twice the same: alone they are no reason to touch a file
    if write(golden, path):
        attempt.state, attempt.reason = State.UPDATED, ""
        attempt.expected = replace(attempt.expected, golden=golden)


def _without_times(golden: Golden) -> Golden:
    """What a golden file says but for times, and for what they were recorded on."""

    def kept(values: Values) -> Values:
        return {n: v for n, v in values.items() if (found := metric(n)) is None or found.gate is not Gate.TIME}

    def rest(section: Section) -> Section:
        regions = {name: kept(values) for name, values in section.regions.items()}
        return Section(kept(section.metrics), regions, "", section.unstable)

    return Golden(golden.test, rest(golden.common), {gpu: rest(section) for gpu, section in golden.gpus.items()})


def _propose(session: Session, attempt: Attempt) -> None:
    """Leave a candidate where a golden file is missing or does not hold, none where all is well."""
    settings = session.settings
    place = settings.directory / "proposed"
    rows = attempt.comparison.rows if attempt.comparison is not None else ()
    drifted = any(row.failed and row.rule != "limit" for row in rows)
    runs = [run.metrics for run in attempt.judged]
    if not runs or any(run.problems for run in runs):
        return
    path = attempt.expected.path
    if attempt.state is State.MISSING or (attempt.state is State.GATED and drifted):
        candidate = measured(
            runs, test=session.nodeid(attempt.item), gpu=attempt.gpu_key(runs), recorded=recorded_on(runs[-1]),
            rules=attempt.expected.wishes.rules,
        )  # fmt: skip
        propose(candidate, path, place, settings.golden_root)
    elif attempt.state is State.GATED and path.is_relative_to(settings.golden_root):
        (place / path.relative_to(settings.golden_root)).unlink(missing_ok=True)


def _keep(session: Session, attempt: Attempt) -> dict[str, str]:
    """Put the files of the run that was judged where they are kept; their paths as seen from the session's folder."""
    folder = session.folder(attempt.item)
    if folder.is_dir():
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
    if not attempt.judged:
        return {}
    kept = [folder / "metrics.json"]
    failed = attempt.failed or attempt.outcome in ("failed", "xfailed") or attempt.state is State.MISSING
    files = attempt.judged[-1].files
    if files and session.keeps(failed=failed):
        folder.mkdir(parents=True, exist_ok=True)
        capture, trace = folder / "run.bin", folder / "trace.pftrace"
        join(files, capture, moving=False)
        kept.append(capture)
        convert(capture, trace)
        kept.append(trace)
    return {path.name: str(_seen_from(session.settings.directory, path)) for path in kept}


def _seen_from(directory: Path, path: Path) -> Path:
    return path.relative_to(directory)
