"""Python stacks of API calls, recorded on the fake GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cutrace
from cutrace.collect.library import collector, collector_path
from cutrace.errors import CutraceError
from support import cutrace as run_cutrace
from support.fakedriver import FakeDriver
from support.pythons import pythons

#: A stack: file, function and line of each frame, outermost first.
Stack = list[tuple[str, str, int]]

#: The program appends its own view of its stacks to `said`. A call and its stack are on one line.
PRELUDE = """
import atexit, ctypes, json, os, sys, threading, time
import fakegpu
fakegpu.init()
NAME = "co_qualname" if sys.version_info >= (3, 11) else "co_name"
said = []
def say():
    frame, rows = sys._getframe(1), []
    while frame is not None:
        rows.append((frame.f_code.co_filename, getattr(frame.f_code, NAME), frame.f_lineno))
        frame = frame.f_back
    said.append(rows[::-1])
"""
SAY = "\nwith open('said.json', 'w') as file: json.dump(said, file)\n"


def stack_of(trace: cutrace.Trace, number: int) -> Stack:
    stacks = trace.python_stacks
    assert stacks is not None
    frames = [stacks.frame(frame) for frame in stacks.frames(number)]
    return [(frame.file, frame.function, frame.line) for frame in frames]


def stacks_of(trace: cutrace.Trace) -> list[tuple[str, Stack | None]]:
    """Each API call in order of time, with its stack or None. The stack leaves out the frame of fakegpu."""
    rows = trace.api_calls[trace.api_calls.argsort(order=("start", "correlation"))]
    numbers = trace.python_stacks.of_rows(rows) if trace.python_stacks else np.zeros(len(rows), int)
    out: list[tuple[str, Stack | None]] = []
    for row, number in zip(rows, numbers.tolist(), strict=True):
        stack = stack_of(trace, number)
        inner = [frame for frame in stack if not frame[0].endswith("fakegpu.py")]
        out.append((trace.strings[int(trace.functions[int(row["function"])]["name"])], inner if number else None))
    return out


class Recorded:
    """Programs that ``cutrace record`` records."""

    def __init__(self, driver: FakeDriver, folder: Path, python: str = sys.executable) -> None:
        self.driver, self.folder, self.python = driver, folder, python

    def record(self, text: str, *options: str, status: int = 0) -> str:
        """Record a program. Returns the output to stderr."""
        (self.folder / "program.py").write_text(PRELUDE + text + SAY)
        command = ["record", *options, "--", self.python, "program.py"]
        done = run_cutrace(*command, cwd=self.folder, env=self.driver.environment())
        assert done.returncode == status, done.stderr
        return str(done.stderr)

    def load(self) -> cutrace.Trace:
        return cutrace.load(self.folder / "run.bin")

    def said(self) -> list[Stack]:
        return [
            [(file, name, line) for file, name, line in rows]
            for rows in json.loads((self.folder / "said.json").read_text())
        ]


@pytest.fixture
def recorded(fake_driver: FakeDriver, tmp_path: Path) -> Recorded:
    return Recorded(fake_driver, tmp_path)


ALL = ("--stacks", "sync,alloc,copy,launch")


@pytest.mark.parametrize("version", pythons())
def test_calls_have_the_stacks_that_the_program_sees(fake_driver: FakeDriver, tmp_path: Path, version: str) -> None:
    recorded = Recorded(fake_driver, tmp_path, pythons()[version])
    recorded.record(
        """
class Model:
    def forward(self, n):
        if n: return self.forward(n - 1)
        fakegpu.launch("k"), say()
        yield from self.inner()
    def inner(self):
        fakegpu.copy(), say()
        yield
def step(model):
    for _ in model.forward(0): pass
    address = fakegpu.malloc(100); say()
    [fakegpu.synchronize() or say() for _ in range(2)]
    (lambda: (fakegpu.free(address), say()))()
def work(times):
    for _ in range(times): step(Model())
work(3)
lock = threading.Lock()
def worker():
    with lock: work(2)
