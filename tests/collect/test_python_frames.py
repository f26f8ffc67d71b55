"""The walker over Python frames agrees with Python itself, in all interpreters on this machine, and does them no
harm."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from support import pystacks
from support.pythons import pythons, version_of

AGREE = pystacks.ROOT / "benchmarks" / "stacks_agree.py"
SUPPORT = Path(pystacks.__file__).parent


@pytest.fixture(params=pythons())
def python(request: pytest.FixtureRequest) -> str:
    return pythons()[request.param]


@pytest.fixture(scope="session")
def library(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = getattr(pytestconfig, "cache", None)
    folder = cache.mkdir("pystacks") if cache is not None else tmp_path_factory.mktemp("pystacks")
    try:
        return pystacks.build(folder)
    except pystacks.MissingCompiler as missing:
        pytest.skip(str(missing))


class Runner:
    """Runs programs that use :mod:`pystacks` in an interpreter."""

    def __init__(self, python: str, library: Path) -> None:
        self.python, self.library = python, library

    def run(self, *command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"PYSTACKS_LIBRARY": str(self.library), "PYTHONPATH": str(SUPPORT)} | variables
        return subprocess.run([self.python, *map(str, command)], env=env, capture_output=True, text=True, timeout=300)

    def program(self, text: str, **variables: str) -> list[str]:
        """Run a program and return the lines that it prints."""
        imports = "import ctypes, sys, threading, pystacks\nfrom pystacks import free, held\n"
        done = self.run("-c", imports + text, **variables)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()


@pytest.fixture
def runner(python: str, library: Path) -> Runner:
    return Runner(python, library)


def test_captures_agree_with_python(runner: Runner) -> None:
    done = runner.run(AGREE, "--captures", "2500")
    assert done.stderr == ""
    result = json.loads(done.stdout)
    assert result["wrong"] == 0, "\n".join(result["examples"])
    assert result["empty"] == 0
    assert result["captures"] >= 2500
    assert result["addresses_reused"] > 20, "code objects took the addresses of others"
    assert result["results"]["unreadable"] == 0


def test_without_the_guard_dead_code_objects_give_wrong_names(runner: Runner) -> None:
    """Shows that the comparison finds wrong stacks, and that the guard prevents them."""
    wrong = runner.program(
        "pystacks.start()\n"
        f"sys.path.insert(0, {str(AGREE.parent)!r})\n"
        "import stacks_agree\n"
        "for on in (1, 0):\n"
        "    free.stacks_watch(on)\n"
        "    for _ in range(10): stacks_agree.dying_code()\n"
        "    print(len(pystacks.wrong))\n"
    )
    assert int(wrong[0]) == 0
    assert int(wrong[1]) > 0


def test_the_check_waits_for_the_main_thread(runner: Runner) -> None:
    """A thread requests the check. The main thread does the check when it next runs Python code. Captures of stacks
    start then."""
    assert runner.program(
        "threading.Thread(target=free.stacks_ask).start()\n"
        "while free.stacks_trust() != pystacks.TRUSTED: pass\n"
        "print(free.stacks_capture() != 0)\n"
    ) == ["True"]


def test_code_that_is_compiled_at_run_time_agrees(runner: Runner) -> None:
    """Uses the JIT compiler of CPython where the interpreter has it."""
    code = "import sys; print(getattr(sys, '_jit', None) is not None and sys._jit.is_enabled())"
    if "True" not in runner.run("-c", code, PYTHON_JIT="1").stdout:
        pytest.skip("this interpreter has no compiler")
    done = runner.run(AGREE, "--captures", "2500", PYTHON_JIT="1")
    result = json.loads(done.stdout)
    assert result["wrong"] == result["empty"] == 0, "\n".join(result["examples"])


def test_greenlets_have_stacks_of_their_own(runner: Runner) -> None:
    if runner.run("-c", "import greenlet").returncode:
        pytest.skip("greenlet is not installed")
    lines = runner.program(
        """
from greenlet import greenlet
pystacks.start()
def first(n):
    if n: return first(n - 1)
    pystacks.both(); two.switch(); pystacks.both(); two.switch()
def second():
    def inner():
        pystacks.both(); one.switch(); pystacks.both()
    inner()
one, two = greenlet(first), greenlet(second)
one.switch(5)
print(pystacks.checked, len(pystacks.wrong))
"""
    )
    assert lines == ["8 0"]


def test_threads_that_capture_at_exit_do_no_harm(runner: Runner) -> None:
    """Daemon threads capture without the interpreter's lock while the interpreter ends and frees thread states."""
    text = """
import os, time
pystacks.start()
never = ctypes.c_int(0)
count = ctypes.c_uint32()
def deep(n):
    return deep(n - 1) if n else free.stacks_capture_until(ctypes.byref(never), ctypes.byref(count))
def busy():
    while True: free.stacks_capture()
for _ in range(3): threading.Thread(target=deep, args=(20,), daemon=True).start()
threading.Thread(target=busy, daemon=True).start()
while pystacks.results()["stack"] < 1000: time.sleep(0.001)
class Late:
    def __del__(self, capture=held.stacks_capture, write=os.write): write(1, b"yes" if capture() else b"no")
sys.late = Late()
"""
    for _ in range(5):
        # With PYTHONMALLOC=debug, freed memory is overwritten.
        assert runner.program(text, PYTHONMALLOC="debug") == ["yes"], (
            "the thread that ends the interpreter still has stacks"
        )


