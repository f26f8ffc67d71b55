"""The statements of a recording about the place of its process in a job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace import collect
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


#: The variables that launchers set for task 3 of 8, number 1 on its host.
LAUNCHERS = {
    "srun": ("SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=8 SLURM_JOB_ID=77", 1, 8, "77"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_SIZE=8 PMIX_RANK=3", 1, 8, ""
    ),
    "MPICH": ("PMI_RANK=3 PMI_SIZE=8 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2", 1, 8, ""),
    "torchrun": ("RANK=3 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none", 1, 8, ""),
    "torchrun under sbatch": (
        "RANK=3 LOCAL_RANK=1 WORLD_SIZE=8 TORCHELASTIC_RUN_ID=none SLURM_PROCID=0 SLURM_LOCALID=0 "
        "SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=77", 1, 8, "77"
    ),
    "Ray Train": ("RANK=3 LOCAL_RANK=1 WORLD_SIZE=8 LOCAL_WORLD_SIZE=2 NODE_RANK=1", 1, 8, ""),
    "JAX": ("JAX_PROCESS_ID=3 JAX_NUM_PROCESSES=8 JAX_COORDINATOR_ADDRESS=a:1234", None, 8, ""),
    "JAX under sbatch": (
        "JAX_PROCESS_ID=3 JAX_NUM_PROCESSES=8 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=77", None, 8, "77"
    ),
}  # fmt: skip


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_rank_is_that_of_the_launcher(tmp_path: Path, launcher: str) -> None:
    variables, local_rank, size, job = LAUNCHERS[launcher]
    with Capture(tmp_path / "a.bin", environment=dict(word.split("=") for word in variables.split())) as c:
        path = c.path
    with cutrace.load(path) as trace:
        (process,) = trace.processes
    assert (process.rank, process.local_rank, process.world_size, process.job) == (3, local_rank, size, job)


def test_workers_of_another_program_are_recorded_by_variables(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """Ray's workers are an example: their environment is set, and their files are not joined."""
    library = str(fake_driver.libraries / "libcupti.so.13")
    variables = collect.variables(tmp_path, kinds="kernel", cupti=library)
    environment = fake_driver.environment() | variables | {"RANK": "1"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=60)
    (path,) = tmp_path.iterdir()
    with cutrace.load(path) as trace:
        assert (len(trace.kernels), trace.processes[0].rank) == (1, 1)
        assert trace.quality.lossless


def test_variables_put_workers_on_standby() -> None:
    variables = collect.variables(cupti="/x/libcupti.so", capture_range="profiler")
    assert variables["CUTRACE_OPTIONS"].splitlines() == ["standby=1", "capture_range=profiler", "cupti=/x/libcupti.so"]
    assert variables["CUDA_INJECTION64_PATH"] == variables["NVTX_INJECTION64_PATH"]
    with pytest.raises(cutrace.CutraceError, match="the capture range 'x' is unknown"):
        collect.variables(capture_range="x")


@pytest.mark.parametrize("folder", [None, "captures"])
def test_variables_refuse_what_they_cannot_do(folder: str | None) -> None:
    with pytest.raises(cutrace.CutraceError, match="cannot start to sample metrics: give sample to `cutrace record`"):
        collect.variables(folder, sample="metrics")
    with pytest.raises(cutrace.CutraceError, match="name no file for dumps: give dump_when to `cutrace record`"):
        collect.variables(folder, last="10s", dump_when="gpu idle > 100ms")
    assert "sample=pc" in collect.variables(folder, sample="pc")["CUTRACE_OPTIONS"]
    assert "last_ms=10000" in collect.variables(folder, last="10s")["CUTRACE_OPTIONS"]


def test_a_redacted_recording_has_no_variables(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with recorded(fake_driver, tmp_path, {"RANK": "3"}, "--redact") as trace:
        assert trace.processes[0].rank is None


def test_redaction_leaves_variables_out(fake_driver: FakeDriver, tmp_path: Path) -> None:
    recorded(fake_driver, tmp_path, {"RANK": "3"}).close()
    assert run_cutrace("convert", "--redact", "run.bin", "-o", "public.bin", cwd=tmp_path).returncode == 0
    with cutrace.load(tmp_path / "public.bin") as trace:
        assert trace.processes[0].rank is None


def test_torchrun_gives_a_job_without_a_name_none(fake_driver: FakeDriver, tmp_path: Path) -> None:
    with recorded(fake_driver, tmp_path, {"TORCHELASTIC_RUN_ID": "none", "SLURM_JOB_ID": "7"}) as trace:
        assert trace.processes[0].job == "7"


def test_a_process_may_set_its_rank_itself(fake_driver: FakeDriver, tmp_path: Path) -> None:
    """Workers that multiprocessing spawns do so."""
    program = "import os; os.environ |= {'RANK': '2', 'WORLD_SIZE': '4', 'LONG': 'x' * 100_000}; " + PROGRAM
    with recorded(fake_driver, tmp_path, {"RANK": "7"}, program=program) as trace:
        (process,) = trace.processes
    assert (process.rank, process.world_size) == (2, 4)