threads = [threading.Thread(target=worker) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
exec(compile("fakegpu.launch('k'), say()", "<made>", "exec"))
""",
        *ALL,
    )
    with recorded.load() as trace:
        assert trace.quality.lossless
        calls = stacks_of(trace)
        assert len(calls) == 7 * 6 + 1
        assert [stack for _, stack in calls] == recorded.said()
        assert len(trace.call_stacks) == len(calls), (
            "a call of the driver inside one of the runtime has none of its own"
        )
        assert len(trace.stacks) < 80, "equal stacks are written once"
        assert sorted(set(trace.call_stacks["thread"].tolist())) == sorted(set(trace.api_calls["thread"].tolist()))


def test_only_the_groups_that_are_named_have_stacks(recorded: Recorded) -> None:
    text = """
fakegpu.launch("k"); fakegpu.graph_launch(); fakegpu.copy(); fakegpu.memset(); fakegpu.free(fakegpu.malloc(9))
fakegpu.copy("DtoH", call="cudaMemcpy"); fakegpu.synchronize()
fakegpu.launch("k", call="cuLaunchKernel"); fakegpu.synchronize("cuCtxSynchronize")
"""
    expected = {
        "launch": ["cudaLaunchKernel", "cudaGraphLaunch", "cuLaunchKernel"],
        "copy": ["cudaMemcpyAsync", "cudaMemsetAsync", "cudaMemcpy"],
        "alloc": ["cudaMalloc", "cudaFree"],
        "sync": ["cudaMemcpy", "cudaDeviceSynchronize", "cuCtxSynchronize"],
    }
    for group, names in expected.items():
        recorded.record(text, "--stacks", group, "-o", f"{group}.bin")
        with cutrace.load(recorded.folder / f"{group}.bin") as trace:
            assert [name for name, stack in stacks_of(trace) if stack is not None] == names


def test_one_launch_in_n_has_a_stack(recorded: Recorded) -> None:
    text = """
def work():
    for _ in range(25): fakegpu.launch("k"); fakegpu.copy()
work()
thread = threading.Thread(target=work); thread.start(); thread.join()
"""
    recorded.record(text, "--stacks", "launch:1/10,copy")
    with recorded.load() as trace:
        with_stack = [name for name, stack in stacks_of(trace) if stack is not None]
        assert with_stack.count("cudaMemcpyAsync") == 50
        assert with_stack.count("cudaLaunchKernel") == 6, "the first, 11th and 21st launch of each thread"


def test_short_calls_have_no_stack(recorded: Recorded) -> None:
    text = """
for i in range(5): fakegpu.synchronize()
fakegpu.launch("k", duration_ns=300_000_000)
fakegpu.synchronize(), say()
"""
    recorded.record(text, "--stacks", "sync,launch", "--stacks-min", "200ms")
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace) if stack is not None] == recorded.said()


@pytest.mark.parametrize("options", [("--api", "none"), ("--kinds", "kernel"), ("--kinds", "nvtx")])
def test_calls_with_stacks_are_recorded_in_any_case(recorded: Recorded, options: tuple[str, ...]) -> None:
    recorded.record("fakegpu.launch('k'); fakegpu.copy(); fakegpu.synchronize(), say()", "--stacks", "sync", *options)
    with recorded.load() as trace:
        assert stacks_of(trace) == [("cudaDeviceSynchronize", recorded.said()[0])]


def test_calls_with_stacks_are_recorded_when_cuda_is_in_use(recorded: Recorded) -> None:
    text = """
import cutrace
with cutrace.record("inner.bin", stacks="sync", api="none"):
    fakegpu.launch("k"); fakegpu.synchronize(), say()
"""
    (recorded.folder / "program.py").write_text(PRELUDE + text + SAY)
    env = recorded.driver.environment()
    subprocess.run([sys.executable, "program.py"], cwd=recorded.folder, env=env, check=True)
    with cutrace.load(recorded.folder / "inner.bin") as trace:
        assert stacks_of(trace)[0] == ("cudaDeviceSynchronize", recorded.said()[0])


IN_PROCESS = """
import cutrace
code_type = ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyCode_Type")
deallocator = ctypes.c_void_p.from_address(ctypes.addressof(code_type) + 48)
before = deallocator.value
callbacks = ctypes.CDLL("libcupti.so.13").fake_callbacks
def called(function):
    start = callbacks()
    function()
    return callbacks() - start
launch = lambda: [fakegpu.launch("k") for _ in range(100)]
launch()
"""


def test_without_the_option_nothing_is_watched(recorded: Recorded) -> None:
    """Other features may watch launches, too."""
    text = """
for name, stacks in (("a", None), ("b", "sync"), ("c", "launch")):
    with cutrace.record(f"{name}.bin", stacks=stacks):
        fakegpu.free(fakegpu.malloc(1))  # the check runs here
        print(called(launch), called(fakegpu.synchronize), deallocator.value == before)
print(deallocator.value == before)
"""
    (recorded.folder / "program.py").write_text(PRELUDE + IN_PROCESS + text)
    env = recorded.driver.environment()
    done = subprocess.run([sys.executable, "program.py"], cwd=recorded.folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    nothing, sync, launch, after = [line.split() for line in done.stdout.splitlines()]
    # The starts and ends of the runtime call and of the driver call inside it.
    assert (int(sync[0]), int(sync[1])) == (int(nothing[0]), int(nothing[1]) + 4)
    assert (int(launch[0]) >= 200, int(launch[1])) == (True, int(nothing[1]))
    assert [nothing[2], sync[2], launch[2], after[0]] == ["True", "False", "False", "True"]


LATER = """
import cutrace
from cutrace.collect.library import collector
native = collector()
native.start("directory=.;stacks=later")
fakegpu.launch("k")
def work(): fakegpu.launch("k"), say(); fakegpu.synchronize()
"""


def run(recorded: Recorded, text: str) -> str:
    """Run a program that records itself. Returns its output."""
    (recorded.folder / "program.py").write_text(text + SAY)
    done = subprocess.run(
        [recorded.python, "program.py"], cwd=recorded.folder, env=recorded.driver.environment(), capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_running_recording_begins_and_ends_to_take_stacks(recorded: Recorded) -> None:
    text = """
for i in range(3):
    fakegpu.launch("k"); fakegpu.synchronize()
    native.stacks("launch")
    work(); work()
    native.stacks("")
    fakegpu.launch("k")
    native.synchronize()
    assert native.cut(f"{i}.bin")
native.stop()
"""
    run(recorded, PRELUDE + LATER + text)
    said = recorded.said()
    for i in range(3):
        with cutrace.load(recorded.folder / f"{i}.bin") as trace:
            assert trace.quality.lossless
            stacks = [stack for name, stack in stacks_of(trace) if name == "cudaLaunchKernel"]
            assert stacks[-4:] == [None, *said[2 * i : 2 * i + 2], None]
            assert [stack for name, stack in stacks_of(trace) if name == "cudaDeviceSynchronize"] == [None] * 3


@pytest.mark.parametrize("version", pythons())
def test_each_version_of_python_takes_stacks_on_request(fake_driver: FakeDriver, tmp_path: Path, version: str) -> None:
    """The frames are checked when the call has returned to the main thread."""
    recorded = Recorded(fake_driver, tmp_path, pythons()[version])
    text = f"""
collector = ctypes.CDLL({str(collector_path())!r})
assert collector.cutrace_start(b"directory=.;stacks=later") == 0
fakegpu.launch("k")
for _ in range(2):
    assert collector.cutrace_stacks(b"launch") == 0
    fakegpu.launch("k"), say()
    assert collector.cutrace_stacks(b"") == 0
    fakegpu.launch("k")
collector.cutrace_synchronize()
assert collector.cutrace_cut(b"run.bin") == 0
"""
    run(recorded, PRELUDE + text)
    first, second = recorded.said()
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace)] == [None, first, None, second, None]


def test_a_recording_takes_no_stacks_before_it_is_asked_for_them(recorded: Recorded) -> None:
    text = """
before_request = called(launch), called(fakegpu.synchronize), deallocator.value == before
native.stacks("sync,launch")
print(called(launch) > before_request[0], called(fakegpu.synchronize) - before_request[1], deallocator.value == before)
native.stacks("")
print((called(launch), called(fakegpu.synchronize), deallocator.value == before) == before_request)
native.stop()
"""
    assert run(recorded, PRELUDE + LATER + IN_PROCESS + text).split() == ["True", "4", "False", "True"]


def test_stacks_that_are_asked_for_before_cuda_is_in_use_are_taken_from_then_on(recorded: Recorded) -> None:
    text = """
from cutrace.collect import Options, environment, completed
from cutrace.collect.library import collector
from pathlib import Path
os.environ.update(environment.injection(completed(Options(stacks=("later",))), Path(".")))
collector().stacks("launch")
fakegpu.init()
fakegpu.launch("k"), say()
collector().synchronize()
assert collector().cut("run.bin")
"""
    run(recorded, PRELUDE.replace("fakegpu.init()", "") + text)
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace)] == recorded.said()


def test_a_recording_without_the_option_refuses_to_take_stacks(recorded: Recorded) -> None:
    text = """
from cutrace.errors import CutraceError
for options, calls in (("", "sync"), ("stacks=launch", "sync"), ("stacks=later", "waits")):
    native.stop()
    native.start(f"directory=.;{options}")
    try: native.stacks(calls)
    except CutraceError as error: print(error)
"""
    refusals = run(recorded, PRELUDE + LATER + text).splitlines()
    assert refusals == [
        *["this recording takes no stacks on request: start it with stacks=later"] * 2,
        "stacks are those of calls of the groups sync, alloc, copy and launch",
    ]


def test_each_recording_of_a_process_has_its_own_stacks(recorded: Recorded) -> None:
    text = """
def work(name):
    variables = {"fakegpu": fakegpu}
    exec(compile(f"def {name}(): fakegpu.launch('k')\\n{name}()", f"<{name}>", "exec"), variables)
for i in range(3):
    with cutrace.record(f"{i}.bin", stacks="launch"):
        work(f"f{i}"); work(f"g{i}")
    work("unseen")
"""
    (recorded.folder / "program.py").write_text(PRELUDE + "import cutrace\n" + text)
    subprocess.run([sys.executable, "program.py"], cwd=recorded.folder, env=recorded.driver.environment(), check=True)
    for i in range(3):
        with cutrace.load(recorded.folder / f"{i}.bin") as trace:
            innermost = [stack[-1] for _, stack in stacks_of(trace) if stack]
            assert innermost == [(f"<{name}{i}>", f"{name}{i}", 1) for name in "fg"]


def test_each_file_of_a_cut_recording_has_its_stacks(recorded: Recorded) -> None:
    text = """
import cutrace
from cutrace.collect.library import collector
armed = cutrace.arm("run.bin", stacks="launch")
fakegpu.init()
def work(): fakegpu.launch("k"), say()
work()
for i in range(3):
    work(); work()
    collector().synchronize()
    assert collector().cut(f"{i}.bin")
work()
armed.stop()
"""
    (recorded.folder / "program.py").write_text(PRELUDE.replace("fakegpu.init()", "") + text + SAY)
    env = recorded.driver.environment()
    subprocess.run([sys.executable, "program.py"], cwd=recorded.folder, env=env, check=True)
    said = recorded.said()
    files = []
    for name in ("0", "1", "2", "run"):
        with cutrace.load(recorded.folder / f"{name}.bin") as trace:
            assert trace.quality.lossless
            files.append([stack for _, stack in stacks_of(trace)])
    assert [stack for file in files for stack in file] == said
    assert [len(file) for file in files] == [3, 2, 2, 1]


def test_calls_before_the_check_have_no_stack(recorded: Recorded) -> None:
    """The first call initialises CUDA, so Python runs no code between the start of the recording and the launch."""
    (recorded.folder / "program.py").write_text("import fakegpu\nfakegpu.launch('k')\nfakegpu.launch('k')\n")
    done = run_cutrace(
        "record", *ALL, "--", sys.executable, "program.py", cwd=recorded.folder, env=recorded.driver.environment()
    )
    assert (
        "1 calls have no Python stack, because the main thread of Python had run no code since the start" in done.stderr
    )
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace)] == [
            None,
            [(str(recorded.folder / "program.py"), "<module>", 3)],
        ]


def test_a_main_thread_that_never_runs_is_noted(recorded: Recorded) -> None:
    program = """
import ctypes, threading
import fakegpu
def work():
    fakegpu.init()
    fakegpu.launch("k")
    ctypes.CDLL(None).exit(0)
threading.Thread(target=work).start()
threading.Event().wait()
"""
    (recorded.folder / "program.py").write_text(program)
    env = recorded.driver.environment()
    done = run_cutrace("record", *ALL, "--", sys.executable, "program.py", cwd=recorded.folder, env=env)
    assert done.returncode == 0
    assert done.stderr.count("Python stack") == 1
    assert (
        "no Python stacks are recorded: the main thread of Python ran no code after the first CUDA call" in done.stderr
    )


def test_threads_without_python_have_no_stack(recorded: Recorded) -> None:
    """The threads of autograd, which are C++ threads, are an example."""
    source = """
#include <dlfcn.h>
#include <pthread.h>
typedef int Launch(const char *, const char *, const unsigned *, const unsigned *, unsigned, unsigned long,
                   unsigned long, unsigned);
static void *run(void *launch) {
  unsigned size[3] = {1, 1, 1};
  ((Launch *)launch)("cudaLaunchKernel", "k", size, size, 7, 1000ul, 0ul, 0u);
  return 0;
}
void launch_on_a_thread(void *launch) {
  pthread_t thread;
  pthread_create(&thread, 0, run, launch);
  pthread_join(thread, 0);
}
"""
    (recorded.folder / "thread.c").write_text(source)
    subprocess.run(["cc", "-shared", "-fPIC", "thread.c", "-o", "thread.so"], cwd=recorded.folder, check=True)
    stderr = recorded.record(
        "launch = ctypes.cast(fakegpu._driver().fake_gpu_launch, ctypes.c_void_p)\n"
        "for _ in range(3): ctypes.CDLL('./thread.so').launch_on_a_thread(launch)\n"
        "fakegpu.launch('k'), say()\n",
        *ALL,
    )
    assert "3 calls have no Python stack, because their threads run no Python code" in stderr
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace)] == [None] * 3 + recorded.said()


def test_a_program_without_python_is_noted(fake_driver: FakeDriver, tmp_path: Path) -> None:
    source = "int fake_gpu_init(void);\nint main(void) { return fake_gpu_init(); }\n"
    (tmp_path / "program.c").write_text(source)
    library = fake_driver.libraries / "libcuda.so.1"
    subprocess.run(["cc", "program.c", "-o", "program", library], cwd=tmp_path, check=True)
    done = run_cutrace("record", *ALL, "--", "./program", cwd=tmp_path, env=fake_driver.environment())
    assert done.returncode == 0
    assert done.stderr.count("no Python stacks are recorded: the process is no Python program") == 1


def test_a_python_that_is_unknown_is_noted(fake_driver: FakeDriver, tmp_path: Path) -> None:
    old = next(iter(Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python3.9")), None)
    if old is None:
        pytest.skip("there is no Python 3.9")
    program = "import fakegpu; fakegpu.init(); fakegpu.launch()"
    done = run_cutrace("record", *ALL, "--", str(old), "-c", program, cwd=tmp_path, env=fake_driver.environment())
    assert done.returncode == 0
    assert "no Python stacks are recorded: the frames of Python 3.9." in done.stderr


def test_a_forked_child_and_its_parent_go_on(recorded: Recorded) -> None:
    recorded.record(
        """
fakegpu.launch("k"), say()
child = os.fork()
if child == 0:
    exec(compile("x = 1", "<child>", "exec"))
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
fakegpu.launch("k"), say()
""",
        *ALL,
    )
    with recorded.load() as trace:
        assert [stack for _, stack in stacks_of(trace)] == recorded.said()


def test_calls_in_exit_handlers_and_daemon_threads_do_no_harm(recorded: Recorded) -> None:
    recorded.record(
        """
def late(): fakegpu.launch("late"), say()
started = threading.Event()
def endless():
    while True:
        fakegpu.launch("k"); started.set()
threading.Thread(target=endless, daemon=True).start()
started.wait()
class Last:
    def __del__(self, launch=fakegpu.launch): launch("last")
sys.last_one = Last()
""",
        *ALL,
    )
    with recorded.load() as trace:
        assert len(trace.call_stacks) > 0


def test_a_redacted_recording_has_no_paths(recorded: Recorded) -> None:
    (recorded.folder / "program.py").write_text("import fakegpu; fakegpu.init()\nexec('fakegpu.launch()')\n")
    command = ["record", *ALL, "--redact", "--", sys.executable, str(recorded.folder / "program.py")]
    assert run_cutrace(*command, cwd=recorded.folder, env=recorded.driver.environment()).returncode == 0
    with recorded.load() as trace:
        (stack,) = [stack_of(trace, int(number)) for number in trace.call_stacks["stack"]]
    assert [(file, function) for file, function, _ in stack] == [
        ("(path)", "<module>"),
        ("<string>", "<module>"),
        ("(path)", "launch"),
    ]


@pytest.mark.parametrize("stacks", ["launches", "sync:1", "launch:0", ""])
def test_an_unknown_word_is_an_error_of_the_options(stacks: str) -> None:
    with pytest.raises(CutraceError, match=r"the option 'stacks=.*' is invalid"):
        collector().start(f"output=/no/such/run.bin;stacks={stacks}")