def test_after_the_exit_handler_other_threads_have_no_stacks(runner: Runner) -> None:
    lines = runner.program(
        """
pystacks.start()
held.stacks_close()
print(held.stacks_capture() != 0)
thread = threading.Thread(target=lambda: print(held.stacks_capture()))
thread.start(); thread.join()
print(pystacks.results()["closing"])
"""
    )
    assert lines == ["True", "0", "1"]


def test_a_signal_handler_of_c_that_captures_does_no_harm(runner: Runner) -> None:
    """Signals can arrive at any instruction of a capture."""
    lines = runner.program(
        """
pystacks.start()
free.stacks_begin_signals()
def work(n):
    return work(n - 1) + sum(range(3)) if n else free.stacks_capture() and 0
while pystacks.results()["nested"] < 5 or free.stacks_signals() < 100:
    work(20)
    exec("def g(): return [i for i in range(9)]\\ng()", {})
free.stacks_end_signals()
print(pystacks.check())
"""
    )
    assert lines == ["True"]


SUBINTERPRETERS = """
try: import _interpreters as interpreters
except ImportError: import _xxsubinterpreters as interpreters
def create():  # ctypes refuses to be loaded into one with a lock of its own
    if sys.version_info >= (3, 13): return interpreters.create("legacy")
    return interpreters.create(isolated=False)
pystacks.start()
assert pystacks.both()
inner = create()
failed = interpreters.run_string(inner, '''
import pystacks
def inside(): return pystacks.read(pystacks.free.stacks_capture())
got = inside()
print(len(got), [row[1] for row in got[:1]])
''')
assert not failed, failed
interpreters.destroy(inner)
print(len(pystacks.read(free.stacks_capture())))
"""


def test_subinterpreters_have_right_stacks_or_none(runner: Runner) -> None:
    lines = runner.program(SUBINTERPRETERS)
    if version_of(runner.python) >= (3, 12):
        assert lines == ["2 ['inside']", "1"]
    else:
        assert lines == ["0 []", "0"], "a thread in a subinterpreter is known by its first state"


def test_a_forked_child_has_stacks_of_its_own(runner: Runner) -> None:
    lines = runner.program(
        """
import os
pystacks.start()
stop = ctypes.c_int(0)
count = ctypes.c_uint32()
other = threading.Thread(target=lambda: free.stacks_capture_until(ctypes.byref(stop), ctypes.byref(count)))
other.start()
import warnings; warnings.simplefilter("ignore")
child = os.fork()
if child == 0:
    free.stacks_after_fork()
    held.stacks_close()  # waits for no thread of the parent
    os._exit(0 if pystacks.both() else 1)
print(os.waitpid(child, 0)[1], pystacks.both())
stop.value = 1
other.join()
"""
    )
    assert lines == ["0 True"]


def test_tables_stay_within_the_memory(runner: Runner) -> None:
    """There are many more stacks than the tables of a thread can hold."""
    lines = runner.program(
        """
pystacks.start()
free.stacks_limit_memory(200_000)
def make(number):
    variables = {"check": pystacks.check}
    exec("\\n" * number + f"def f{number}(): check()", variables)
    return variables[f"f{number}"]
functions = [make(number) for number in range(1500)]
for function in functions * 2: function()
print(len(pystacks.wrong), pystacks.empty, free.stacks_memory() <= 200_000, free.stacks_forgotten() > 4)
"""
    )
    assert lines == ["0 0 True True"]


def test_deaths_are_watched_only_while_stacks_are_taken(runner: Runner) -> None:
    lines = runner.program(
        """
code_type = ctypes.c_void_p.in_dll(ctypes.pythonapi, "PyCode_Type")
deallocator = ctypes.c_void_p.from_address(ctypes.addressof(code_type) + 48)
before = deallocator.value
pystacks.start()
print(deallocator.value != before)
free.stacks_watch(0)
print(deallocator.value == before)
"""
    )
    assert lines == ["True", "True"]


def test_an_older_python_is_refused(library: Path) -> None:
    old = next(iter(Path("~/.pyenv/versions").expanduser().glob("3.9*/bin/python")), None)
    if old is None:
        pytest.skip("there is no Python 3.9")
    text = """
import ctypes, sys
start = ctypes.CDLL(sys.argv[1]).stacks_start
start.restype = ctypes.c_char_p
print(start().decode())
"""
    done = subprocess.run([str(old), "-c", text, str(library)], capture_output=True, text=True)
    assert done.stdout.startswith("the frames of Python 3.9.")
    assert done.stdout.endswith("are unknown: use CPython 3.10 to 3.15\n")
