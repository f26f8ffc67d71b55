"""Compare captured Python stacks with the stacks that Python itself reports, in programs of many kinds.

    python benchmarks/stacks_agree.py [--captures 1000000] [--python PATH ...] [--only NAME ...]

Builds the collector's walker as a library (tests/support/pystacks.py). Each interpreter captures stacks in recursion,
generators, coroutines, exceptions, finalizers, exec, code objects that are freed, tracers, signal handlers, threads, C
threads, and calls without the interpreter's lock. Each capture is compared with ``sys._getframe()`` and
``traceback.extract_stack()``. Prints one JSON line for each interpreter. Exit status 1 when a stack was wrong or
missing. Needs a C++ compiler, no GPU.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import gc
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path.insert(0, str(TESTS / "support"))

import pystacks  # noqa: E402
from pystacks import both, check, free, held  # noqa: E402

SCENARIOS: dict[str, Callable[[], None]] = {}


def scenario(function: Callable[[], None]) -> Callable[[], None]:
    """Register a scenario under the name of its function."""
    SCENARIOS[function.__name__] = function
    return function


def require(condition: bool, what: str) -> None:
    """Note a fault that is not about a stack."""
    if not condition:
        pystacks.wrong.append(what)


# ---- kinds of code ----


@scenario
def recursion() -> None:
    """Functions that call each other in statements of several lines. Stacks reach the maximum depth and exceed it."""

    def descend(depth: int) -> object:
        if depth == 0:
            return both()
        if depth % 3 == 0:
            return descend(
                depth - 1,
            )
        if depth % 3 == 1:
            return [descend(depth - 1) for _ in range(1)]
        return (lambda: descend(depth - 1))()

    for depth in (0, 1, 2, 5, 30, 100):
        descend(depth)


@scenario
def deep_recursion() -> None:
    """Stacks around the maximum depth, and much deeper ones."""

    def descend(depth: int) -> object:
        return both() if depth == 0 else descend(depth - 1)

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)
    for depth in (240, 250, 254, 256, 260, 600):
        descend(depth)
    sys.setrecursionlimit(limit)


@scenario
def generators() -> None:
    """Generators that delegate, get exceptions thrown into them, are closed, and continue on the next thread."""

    def count(depth: int) -> Iterator[int]:
        both()
        yield 1
        try:
            both()
            yield from count(depth - 1) if depth else []
        finally:
            both()

    list(count(5))
    thrown = count(2)
    next(thrown)
    try:
        thrown.throw(ValueError)
    except ValueError:
        both()
    closed = count(1)
    next(closed)
    closed.close()
    del thrown, closed
    moved = count(2)
    next(moved)
    thread = threading.Thread(target=lambda: list(moved))
    thread.start()
    thread.join()


class Awaitable:
    """An object with a generator as its __await__."""

    def __await__(self) -> Iterator[None]:
        both()
        yield
        both()


@scenario
def coroutines() -> None:
    """Coroutines, asynchronous generators, comprehensions and contexts, in an event loop."""

    async def numbers() -> AsyncIterator[int]:
        for i in range(3):
            both()
            await asyncio.sleep(0)
            yield i

    async def part(i: int) -> None:
        both()
        await asyncio.sleep(0.0001 * i)
        await Awaitable()
        both()

    async def whole() -> None:
        async for _ in numbers():
            both()
        _ = [both() async for _ in numbers()]
        await asyncio.gather(*[part(i) for i in range(5)])

    asyncio.run(whole())


class Everything:
    """A class with special methods that capture stacks."""

    def __init__(self, text: str = "") -> None:
        self.text = text
        both()

    def __enter__(self) -> Everything:
        both()
        return self

    def __exit__(self, *error: object) -> bool:
        return both() or True

    def __del__(self) -> None:
        both()

    @property
    def attribute(self) -> bool:
        return both()

    def __getattr__(self, name: str) -> Any:
        both()
        raise AttributeError(name)

    def __lt__(self, other: object) -> bool:
        return both()

    def __iter__(self) -> Iterator[bool]:
        yield both()

    def __getitem__(self, key: object) -> bool:
        return both()

    def __call__(self) -> bool:
        return both()


@scenario
def special_methods() -> None:
    """Methods that the interpreter calls, and objects that are freed at the end of their frame."""

    def local_death() -> int:
        kept = [Everything() for _ in range(3)]
        return len(kept)

    thing = Everything()
    _ = thing.attribute, hasattr(thing, "missing"), thing[1], list(thing), thing()
    sorted([thing, Everything()])
    with thing:
        raise ZeroDivisionError
    local_death()
    del thing


@scenario
def cycles() -> None:
    """Finalizers that the garbage collector runs in the middle of other code."""

    class Cycle(Everything):
        def __init__(self) -> None:
            self.itself = self

    for _ in range(20):
        Cycle()
    gc.collect()


@scenario
def exceptions() -> None:
    """Exception handlers, finally clauses and exception groups."""

    def fails() -> int:
        try:
            both()
            raise ValueError
        except ValueError:
            both()
            try:
                raise KeyError from None
            except KeyError:
                return int(both())
            finally:
                both()

    fails()


@scenario
def callbacks() -> None:
    """C functions that call Python functions."""

    @functools.lru_cache
    def cached(x: int) -> bool:
        return both()

    thing = Everything()
    list(map(Everything.__call__, [thing, thing]))
    sorted([2, 1], key=lambda _: both())
    _ = {both() for _ in range(2)}, {both(): 1 for _ in range(2)}, max([1, 2], key=lambda _: both())
    cached(1)
    functools.partial(cached, 2)()
    functools.reduce(lambda a, b: both(), [1, 2, 3])


# ---- code objects ----


@scenario
def names() -> None:
    """Names and files with characters of all widths, and very long ones."""
    variables = {"check": check}
    for name in (
        "plain",
        "\N{LATIN SMALL LETTER U WITH DIAERESIS}ni",
        "\N{CJK UNIFIED IDEOGRAPH-6F22}\N{CJK UNIFIED IDEOGRAPH-5B57}",
    ):
        exec(f"def {name}():\n  check()\n{name}()", dict(variables))
    for file in ("<\xfc \u6f22\u5b57 \U0001d11e>", "/" + "long/" * 1000 + "file.py", "\udc80.py", "", "ab\x00\u0439"):
        code = (lambda: check()).__code__.replace(co_filename=file)
        if "\x00" not in file:
            types.FunctionType(code, globals())()
    long = dict.fromkeys(("co_name", "co_qualname")[: 2 if sys.version_info >= (3, 11) else 1], "f" + "\xe9" * 3000)
    types.FunctionType((lambda: check()).__code__.replace(**long), globals())()


class Name(str):
    """A subclass of str. Its instances store their characters in another place than a plain str."""


@scenario
def subclassed_names() -> None:
    """A code object with a file name of a subclass of str."""
    code = (lambda: check()).__code__.replace(co_filename=Name("subclass.py"))
    types.FunctionType(code, globals())()


LONG_FUNCTION = (
    "def f(a):\n" + "".join(f"  if a == {i}: check()\n" for i in range(3000)) + "for i in (0, 1, 2998, 2999): f(i)\n"
)


@scenario
def lines() -> None:
    """Large distances between lines, long functions, and instructions without a line."""
    exec("\n" * 70000 + "check()", {"check": check})
    exec(LONG_FUNCTION, {"check": check})
    backwards = "(\n" * 100 + "check()" + "\n)" * 100
    exec(backwards, {"check": check})
    code = (lambda: check()).__code__
    types.FunctionType(code.replace(co_filename="other.py", co_firstlineno=77), globals())()
    if sys.version_info >= (3, 11):
        without_lines = bytes([0x80 | 15 << 3 | 7] * 8)
        types.FunctionType(code.replace(co_linetable=without_lines), globals())()


@scenario
def module_level() -> None:
    """Code of modules, classes and expressions."""
    exec("class A:\n  check()\n  class B:\n    check()\n", {"check": check, "__name__": "module"})
    eval("[check() for _ in 'ab']", {"check": check})
    eval("(lambda: check())()", {"check": check})


_deaths = random.Random(1)
_addresses: dict[int, int] = {}
reused = 0


@scenario
def dying_code() -> None:
    """Code objects that are freed, and others of the same shape that get their addresses."""
    global reused
    for _ in range(60):
        number = _deaths.randrange(10**9)
        text = "\n" * _deaths.randrange(50) + f"def f{number}():\n check(capture)\nf{number}()"
        variables = {"check": check, "capture": _deaths.choice((free, held)).stacks_capture}
        exec(compile(text, f"<file{number:09d}>", "exec"), variables)
        address = id(variables[f"f{number}"].__code__)
        reused += _addresses.get(address, number) != number
        _addresses[address] = number


@scenario
def dying_code_on_threads() -> None:
    """As in ``dying_code``, on two threads. Each thread has to forget freed objects of the other one."""
    threads = [threading.Thread(target=dying_code) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# ---- the interpreter's hooks ----


@scenario
def tracers() -> None:
    """Functions of sys.settrace() and sys.setprofile() that capture stacks, and traced code that captures them."""

    def traced(x: int) -> int:
        y = x + 1
        check()
        return y

    def tracer(frame: types.FrameType, event: str, argument: object) -> Any:
        if frame.f_code is traced.__code__:
            check()
        return tracer

    def profiler(frame: types.FrameType, event: str, argument: object) -> None:
        if frame.f_code is traced.__code__ and event in ("call", "return"):
            check()

    before = sys.gettrace()
    sys.settrace(tracer)
    traced(1)
    sys.settrace(before)
    sys.setprofile(profiler)
    traced(1)
    sys.setprofile(None)


@scenario
def jumps() -> None:
    """A tracer that sets the line of a frame."""

    def jumping() -> None:
        check()
        require(False, "the tracer did not jump")
        check()

    def tracer(frame: types.FrameType, event: str, argument: object) -> Any:
        if frame.f_code is jumping.__code__ and event == "line" and frame.f_lineno == first + 2:
            frame.f_lineno = first + 3
            check()
        return tracer

    first = jumping.__code__.co_firstlineno
    before = sys.gettrace()
    sys.settrace(tracer)
    jumping()
    sys.settrace(before)


@scenario
def python_signal_handlers() -> None:
    """Python signal handlers, which run between two instructions."""
    done = threading.Event()

    def handler(number: int, frame: object) -> None:
        both()
        done.set()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005)
    count = 0
    while not done.is_set():
        count += 1
    signal.signal(signal.SIGALRM, before)


# ---- threads ----


@scenario
def threads() -> None:
    """Threads that capture stacks at the same time, at different depths."""

    def worker(seed: int) -> None:
        choice = random.Random(seed)

        def first(depth: int) -> object:
            return second(depth - 1) if depth else both()

        def second(depth: int) -> object:
            return first(depth - 1) if depth else both()

        for _ in range(20):
            choice.choice((first, second))(choice.randrange(40))

    workers = [threading.Thread(target=worker, args=(i,)) for i in range(8)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()


@scenario
def threads_of_c() -> None:
    """A thread that Python does not know has no stack. It has one during a callback into Python, and none
    afterwards."""
    require(free.stacks_capture_on_c_thread() == 0, "a thread of C had a stack")
    agreed: list[bool] = []

    @pystacks.ctypes.CFUNCTYPE(None)
    def called_back() -> None:
        agreed.append(both())

    after = free.stacks_call_on_c_thread(pystacks.ctypes.cast(called_back, pystacks.ctypes.c_void_p))
    require(after == 0, "a thread of C had a stack after its call back")
    require(len(agreed) == 1, "the thread of C did not call back")


@scenario
def released_lock() -> None:
    """A thread captures stacks without the interpreter's lock, while others run, create and free code."""
    stop = pystacks.ctypes.c_int(0)
    numbers = pystacks.ctypes.c_uint32()

    def churn() -> None:
        while not stop.value:
            exec(compile("def q(x):\n return x\nq(1)", "<churn>", "exec"), {})

    def finish() -> None:
        time.sleep(0.02)
        stop.value = 1

    others = [threading.Thread(target=function) for function in (churn, churn, finish)]
    for thread in others:
        thread.start()
    references = (pystacks.ctypes.byref(stop), pystacks.ctypes.byref(numbers))
    number, frame = free.stacks_capture_until(*references), sys._getframe()
    for thread in others:
        thread.join()
    got = pystacks.read(number)
    want = pystacks.frames_of(frame)
    require(bool(got) and got[1:] == want[1:] and got[0][:2] == want[0][:2], f"without the lock: {got[:3]}")


