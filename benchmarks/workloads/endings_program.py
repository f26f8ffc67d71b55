"""The programs that endings.py records, each with a different ending: ``endings_program.py NAME``.

ENDINGS_LIBRARY is the library of native/endings_work.cpp, which counts its calls. ENDINGS_FOLDER is a folder for files
of the program. Python's multiprocessing imports this module again, so importing it must have no effect.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def work() -> ctypes.CDLL:
    return ctypes.CDLL(os.environ["ENDINGS_LIBRARY"])


def start() -> None:
    if status := work().work_start():
        raise SystemExit(f"cuInit or what follows: CUresult {status}")


def both(count: int) -> None:
    """Make as many launches as ranges. Returns when the GPU has finished them."""
    if status := work().work_launch(count) or work().work_synchronize():
        raise SystemExit(f"cuLaunchKernel or cuCtxSynchronize: CUresult {status}")
    work().work_ranges(count)


def fork(child: Callable[[], None]) -> None:
    """Run ``child`` in a forked child that ends through sys.exit, and wait for it."""
    pid = os.fork()
    if pid == 0:
        work().work_role(b"forked child")
        child()
        sys.exit(0)
    if (status := os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])) != 0:
        raise SystemExit(f"the child ended with {status}")


# Endings of one process


def normal() -> None:
    start()
    both(1000)


def without_handlers() -> None:
    start()
    both(1000)
    os._exit(0)


def busy() -> None:
    """Start a thread that launches until the end."""
    start()
    both(100)
    work().work_in_background()
    time.sleep(1)


def by_signal(number: signal.Signals) -> None:
    busy()
    os.kill(os.getpid(), number)
    time.sleep(10)


def segfault() -> None:
    busy()
    ctypes.string_at(0)


def abort() -> None:
    busy()
    os.abort()


def launching_at_exit() -> None:
    busy()


def many_threads() -> None:
    start()
    work().work_threads(64, 200)


# Forks


def fork_first() -> None:
    fork(normal)
    normal()


def fork_after_nvtx() -> None:
    work().work_ranges(100)
    fork(normal)
    normal()


def fork_after_cuda() -> None:
    normal()
    fork(lambda: work().work_ranges(100))
    both(100)


def fork_after_cuda_without_handlers() -> None:
    def child() -> None:
        work().work_ranges(100)
        os._exit(0)

    normal()
    fork(child)
    both(100)


def fork_uses_cuda() -> None:
    """Use CUDA in a forked child. CUDA forbids this, so the launch fails, and the child continues."""

    def child() -> None:
        work().work_launch(100)
        work().work_ranges(100)

    normal()
    fork(child)
    both(100)


def own_files(first: int) -> None:
    for name in ("a", "b", "c"):
        with (Path(os.environ["ENDINGS_FOLDER"]) / f"own-{name}").open("a") as file:
            file.writelines(f"line {number}\n" for number in range(first, first + 100))


def closed_descriptors() -> None:
    """Use NVTX, then close all descriptors and open others with the same numbers, then use CUDA."""
    work().work_ranges(100)
    os.closerange(3, 65536)
    held = [(Path(os.environ["ENDINGS_FOLDER"]) / f"held-{number}").open("w") for number in range(20)]
    own_files(0)
    time.sleep(0.5)
    start()
    both(1000)
    time.sleep(1)
    own_files(100)
    for file in held:
        file.write("held\n")
        file.close()


def daemon() -> None:
    """Use NVTX, then fork twice to become a daemon, which closes all descriptors and continues."""
    work().work_ranges(100)
    done = Path(os.environ["ENDINGS_FOLDER"]) / "daemon"

    def begin() -> None:
        os.setsid()
        if os.fork():
            os._exit(0)
        work().work_role(b"daemon")
        os.closerange(3, 65536)
        own_files(0)
        start()
        both(1000)
        time.sleep(0.3)
        own_files(100)
        done.write_text(str(os.getpid()))

    fork(begin)
    for _ in range(300):
        if done.is_file() and not _runs(done.read_text()):
            return
        time.sleep(0.1)
    raise SystemExit("the daemon did not end")


def _runs(pid: str) -> bool:
    try:
        return not pid or Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Other programs


def execute() -> None:
    normal()
    os.execv(sys.executable, [sys.executable, __file__, "normal"])


def spawn() -> None:
    normal()
    subprocess.run([sys.executable, __file__, "normal"], check=True)


def _ranges(count: int) -> None:
    work().work_role(b"worker")
    work().work_ranges(count)
    time.sleep(0.02)  # enough calls, so that all workers get some


def _use_cuda() -> None:
    work().work_role(b"worker")
    start()


def _both(count: int) -> None:
    both(count)
    time.sleep(0.02)


def pool(method: str) -> None:
    """Fork workers that use NVTX only, since the parent uses CUDA."""
    normal()
    forked = method == "fork"
    workers = multiprocessing.get_context(method).Pool(4, initializer=None if forked else _use_cuda)
    workers.map(_ranges if forked else _both, [100] * 16, chunksize=1)
    workers.close()
    workers.join()


PROGRAMS: dict[str, Callable[[], None]] = {
    "normal": normal,
    "os._exit": without_handlers,
    "SIGKILL": lambda: by_signal(signal.SIGKILL),
    "SIGTERM": lambda: by_signal(signal.SIGTERM),
    "SIGSEGV": segfault,
    "abort": abort,
    "launching at exit": launching_at_exit,
    "64 threads": many_threads,
    "fork first": fork_first,
    "fork after NVTX": fork_after_nvtx,
    "fork after CUDA": fork_after_cuda,
    "fork after CUDA, child leaves by os._exit": fork_after_cuda_without_handlers,
    "fork after CUDA, child tries CUDA": fork_uses_cuda,
    "closed descriptors": closed_descriptors,
    "daemon": daemon,
    "exec": execute,
    "spawn": spawn,
    "pool: fork": lambda: pool("fork"),
    "pool: spawn": lambda: pool("spawn"),
    "pool: forkserver": lambda: pool("forkserver"),
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
