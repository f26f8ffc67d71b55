"""The CUDA driver and the CUPTI libraries of this machine. Nothing here initialises CUDA."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_CUDA_NOT_INITIALIZED = 3
#: CUDA major versions of CUPTI libraries, by preference.
_MAJORS = (13, 12)


def loaded(soname: str) -> ctypes.CDLL | None:
    """A library that this process has loaded; None if it is not loaded."""
    try:
        return ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def driver() -> ctypes.CDLL | None:
    """libcuda, loaded but not initialised; None on a machine without the driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_version() -> int | None:
    """The CUDA version of the driver as CUDA counts it (13000 for 13.0), None without a driver."""
    library = driver()
    version = ctypes.c_int()
    if library is None or library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value


def initialised() -> bool:
    """Whether this process has initialised CUDA."""
    library = loaded("libcuda.so.1")
    count = ctypes.c_int()
    return (
        library is not None
        and library.cuDeviceGetCount(ctypes.byref(count)) != _CUDA_NOT_INITIALIZED
    )


def cupti_in_process() -> Path | None:
    """The libcupti that this process has loaded."""
    if not any(loaded(f"libcupti.so.{major}") for major in _MAJORS):
        return None
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            _, slash, rest = line.rstrip("\n").partition("/")
            if "/libcupti.so" in slash + rest:
                return Path(slash + rest)
    return None


def cupti_libraries() -> dict[Path, int]:
    """All libcupti copies of wheels, toolkits and conda, with their CUDA major version, in order of preference."""
    libraries: dict[Path, tuple[Path, int]] = {}
    for path in _installed():
        match = re.fullmatch(r"libcupti\.so\.(\d+)", path.name)
        if match:
            libraries.setdefault(path.resolve(), (path, int(match[1])))
    return dict(libraries.values())


def find_cupti() -> Path | None:
    """The libcupti to load into a program that has loaded none. None if the driver supports none."""
    libraries = cupti_libraries()
    version = driver_version()
    newest = version // 1000 if version else max(_MAJORS)
    usable = [path for path, major in libraries.items() if major <= newest]
    if usable:
        return max(usable, key=libraries.__getitem__)
    if libraries or version is None:
        return None
    return _by_pathfinder()


def nvperf_host(cupti: Path) -> Path:
    """The path of the library that a libcupti loads for hardware metrics, in the same folder."""
    return cupti.resolve().parent / "libnvperf_host.so"


def version_text(version: int | None) -> str:
    """``13.0`` of 13000."""
    if not version:
        return "unknown"
    return f"{version // 1000}.{version % 1000 // 10}"


def cupti_version_text(version: int | None) -> str:
    """``13.0`` of 130000. Versions before 13.0 are small numbers: 26 is ``API 26``."""
    if not version:
        return "unknown"
    if version >= 10000:
        return f"{version // 10000}.{version % 10000 // 100}"
    return f"API {version}"


def _installed() -> Iterator[Path]:
    for entry in map(Path, sys.path):
        yield from sorted(entry.glob("nvidia/*/lib/libcupti.so.*"), reverse=True)
    roots = [
        os.environ[name]
        for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")
        if os.environ.get(name)
    ]
    for root in map(Path, (*roots, "/usr/local/cuda")):
        for folder in ("extras/CUPTI/lib64", "lib64", "lib"):
            yield from sorted((root / folder).glob("libcupti.so.*"), reverse=True)


def _by_pathfinder() -> Path | None:
    """The libcupti that cuda.pathfinder finds. It searches more folders, but loads the library into this process."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        return Path(load_nvidia_dynamic_lib("cupti").abs_path or "")
    except Exception:
        # cuda.pathfinder has many exception classes. All mean that there is no library.
        return None