# ---- running ----


def run(captures: int, only: list[str]) -> dict[str, Any]:
    """Run the scenarios until there are ``captures`` captures."""
    pystacks.start()
    chosen = {name: function for name, function in SCENARIOS.items() if not only or name in only}
    done: dict[str, int] = dict.fromkeys(chosen, 0)
    start = time.monotonic()
    while pystacks.checked < captures or not all(done.values()):
        for name, function in chosen.items():
            before = pystacks.checked
            function()
            done[name] += pystacks.checked - before or 1
    return {
        "python": platform.python_version(),
        "captures": pystacks.checked,
        "wrong": len(pystacks.wrong),
        "empty": pystacks.empty,
        "examples": pystacks.wrong[:5],
        "scenarios": done,
        "results": pystacks.results(),
        "deaths": int(free.stacks_epoch()),
        "addresses_reused": reused,
        "seconds": round(time.monotonic() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--captures", type=int, default=1_000_000, help="captures in each interpreter")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--only", nargs="+", default=[], choices=SCENARIOS, help="scenarios")
    arguments = parser.parse_args()
    if pystacks.free is not None:
        result = run(arguments.captures, arguments.only)
        print(json.dumps(result), flush=True)
        sys.exit(bool(result["wrong"] or result["empty"]))
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYSTACKS_LIBRARY": str(pystacks.build(Path(folder)))}
        command = [str(Path(__file__).resolve()), "--captures", str(arguments.captures)]
        if arguments.only:
            command += ["--only", *arguments.only]
        status = [subprocess.run([python, *command], env=environment).returncode for python in arguments.python]
    sys.exit(any(status))


if __name__ == "__main__":
    main()
