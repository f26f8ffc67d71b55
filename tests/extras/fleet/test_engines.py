"""Engines of a batch: all engines write the same bytes, and missing workers give a clear error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

import cutrace
import dying
from captures import Capture
from cutrace.extras.fleet import engines
from cutrace.outputs import scratch

pytest.importorskip("pyarrow")
pytest.importorskip("distributed")
dask_config = pytest.importorskip("dask").config
DATA = Path(__file__).parents[2] / "data"
CAPTURES = sorted(DATA.glob("*.bin"))[:4]

Engine = dict[str, Any]


def hashes(folder: Path) -> dict[str, str]:
    files = folder.rglob("*.parquet")
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def states(folder: Path) -> list[str]:
    manifest = json.loads((folder / "kernels.manifest.json").read_text())
    return [file["state"] for file in manifest["files"]]


@contextmanager
def threads() -> Iterator[Engine]:
    with ThreadPoolExecutor(2) as executor:
        yield {"executor": executor}


@contextmanager
def loky_pool() -> Iterator[Engine]:
    loky = pytest.importorskip("loky")
    executor = loky.get_reusable_executor(max_workers=2)
    yield {"executor": executor}
    executor.shutdown(kill_workers=True)


@contextmanager
def jobs_of_submitit() -> Iterator[Engine]:
    submitit = pytest.importorskip("submitit")
    with scratch() as folder:
        executor = submitit.AutoExecutor(folder, cluster="local")
        executor.update_parameters(timeout_min=5)
        yield {"executor": executor}


@contextmanager
def cluster(**how: Any) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    settings = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": ":0"} | how
    with LocalCluster(**settings) as running, Client(running) as client:
        yield client


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A Dask client for tests that need one worker and do not stop it."""
    with cluster() as running:
        yield running


@contextmanager
def client_of_dask(client: Any) -> Iterator[Engine]:
    yield {"mode": "dask", "scheduler": client}


@contextmanager
def executor_of_dask(client: Any) -> Iterator[Engine]:
    yield {"executor": client.get_executor()}


@contextmanager
def scheduler_file(client: Any) -> Iterator[Engine]:
    with scratch() as folder:
        file = folder / "scheduler.json"
        file.write_text(json.dumps({"address": client.scheduler.addr}))
        yield {"mode": "dask", "scheduler": file}


def check_bytes(folder: Path, engine: Engine) -> None:
    one = cutrace.batch("kernels", CAPTURES[:2], folder / "a", mode="sequential")
    other = cutrace.batch("kernels", CAPTURES[:2], folder / "b", **engine)
    assert hashes(folder / "a") == hashes(folder / "b")
    assert str(one) == str(other)


@pytest.mark.parametrize("engine", [threads, loky_pool, jobs_of_submitit])
def test_all_engines_write_the_same_bytes(tmp_path, engine):
    with engine() as how:
        check_bytes(tmp_path, how)


@pytest.mark.parametrize("engine", [client_of_dask, executor_of_dask, scheduler_file])
def test_dask_writes_the_same_bytes_however_it_is_given(tmp_path, client, engine):
    with engine(client) as how:
        check_bytes(tmp_path, how)


def killers(folder: Path) -> list[Path]:
    folder.mkdir()
    paths = []
    for number, capture in enumerate(CAPTURES):
        path = folder / f"{'killer' if number == 2 else 'calm'}-rank{number}.bin"
        path.symlink_to(capture)
        paths.append(path)
    return paths


def pool() -> Executor:
    return ProcessPoolExecutor(1, get_context("spawn"))


def loky_executor() -> Executor:
    loky = pytest.importorskip("loky")
    executor: Executor = loky.get_reusable_executor(max_workers=1)
    return executor


