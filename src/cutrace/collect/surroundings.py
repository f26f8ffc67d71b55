"""Conditions that keep CUPTI from recording: other tools, shared and divided GPUs, missing privileges.

The conditions are read from the environment, ``/proc`` and the result of a trial recording, not from CUDA or CUPTI.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SYS_ADMIN = 21  # bit of CAP_SYS_ADMIN
# The name of a GPU that a hypervisor shares, such as GRID T4-16Q and NVIDIA A40-48C.
_VIRTUAL_GPU = re.compile(r"\b(GRID|vGPU)\b|\b[A-Z][A-Z0-9]*(-\d+)?-\d+[ABCQ]$")


@dataclass(frozen=True)
class Tool:
    """A tool that uses CUPTI or the driver's debugger interface.

    :param variables: prefixes of the environment variables that it sets for its programs.
    :param libraries: parts of the names of the libraries that it injects.
    :param tracers: names of the process that traces its programs (ptrace).
    """

    name: str
    advice: str
    variables: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    tracers: tuple[str, ...] = ()

    def injects(self, library: str) -> bool:
        """Whether the tool injects a library of this name."""
        return any(part in library for part in self.libraries)


TOOLS = (
    Tool(
        "Nsight Systems",
        "run without nsys: it holds CUPTI while its programs run",
        variables=("NSYS_", "QUADD_INJECTION"),
        libraries=("libToolsInjection", "libnsys"),
    ),
    Tool(
        "Nsight Compute",
        "run without ncu: it runs kernels one by one and several times, so their times would be wrong",
        variables=("NV_NSIGHT_", "NV_TPS_", "NV_COMPUTE_PROFILER_"),
        libraries=(
            "libnv-nsight-compute",
            "libcuda-injection",
            "libTreeLauncher",
            "libInterceptorInjection",
        ),
    ),
    Tool(
        "compute-sanitizer",
        "run without compute-sanitizer: it changes the code that runs on the GPU",
        variables=("NV_SANITIZER_",),
        libraries=("libsanitizer-collection", "libsanitizer-public"),
    ),
    Tool(
        "cuda-gdb",
        "run without the debugger: CUPTI refuses programs that are debugged on the GPU",
        variables=("CUDBG_", "CUDA_DEBUGGER_"),
        libraries=("libcudadebugger",),
        tracers=("cuda-gdb", "cuda-gdb-minimal"),
    ),
)


def tools(
    environment: Mapping[str, str], proc: Path = Path("/proc")
) -> list[tuple[Tool, list[str]]]:
    """The tools that injected libraries into this process or trace it, each with its signs.

    :param proc: the folder of ``self/maps`` and ``self/status``.
    """
    libraries = sorted(_libraries(environment, proc))
    tracer = _tracer(proc)
    active = []
    for tool in TOOLS:
        signs = [name for name in environment if name.startswith(tool.variables)]
        signs += [name for name in libraries if tool.injects(name)]
        if tracer in tool.tracers:
            signs.append(f"traced by {tracer}")
        if signs:
            active.append((tool, signs))
    return active


def _libraries(environment: Mapping[str, str], proc: Path) -> set[str]:
    """The names of the files that this process has mapped, or loads by its environment."""
    names = set()
    for line in _read(proc / "self" / "maps").splitlines():
        _, slash, name = line.rpartition("/")
        if slash:
            names.add(name)
    for variable in ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH"):
        paths = environment.get(variable, "").replace(":", " ")
        names.update(Path(path).name for path in paths.split(" ") if path)
    return names


def _tracer(proc: Path) -> str:
    """The name of the process that traces this one, "" for none."""
    pid = re.search(
        r"^TracerPid:\s*([1-9]\d*)", _read(proc / "self" / "status"), re.MULTILINE
    )
    if pid:
        return _read(proc / pid[1] / "comm").strip()
    return ""


def mps(
    environment: Mapping[str, str], default: Path = Path("/tmp/nvidia-mps")
) -> Path | None:
    """The folder of the MPS daemon that serves CUDA programs of this user; None without one."""
    folder = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY") or default)
    if (folder / "control").exists():
        return folder
    return None


def divided(devices: tuple[str, ...], environment: Mapping[str, str]) -> str:
    """``MIG`` or ``vGPU`` for a part of a GPU, "" for a whole GPU.

    :param devices: names from the driver.
    """
    if environment.get("CUDA_VISIBLE_DEVICES", "").startswith("MIG-"):
        return "MIG"
    if any("MIG" in name.split() for name in devices):
        return "MIG"
    if any(_VIRTUAL_GPU.search(name) for name in devices):
        return "vGPU"
    return ""


def counters_restricted(proc: Path = Path("/proc")) -> bool:
    """Whether the driver lets only administrators read the GPU's counters."""
    return "RmProfilingAdminOnly: 1" in _read(proc / "driver" / "nvidia" / "params")


def may_administrate(proc: Path = Path("/proc")) -> bool:
    """Whether this process has CAP_SYS_ADMIN, the capability that the driver requires."""
    held = re.search(
        r"^CapEff:\s*([0-9a-fA-F]+)", _read(proc / "self" / "status"), re.MULTILINE
    )
    return held is not None and bool(int(held[1], 16) >> _SYS_ADMIN & 1)


def dcgm(proc: Path = Path("/proc")) -> bool:
    """Whether DCGM's engine runs on this machine: it holds the counters of a GPU while it profiles."""
    return any(
        _read(name).strip() == "nv-hostengine" for name in proc.glob("[0-9]*/comm")
    )


def in_container(root: Path = Path("/")) -> bool:
    """Whether this process seems to run in a container."""
    for mark in (".dockerenv", "run/.containerenv"):
        if (root / mark).exists():
            return True
    groups = _read(root / "proc" / "1" / "cgroup")
    return re.search("docker|containerd|kubepods|libpod|lxc", groups) is not None


def machine_identity(proc: Path = Path("/proc")) -> dict[str, str]:
    """The keys ``host`` and ``boot_id`` of a process description."""
    boot = _read(proc / "sys" / "kernel" / "random" / "boot_id")
    return {"host": socket.gethostname(), "boot_id": boot.strip()}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
