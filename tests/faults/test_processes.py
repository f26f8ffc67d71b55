"""Processes that start other processes, and several recordings in a process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import cutrace
from cutrace.collect.library import collector_path
from faults.conftest import Measure

FORK = """
def child(body):
    pid = os.fork()
    if pid == 0:
        try:
            body()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]
"""


def test_a_fork_before_cuda_records_both(measure: Measure) -> None:
    program = FORK + "assert child(lambda: (launch(50, 'child'), time.sleep(0.3))) == 0\nlaunch(100)"
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"child": 50, "k": 100}
    assert len(outcome.trace.processes) == 2


def test_a_fork_after_cuda_leaves_the_child_alone(measure: Measure) -> None:
    program = (
        FORK
        + """
launch(100)
def body():
    try:
        fakegpu.launch("child")  # CUDA does not survive a fork
    except RuntimeError:
        cutrace.mark("child")
        return
    os._exit(1)
assert child(body) == 0
launch(100)
"""
    )
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"k": 200}
    assert len(outcome.trace.processes) == 1
    assert len(outcome.trace.nvtx_marks) == 0
    assert outcome.trace.quality.lossless


def test_children_that_end_through_the_interpreter_leave_the_recording_alone(measure: Measure) -> None:
    program = """
launch(100)
for _ in range(5):
    pid = os.fork()
    if pid == 0:
        sys.exit(0)
    assert os.waitpid(pid, 0)[1] == 0
launch(100)
"""
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"k": 200}
    assert outcome.trace.processes[0].complete


def test_forks_while_flushes_run_hang_nobody(measure: Measure) -> None:
    program = (
        FORK
        + """
fakegpu.flush_takes(50)
done = threading.Event()
def busy():
    while not done.is_set():
        launch(10, "busy")
        time.sleep(0.0005)
thread = threading.Thread(target=busy)
thread.start()
for _ in range(30):
    assert child(lambda: None) == 0
    time.sleep(0.01)
done.set()
thread.join()
"""
    )
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    assert len(outcome.trace.processes) == 1
    assert outcome.trace.processes[0].complete


def test_multiprocessing_by_fork_and_by_spawn(measure: Measure, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text("""
import multiprocessing, sys
def work(n):
    import fakegpu
    for _ in range(n):
        fakegpu.launch("worker", duration_ns=1)
    fakegpu.synchronize()
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    children = [context.Process(target=work, args=(100,)) for _ in range(3)]
    [child.start() for child in children]
    [child.join() for child in children]
    assert all(child.exitcode == 0 for child in children)
    work(50)
""")
    for method in ("fork", "spawn", "forkserver"):
        outcome = measure([sys.executable, "work.py", method], output=f"{method}.bin")
        assert outcome.status == 0, outcome.stderr
        assert outcome.kernels() == {"worker": 350}
        assert len(outcome.trace.processes) == 4
        assert outcome.trace.quality.lossless


CHILDREN = """
import concurrent.futures, multiprocessing, os, sys, threading, time
import fakegpu
def launch(n):
    for _ in range(n):
        fakegpu.launch("worker", duration_ns=1)
    fakegpu.synchronize()
def ranges(n):
    import nvtx
    for _ in range(n):
        with nvtx.annotate("worker"):
            pass
def fail(n):
    launch(n)
    raise ValueError("on purpose")
def leave(n):
    launch(n)
    sys.exit(3)
def nest(n):
    launch(n)
    child = context.Process(target=ranges, args=(n,))
    child.start()
    child.join()
def record(n):
    import cutrace
    cutrace.record(f"own-{os.getpid()}.bin").start()
    launch(n)
def run(target, n=100):
    child = context.Process(target=target, args=(n,))
    child.start()
    child.join()
    return child.exitcode
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    exec(sys.argv[2])
else:
    context = multiprocessing.get_context("fork")