@pytest.mark.parametrize("make", [pool, loky_executor])
def test_an_executor_whose_worker_died_is_done_and_a_new_one_goes_on(tmp_path, monkeypatch, make):
    paths = killers(tmp_path / "run")
    expected = cutrace.batch("kernels", paths, tmp_path / "calm", mode="sequential")
    monkeypatch.setattr(engines, "map_on_worker", dying.once)
    out = tmp_path / "out"
    executor = make()
    with pytest.raises(
        cutrace.CutraceError, match=r"a worker of the executor died, .* make a new one, and run this again"
    ):
        cutrace.batch("kernels", paths, out, executor=executor)
    executor.shutdown()
    assert "unread" in states(out)
    executor = make()
    result = cutrace.batch("kernels", paths, out, executor=executor)
    executor.shutdown()
    assert str(result) == str(expected)
    assert hashes(out) == hashes(tmp_path / "calm")


def test_dask_reads_the_file_of_a_killed_worker_again(tmp_path, monkeypatch):
    *calm, once, always = killers(tmp_path / "run")
    paths = [*calm, once.rename(once.with_name("killer-once-rank2.bin"))]
    killer = always.rename(always.with_name("killer-always-rank3.bin"))
    monkeypatch.setattr(engines, "map_on_worker", dying.by_name)
    # By default Dask would try a file on three more workers before it gives up, and again on three more when the file
    # is tried alone.
    with dask_config.set({"distributed.scheduler.allowed-failures": 0}), cluster(n_workers=2) as client:
        result = cutrace.batch("kernels", [*paths, killer], tmp_path / "out", mode="dask", scheduler=client)
    assert states(tmp_path / "out") == ["done", "done", "done", "failed"]
    assert all(file.retried for file in result.files[2:])
    cutrace.batch("kernels", paths, tmp_path / "calm", mode="sequential")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "calm")


def test_the_dashboard_of_dask_is_said(tmp_path, client):
    said: list[str] = []
    cutrace.batch("kernels", CAPTURES[:1], tmp_path / "out", mode="dask", scheduler=client, say=said.append)
    assert said == [f"Dask's dashboard: {client.dashboard_link}"]


# Without workers


def test_a_cluster_without_workers_is_explained_in_time(tmp_path):
    with (
        cluster(n_workers=0) as client,
        pytest.raises(
            cutrace.CutraceError,
            match=r"no worker of the Dask scheduler tcp://\S+ took work within 0.5 s: start workers",
        ),
    ):
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", mode="dask", scheduler=client, wait="500ms")
    assert states(tmp_path / "out") == ["unread"] * len(CAPTURES)


def test_a_dead_scheduler_is_explained_in_time(tmp_path):
    with pytest.raises(cutrace.CutraceError, match=r"cannot reach the Dask scheduler tcp://127.0.0.1:1 within 0.5 s: .*"
                       "Start it with `dask scheduler`, or leave `scheduler=` out"):  # fmt: skip
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", mode="dask", scheduler="tcp://127.0.0.1:1", wait="500ms")
    assert states(tmp_path / "out") == ["unread"] * len(CAPTURES)


#: Starts a part of Dask. With ``hidden``, the process cannot import cutrace.
_PART = """
import sys
if {hidden}:
    sys.modules["cutrace"] = None
sys.argv = {arguments}
from distributed.cli.dask_{part} import main
main()
"""


