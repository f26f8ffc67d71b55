"""A session in which tests have every state. Each report shows all states."""

from __future__ import annotations

import pytest

from cutrace.reports.model import State
from support import every_state
from support.suites import Suite

pytestmark = pytest.mark.skipif(pytest.version_tuple < (9, 0), reason="pytest 9 has subtests")


def test_every_state_is_in_every_report(suite: Suite) -> None:
    every_state.write(suite.folder)
    *recorded, last = (suite.run(*arguments, **variables) for arguments, variables in every_state.SESSIONS)
    assert [done.status for done in recorded] == [0, 0], recorded[-1].output
    assert State.UPDATED in {case.state for case in recorded[-1].cases.values()}
    assert last.status == 1, last.output
    assert last.report is not None
    states = {case.state for case in last.report.cases}
    assert states == set(State) - {State.TRACED, State.UPDATED}
    facts = ("golden", "unverified", "unconfirmed", "better", "first runs", "unstable", "not traced", "no golden")
    for fact in (*facts, "candidates", "accept them"):
        assert f"\n  {fact} " in last.output
    assert "8 tests failed: kernel_launches 1 -> 2 (+ cast_fp32_kernel)" in last.output
    account = "golden values 16: 12 compared, 1 failed before, 2 not verified, 1 skipped"
    made = (suite.folder / ".cutrace" / "report.md").read_text()
    assert f"\n{account.capitalize()}\n".replace(":", "&#58;") in made
    for heading in ("Better than the golden values", "Not verified", "Not confirmed", "Without a golden value"):
        assert f"<summary>{heading}: " in made
    for heading in ("Not traced: 2 tests", "Different from run to run: 2 tests", "Failed for this cause: 8 tests"):
        assert f"<summary>{heading}</summary>" in made
    page = (suite.folder / ".cutrace" / "report.html").read_text()
    assert f"<span>{account}</span>" in page
    for name in ("failed", "better", "unverified", "untraced", "missing", "unconfirmed"):
        assert f'data-filter="{name}"' in page