"""
WAYS = {
    "a pool that is closed": (
        "pool = context.Pool(3); pool.map(launch, [50] * 6, chunksize=1); pool.close(); pool.join()",
        {"worker": 300},
    ),
    "an executor": (
        "pool = concurrent.futures.ProcessPoolExecutor(3, context); list(pool.map(launch, [50] * 6)); pool.shutdown()",
        {"worker": 300},
    ),
    "an exception": ("assert run(fail) == 1", {"worker": 100}),
    "sys.exit()": ("assert run(leave) == 3", {"worker": 100}),
    "a child of a child": ("assert run(nest) == 0", {"worker": 200}),
    "ranges behind a parent with CUDA": ("launch(10); assert run(ranges) == 0", {"worker": 110}),
}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
@pytest.mark.parametrize("way", WAYS)
def test_children_of_multiprocessing_lose_nothing(measure: Measure, tmp_path: Path, way: str, method: str) -> None:
    pytest.importorskip("nvtx")
    (tmp_path / "work.py").write_text(CHILDREN)
    program, expected = WAYS[way]
    outcome = measure([sys.executable, "work.py", method, program])
    assert outcome.status == 0, outcome.stderr
    trace = outcome.trace
    found = outcome.kernels() + Counter(trace.strings.take(trace.nvtx_ranges["name"]).tolist())
    assert found == expected
    assert trace.quality.lossless, [*trace.quality.sentences()]
    assert not list(tmp_path.glob(".run.bin.*"))


def test_work_of_threads_behind_the_finalizers_goes_on_being_recorded(measure: Measure, tmp_path: Path) -> None:
    program = """
def behind(n):
    def later():
        time.sleep(0.3)
        launch(7)
        time.sleep(0.5)  # a flush writes it
    launch(n)
    threading.Thread(target=later).start()
assert run(behind) == 0
"""
    (tmp_path / "work.py").write_text(CHILDREN)
    outcome = measure([sys.executable, "work.py", "fork", program])
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"worker": 107}


def test_a_child_of_multiprocessing_ends_its_own_recording(measure: Measure, tmp_path: Path) -> None:
    (tmp_path / "work.py").write_text(CHILDREN)
    outcome = measure([sys.executable, "work.py", "fork", "assert run(record) == 0"], recorder=False)
    assert outcome.status == 0, outcome.stderr
    (own,) = tmp_path.glob("own-*.bin")
    with cutrace.load(own) as trace:
        assert trace.count("kernels") == 100
        assert trace.quality.lossless
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".own")]


def test_a_second_recording_is_refused_and_the_first_goes_on(measure: Measure) -> None:
    program = """
launch(10)
for start in (lambda: cutrace.record("inner.bin").start(), lambda: cutrace.arm("inner.bin")):
    try:
        start()
    except cutrace.CutraceError as error:
        print(error)
launch(10)
"""
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    assert outcome.stdout.count("recorded already") == 2
    assert outcome.kernels() == {"k": 20}
    assert not outcome.path.with_name("inner.bin").exists()


def test_injection_and_a_start_in_process_at_the_same_moment(measure: Measure) -> None:
    # The driver loads the collector in cuInit() on one thread while another thread starts a recording. Exactly one of
    # them must succeed.
    program = """
from cutrace.collect.library import collector
barrier = threading.Barrier(2)
refused = []
def inject():
    barrier.wait()
    launch(100)
def start():
    native = collector()
    barrier.wait()
    time.sleep(float(sys.argv[1]))
    try:
        native.start("output=inner.bin")
    except cutrace.CutraceError as error:
        refused.append(str(error))