@contextmanager
def part_of_dask(part: str, *arguments: object, hidden: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    program = _PART.format(hidden=hidden, arguments=[part, *map(str, arguments)], part=part)
    process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def dask(folder: Path, *, hidden: bool = False) -> Iterator[tuple[Path, dict[str, subprocess.Popen[bytes]]]]:
    """Yield the scheduler file of a scheduler with one worker, and the two processes."""
    file = folder / "scheduler.json"
    with part_of_dask("scheduler", "--port", 0, "--host", "127.0.0.1", "--scheduler-file", file) as scheduler:
        until(file.is_file)
        worker_options = ("--scheduler-file", file, "--nthreads", 1, "--no-nanny")
        with part_of_dask("worker", *worker_options, hidden=hidden) as worker:
            yield file, {"scheduler": scheduler, "worker": worker}


def until(ready: Callable[[], bool]) -> None:
    while not ready():
        time.sleep(0.05)


def test_a_worker_without_cutrace_is_explained(tmp_path):
    with (
        dask(tmp_path, hidden=True) as (file, _),
        pytest.raises(
            cutrace.CutraceError, match=r"cannot run cutrace: No module named .*\. Install it on each worker"
        ),
    ):
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", mode="dask", scheduler=file)


def test_a_worker_of_another_version_is_explained(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "own_version", lambda: "0.0.1")
    with (
        loky_pool() as how,
        pytest.raises(
            cutrace.CutraceError,
            match=r"a worker has cutrace \S+, and this process has 0.0.1: install the same version",
        ),
    ):
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", **how)


@pytest.mark.parametrize(
    ("killed", "sentence"),
    [
        ("scheduler", r"the connection to the Dask scheduler tcp://\S+ was lost: start it, and run this again"),
        ("worker", r"the Dask scheduler tcp://\S+ has had no worker for 30 s: start workers, and run this again"),
    ],
)
def test_a_cluster_that_is_lost_keeps_what_was_done(tmp_path, monkeypatch, killed, sentence):
    paths = []
    for number in range(40):
        path = tmp_path / f"rank{number}.bin"
        with Capture(path, pid=100 + number) as c:
            c.kernel(c.launch("k"), 0, 5, correlation=1)
        paths.append(path)
    with dask(tmp_path) as (file, processes):

        def progress(done: int, whole: int) -> None:
            if done == 1:
                os.kill(processes[killed].pid, signal.SIGKILL)
                # A minute passes each time the clock is read.
                minutes = count(engines.monotonic(), 60)
                monkeypatch.setattr(engines, "monotonic", lambda: next(minutes))

        with pytest.raises(cutrace.CutraceError, match=sentence) as raised:
            cutrace.batch("kernels", paths, tmp_path / "out", mode="dask", scheduler=file, progress=progress)
    found = states(tmp_path / "out")
    assert set(found) == {"done", "unread"}
    done = re.search(r"what was read before \((\d+) files?\) is not read again", str(raised.value))
    assert done is not None
    assert found.count("done") == int(done[1])
    again = cutrace.batch("kernels", paths, tmp_path / "out", mode="sequential")
    assert [file.state for file in again.files].count("skipped") == int(done[1])


def test_results_that_die_with_their_worker_are_not_waited_for(tmp_path, monkeypatch):
    paths = []
    for number in range(10):
        path = tmp_path / f"rank{number}.bin"
        with Capture(path, pid=100 + number) as c:
            c.kernel(c.launch("k"), 0, 5, correlation=1)
        paths.append(path)
    probe = engines._Pool._probe

    def probe_patiently(pool: engines._Pool, own: str) -> None:
        # The patience is short only once the worker has started.
        probe(pool, own)
        pool._patience = 3

    monkeypatch.setattr(engines._Pool, "_probe", probe_patiently)
    with dask(tmp_path) as (file, processes):

        def progress(done: int, whole: int) -> None:
            if done == 1:
                time.sleep(2)  # the worker ends the other tasks during this wait
                os.kill(processes["worker"].pid, signal.SIGKILL)

        with pytest.raises(cutrace.CutraceError, match="has had no worker for 3 s: start workers"):
            cutrace.batch("kernels", paths, tmp_path / "out", mode="dask", scheduler=file, progress=progress)


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"mode": "dask"}, "executor is used instead of a mode: leave out one of the two"),
        ({"workers": 2}, "`workers=` has no effect, because the executor has its own"),
    ],
)
def test_an_executor_leaves_nothing_to_choose(tmp_path, how, sentence):
    with threads() as executor, pytest.raises(cutrace.CutraceError, match=sentence):
        cutrace.batch("kernels", CAPTURES, tmp_path / "out", **executor, **how)
