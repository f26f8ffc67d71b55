"""What a recording tells of the place of its process in a job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.trace.process import JOB_VARIABLES, LOCAL_RANK_VARIABLES, RANK_VARIABLES, SIZE_VARIABLES
from support import cutrace as run_cutrace
from support.fakedriver import FakeDriver

PROGRAM = "import fakegpu; fakegpu.launch('work')"


def recorded(
    driver: FakeDriver, folder: Path, variables: dict[str, str], *options: str, program: str = PROGRAM
) -> cutrace.Trace:
    command = ("record", *options, "-o", "run.bin", "--", sys.executable, "-c", program)
    done = run_cutrace(*command, cwd=folder, env=driver.environment() | variables)
    assert done.returncode == 0, done.stderr
    return cutrace.load(folder / "run.bin")


def test_a_process_tells_its_rank_and_its_job(fake_driver: FakeDriver, tmp_path: Path) -> None:
    variables = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "SLURM_JOB_ID": "1234", "SECRET_TOKEN": "hidden"}
    with recorded(fake_driver, tmp_path, variables) as trace:
        (process,) = trace.processes
    assert (process.rank, process.local_rank, process.world_size, process.job) == (3, 1, 8, "1234")
    assert b"hidden" not in (tmp_path / "run.bin").read_bytes()


@pytest.mark.parametrize("name", [*RANK_VARIABLES, *LOCAL_RANK_VARIABLES, *SIZE_VARIABLES.values(), *JOB_VARIABLES])
def test_each_variable_that_is_read_is_recorded(fake_driver: FakeDriver, tmp_path: Path, name: str) -> None:
    with recorded(fake_driver, tmp_path, {name: "5=6"}) as trace:
        assert trace.processes[0].info["environment"][name] == "5=6"


def test_a_redacted_recording_has_no_variables(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with recorded(fake_driver, tmp_path, {"RANK": "3"}, "--redact") as trace:
        assert trace.processes[0].rank is None


def test_redaction_leaves_variables_out(fake_driver: FakeDriver, tmp_path: Path) -> None:
    recorded(fake_driver, tmp_path, {"RANK": "3"}).close()
    assert run_cutrace("redact", "run.bin", "-o", "public.bin", cwd=tmp_path).returncode == 0
    with cutrace.load(tmp_path / "public.bin") as trace:
        assert trace.processes[0].rank is None


def test_torchrun_gives_a_job_without_a_name_none(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with recorded(fake_driver, tmp_path, {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}) as trace:
        assert trace.processes[0].job == "7"


def test_a_process_may_set_its_rank_itself(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """Workers that multiprocessing spawns do."""
    program = "import os; os.environ |= {'RANK': '2', 'WORLD_SIZE': '4', 'LONG': 'x' * 100_000}; " + PROGRAM
    with recorded(fake_driver, tmp_path, {"RANK": "7"}, program=program) as trace:
        (process,) = trace.processes
    assert (process.rank, process.world_size) == (2, 4)
