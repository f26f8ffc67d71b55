"""The fake driver: libraries that replace libcuda and libcupti. They are built once, and kept under the hash of their
sources.

A program that is started with :meth:`FakeDriver.environment` finds them in place of the real ones, and controls the GPU
by ``import fakegpu``.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests" / "native"
_LIBRARIES = {
    "libcupti.so.13": ("fake_cupti.cpp", "fake_pc_sampling.cpp", "fake_profiler.cpp"),
    "libcheckpoint.so": ("fake_checkpoint.cpp",),
    "libcuda.so.1": ("fake_driver.cpp", "fake_device_memory.cpp"),
    "libfaults.so": ("fake_system.cpp",),  # for LD_PRELOAD: see tests/faults
}
_FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-DCUPTILIB_EXPORTS", "-pthread")


class MissingTools(Exception):
    """This machine lacks a tool or header for the build of the fake driver."""


@dataclass(frozen=True)
class FakeDriver:
    """The built fake driver. ``directory`` looks like a folder of site-packages with NVIDIA's wheels."""

    directory: Path

    @property
    def libraries(self) -> Path:
        return self.directory / "nvidia" / "cu13" / "lib"

    def environment(self, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The variables of a program that runs on the fake GPU and can ``import fakegpu``."""
        out = dict(environment)
        for name, folders in {
            "LD_LIBRARY_PATH": (self.libraries,),
            "PYTHONPATH": (self.directory, Path(__file__).parent),
        }.items():
            out[name] = os.pathsep.join([*map(str, folders), *filter(None, [environment.get(name)])])
        return out


def build(cache: Path) -> FakeDriver:
    """Return the fake driver in ``cache``, and build it first if necessary. One of several processes builds it, and the
    others wait.

    Raises :class:`MissingTools` if there is no C++ compiler, or there are no CUDA and CUPTI headers.
    """
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        raise MissingTools("needs a C++ compiler")
    headers = _run(sys.executable, ROOT / "cmake" / "find_headers.py")
    if headers.returncode:
        raise MissingTools(
            "needs the CUDA and CUPTI headers: pip install nvidia-cuda-runtime nvidia-cuda-cupti nvidia-nvtx"
        )
    includes = headers.stdout.strip().split(";")
    directory = cache / _key(compiler, includes)
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        import fcntl  # Windows lacks it, but uses the rest of this module

        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.is_dir():
            _compile(compiler, includes, directory)
    return FakeDriver(directory)


def _compile(compiler: str, includes: list[str], directory: Path) -> None:
    made = FakeDriver(Path(tempfile.mkdtemp(dir=directory.parent)))
    try:
        made.libraries.mkdir(parents=True)
        names = made.directory / "include"
        names.mkdir()
        _must(sys.executable, NATIVE / "callback_names.py", names / "callback_names.h", *includes)
        folders = [f"-I{ROOT / 'src' / 'cutrace' / 'native'}", f"-I{names}", *(f"-isystem{f}" for f in includes)]
        for library, names_of_sources in _LIBRARIES.items():
            output = ["-o", made.libraries / library, f"-Wl,-soname,{library}"]
            sources = [NATIVE / name for name in names_of_sources]
            _must(compiler, *_FLAGS, *folders, *sources, *output, "-ldl")
        made.directory.rename(directory)
    except BaseException:
        shutil.rmtree(made.directory, ignore_errors=True)
        raise


def _key(compiler: str, includes: list[str]) -> str:
    sources = [*NATIVE.glob("fake_*"), NATIVE / "callback_names.py", Path(__file__)]
    sources.append(ROOT / "src" / "cutrace" / "native" / "cuda" / "cupti_library.h")
    sources += [path for folder in includes for path in [Path(folder) / "cupti_version.h"] if path.is_file()]
    digest = hashlib.sha256("\0".join([compiler, *_FLAGS]).encode())
    for source in sorted(sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)


def _must(*command: str | Path) -> None:
    done = _run(*command)
    if done.returncode:
        raise RuntimeError(
            f"the fake driver does not build:\n{' '.join(map(str, command))}\n{done.stdout}{done.stderr}"
        )
