"""A short run of each Python fuzz target, and all inputs that ever failed. docs/internals/fuzzing.md describes the long
runs and the native targets."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from . import TARGETS
from .targets import Captures

INPUTS = sorted(Path(__file__).with_name("inputs").iterdir())
#: The number of inputs of each target. `tox -e fuzz` runs many more.
ROUNDS = {
    "capture": 5, "reader": 20, "json": 20, "database": 5, "pftrace": 10, "golden": 20,
    "marks": 40,
}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_but_a_cutrace_error_comes_out(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]()
    for i in range(ROUNDS[name]):
        target.run(target.make(random.Random(i)))


def test_memory_is_in_proportion_to_the_capture() -> None:
    target = Captures()
    for i in range(5):
        target.run(target.make(random.Random(f"memory {i}")), memory=True)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: path.stem)
def test_inputs_that_failed_once_do_so_no_more(path: Path) -> None:
    data = path.read_bytes()
    TARGETS[path.name.partition("-")[0]]().run(gzip.decompress(data) if path.suffix == ".gz" else data)
