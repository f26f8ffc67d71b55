"""The journal of an update, to which several processes append."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from cutrace.golden import Change, Observed
from cutrace.golden.journal import Journal, append, taken_up
from support.measured import MODULE, change


def append_all(path: Path, changes: Sequence[Change]) -> None:
    for one in changes:
        append(path, one)


def test_an_update_continues_the_journal_of_its_commit_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    first, second, third = (change(tmp_path / "golden", f"{MODULE}::test[{number}]") for number in range(3))
    for one in (first, second):
        Journal(path, "one").add(one)
    assert taken_up(path, "one").changes == (first, second)
    Journal(path, "two").add(third)
    assert taken_up(path, "one").other_commit == "two"
    assert taken_up(path, "two").changes == (third,)


def test_lines_of_several_writers_do_not_mix(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", "commit")
    journal.begin()
    launches = {f"a_kernel_with_a_long_name_{number}": 1 for number in range(2000)}
    observed = Observed({"": {"kernel_launches": launches}})
    changes = []
    for number in range(60):
        one = change(tmp_path / "golden", f"{MODULE}::test[{number}]")
        changes.append(replace(one, observed=observed))
    # Threads write like processes, because each line opens the file again.
    with ThreadPoolExecutor(3) as writers:
        done = [writers.submit(append_all, journal.path, changes[first::3]) for first in range(3)]
        for one in done:
            one.result()
    found = taken_up(journal.path, "commit").changes
    assert sorted(found, key=changes.index) == changes
