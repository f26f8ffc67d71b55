"""What is left of a test when it is over: what its golden file is to say, its capture and trace, its case."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from cutrace.errors import CutraceError
from cutrace.golden import Change, digest, merged, observed, split
from cutrace.golden.model import WORK, Entry
from cutrace.reports import jsonfile
from cutrace.reports.model import Case, State

if TYPE_CHECKING:
    from .attempt import Attempt
    from .session import Session

_FILES = ("run.bin", "trace.pftrace", "metrics.json")


def conclude(session: Session, attempt: Attempt, *, passed: bool) -> Case:
    """The test is over, its teardown too; ``passed`` is how that went. What cannot be written becomes a note."""
    good = passed and not attempt.failed and attempt.outcome == "passed"
    if not passed:
        attempt.outcome = "failed"
    if not attempt.runs and not attempt.reason:
        attempt.reason = "skipped" if attempt.outcome == "skipped" else "it did not run"
    change = None
    try:
        if attempt.updating:
            change = _updated(attempt) if good else None
        elif attempt.proposes:
            change = _measured(attempt)
        case = _pictured(session, attempt, attempt.case(artifacts=_keep(session, attempt)))
        case = replace(case, change=change)
        if "metrics.json" in case.artifacts:
            jsonfile.write(session.folder(attempt.item) / "metrics.json", jsonfile.case_text(case))
    except CutraceError as error:
        attempt.notes.append(str(error))
        case = attempt.case(artifacts={})
    except Exception as error:
        # A mistake of the plugin's own must neither end the session nor pass in silence.
        attempt.untraced(f"cutrace failed: {type(error).__name__}: {error}")
        case = attempt.case(artifacts={})
    session.captures.release(attempt.runs)
    return case


def change_of(attempt: Attempt) -> tuple[Change | None, tuple[str, ...]]:
    """What this update would write of a test, None if nothing; and what it would not take over."""
    update, entry = attempt.session.settings.update, attempt.expected.entry
    found = _measured(attempt)
    if found is None or update is None:
        return None, ()
    if update.mode != "all" and _vanished(entry, found):
        return None, ("the golden values stay: no GPU work was seen, which only --cutrace-update=all writes down",)
    rules = attempt.expected.wishes.rules
    new, notes = merged(entry, found.observed, environment=found.environment, update=update, rules=rules)
    if new == entry:
        return None, notes
    return replace(found, observed=new[found.environment]), notes


def _updated(attempt: Attempt) -> Change | None:
    change, notes = change_of(attempt)
    attempt.notes += notes
    if change is not None:
        attempt.state, attempt.reason = State.UPDATED, ""
    return change


def _measured(attempt: Attempt) -> Change | None:
    """What the runs of a test showed, None where that is not known for certain."""
    runs = [run.metrics for run in attempt.settled]
    if not runs or any(run.problems for run in runs):
        return None
    environment = attempt.environment(runs)
    if not environment:
        return None
    nodeid = attempt.session.nodeid(attempt.item)
    return Change(
        nodeid,
        attempt.expected.path,
        environment,
        observed(runs, attempt.expected.wishes.rules, confirmed=len(runs) > 1),
        _line(attempt.item, split(nodeid)[0]),
        digest(attempt.expected.entry, environment),
    )


def _vanished(entry: Entry | None, found: Change) -> bool:
    """Whether a test that did GPU work here does none any more."""
    before, now = (entry or {}).get(found.environment), found.observed
    if before is None or any(now.values.get("", {}).get(name) for name in WORK):
        return False
    return any(before.values.get("", {}).get(name) for name in WORK)


def _line(item: pytest.Item, file: str) -> int:
    """The line of a test in its own file, 0 where it comes from another one."""
    source, line, _ = item.location
    return line + 1 if source == file and line is not None else 0


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


def _keep(session: Session, attempt: Attempt) -> dict[str, str]:
    """Put the files of the run that was judged where they are kept; their paths as seen from the session's folder."""
    folder = session.folder(attempt.item)
    if folder.is_dir():
        for name in _FILES:
            (folder / name).unlink(missing_ok=True)
    failed = attempt.failed or attempt.outcome in ("failed", "xfailed") or attempt.state is State.MISSING
    if not attempt.judged or not session.keeps(failed=failed):
        return {}
    kept = [folder / "metrics.json"]
    if files := attempt.judged[-1].files:
        from cutrace.collect.join import join
        from cutrace.conversion import convert

        folder.mkdir(parents=True, exist_ok=True)
        capture, trace = folder / "run.bin", folder / "trace.pftrace"
        join(files, capture, moving=False)
        convert(capture, trace)
        kept += [capture, trace]
    return {path.name: str(path.relative_to(session.settings.directory)) for path in kept}