threads = [threading.Thread(target=inject), threading.Thread(target=start)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(json.dumps(refused))
"""
    for number, delay in enumerate([0, 0.0002, 0.001, 0.002, 0.004]):
        outcome = measure(program, delay, output=f"{number}.bin")
        assert outcome.status == 0, outcome.stderr
        inner = outcome.path.with_name("inner.bin")
        refused = json.loads(outcome.stdout)
        assert outcome.path.exists() != inner.exists()
        assert bool(refused) == outcome.path.exists()
        with cutrace.load(inner if inner.exists() else outcome.path) as trace:
            assert trace.processes[0].complete
            if refused:
                assert "already running" in refused[0]
                assert len(trace.kernels) == 100
        inner.unlink(missing_ok=True)


def test_two_copies_of_the_collector(measure: Measure, tmp_path: Path) -> None:
    """Two environments each have cutrace. The second copy gets no GPU work, and says which copy gets it."""
    copy = shutil.copy(collector_path(), tmp_path / "libcutrace_collector.so")
    program = """
launch(10)
second = ctypes.CDLL(sys.argv[1])
assert second.cutrace_start(b"output=second.bin") == 0
launch(10)
assert second.cutrace_stop() == 0
launch(10)
"""
    outcome = measure(program, copy)
    assert outcome.status == 0, outcome.stderr
    assert outcome.kernels() == {"k": 30}
    assert outcome.trace.quality.lossless
    with cutrace.load(tmp_path / "second.bin") as second:
        assert len(second.kernels) == 0
        (note,) = second.quality.notes
    assert "another tool holds CUPTI" in note
    assert "another copy of cutrace's collector" in note


def test_two_copies_told_to_write_one_file(measure: Measure, tmp_path: Path) -> None:
    copy = shutil.copy(collector_path(), tmp_path / "libcutrace_collector.so")
    program = """
from cutrace.collect.library import collector
fakegpu.init()
collector().start("output=one.bin")
launch(10)
second = ctypes.CDLL(sys.argv[1])
second.cutrace_last_error.restype = ctypes.c_char_p
assert second.cutrace_start(b"output=one.bin") != 0
print(second.cutrace_last_error().decode())
collector().stop()
"""
    outcome = measure(program, copy, recorder=False, output="one.bin")
    assert outcome.status == 0, outcome.stderr
    assert "another process is writing the capture" in outcome.stdout
    assert outcome.kernels() == {"k": 10}


LIBRARY = """
#include <nvtx3/nvToolsExt.h>
extern "C" void work(int number) {
  nvtxDomainHandle_t domain = nvtxDomainCreateA("plugin");
  nvtxEventAttributes_t event = {};
  event.version = NVTX_VERSION;
  event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
  event.message.registered = nvtxDomainRegisterStringA(domain, "registered");
  nvtxDomainRangePushEx(domain, &event);
  nvtxRangePushA(number % 2 ? "odd" : "even");
  nvtxRangePop();
  nvtxDomainRangePop(domain);
}
"""


def test_a_library_with_nvtx_that_is_closed_again(measure: Measure, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    headers = subprocess.run([sys.executable, root / "cmake" / "find_headers.py"], capture_output=True, text=True)
    includes = [f"-I{folder}" for folder in headers.stdout.strip().split(";")]
    (tmp_path / "plugin.cpp").write_text(LIBRARY)
    # Unique symbols would prevent the library from being closed.
    build = ["c++", "-shared", "-fPIC", "-fno-gnu-unique", *includes, "plugin.cpp", "-o", "plugin.so", "-ldl"]
    subprocess.run(build, cwd=tmp_path, check=True)
    program = """
import _ctypes
for number in range(20):
    library = ctypes.CDLL(sys.argv[1])
    library.work(number)
    _ctypes.dlclose(library._handle)
    assert sys.argv[1] not in open("/proc/self/maps").read(), "it is gone"
launch(10)
"""
    outcome = measure(program, tmp_path / "plugin.so")
    assert outcome.status == 0, outcome.stderr
    names = [outcome.trace.strings[int(name)] for name in outcome.trace.nvtx_ranges["name"]]
    assert sorted(names) == ["even"] * 10 + ["odd"] * 10 + ["registered"] * 20
    assert outcome.kernels() == {"k": 10}


@pytest.mark.parametrize("step", [-86_400, 3600])
def test_a_clock_that_steps_is_told_by_the_snapshots(measure: Measure, step: int) -> None:
    program = f"""
fakegpu.init()
for _ in range(25):
    launch(10); time.sleep(0.1)
inject.realtime_steps({step})
for _ in range(25):
    launch(10); time.sleep(0.1)
fakegpu.synchronize()
"""
    outcome = measure(program)
    assert outcome.status == 0, outcome.stderr
    trace = outcome.trace
    clocks = trace.clocks
    lead = clocks["realtime"].astype("int64") - clocks["boottime"].astype("int64")
    moved = (lead - lead[0]) / 1e9
    assert abs(moved[-1] - step) < 0.01, "the snapshots say by how much, and between which two it was"
    assert ((abs(moved) < 0.01) | (abs(moved - step) < 0.01)).all()
    begin, end = int(trace.kernels["start"].min()), int(trace.kernels["end"].max())
    assert 4.5e9 < end - begin < 20e9, "times of work do not know of it"
    assert int(clocks["boottime"][0]) <= begin <= end <= int(clocks["boottime"][-1])
    assert trace.quality.lossless
