"""The checks of ``cutrace doctor``: whether this machine can record, and advice if it cannot."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..errors import CutraceError
from ..interpreter import module_command
from . import cuda, environment, surroundings
from .library import collector, collector_path
from .options import Options, completed

_TRIAL_SECONDS = 120
_OLDEST_DRIVER = 12000


@dataclass(frozen=True)
class Check:
    """One check: its result (``finding``) and, unless the status is ``ok``, the next step (``advice``)."""

    name: str
    status: Literal["ok", "warning", "problem"]
    finding: str
    advice: str = ""


@dataclass(frozen=True)
class Trial:
    """The result of recording :mod:`.probe`: the output of the probe, and the contents of its capture."""

    devices: tuple[str, ...] = ()
    gpu_error: str = "the trial did not run"
    nvtx_error: str = "the trial did not run"
    memsets: int = 0
    marks: int = 0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> str:
        return "; ".join(map(str, self.info.get("notes") or ()))


def run_checks() -> tuple[Check, ...]:
    """All checks, in the order in which a capture depends on them. Some run a small program."""
    library = _collector()
    if library.status == "problem":
        return (library,)
    trial = run_trial()
    return (
        library,
        _driver(),
        *_gpu(trial),
        *_cupti(),
        _injection(),
        *_sharing(trial),
        *_permissions(trial),
        *_counters(),
        _nvtx(trial),
        _capture(trial),
    )


def can_record(checks: tuple[Check, ...]) -> bool:
    """Whether GPU work can be recorded here."""
    return all(check.status != "problem" for check in checks)


def run_trial() -> Trial:
    """Record :mod:`.probe` in a new process."""
    with tempfile.TemporaryDirectory(prefix="cutrace.") as folder:
        variables = environment.injection(completed(Options(api="all")), Path(folder))
        try:
            done = subprocess.run(
                module_command("cutrace.collect.probe"),
                env={**os.environ, **variables},
                capture_output=True,
                text=True,
                timeout=_TRIAL_SECONDS,
            )
            output = json.loads(done.stdout)
        except subprocess.TimeoutExpired:
            return Trial(gpu_error=f"the trial did not end within {_TRIAL_SECONDS} s")
        except ValueError:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            return Trial(
                gpu_error=f"the trial ended with status {done.returncode}: {last}"
            )
        return Trial(
            tuple(output["devices"]),
            output["error"],
            output["nvtx"],
            *_contents(Path(folder)),
        )


def _contents(folder: Path) -> tuple[int, int, dict[str, Any]]:
    """The counts of memory fills and marks in the capture of a folder, and the description of its process."""
    from ..trace import load

    part = next((part for part in folder.glob("*.bin") if part.stat().st_size), None)
    if part is None:
        return 0, 0, {}
    with load(part) as trace:
        return (
            trace.count("memsets"),
            trace.count("nvtx_marks"),
            trace.processes[0].info,
        )


def _collector() -> Check:
    try:
        return Check("collector", "ok", f"{collector().version} in {collector_path()}")
    except CutraceError as error:
        message, _, advice = str(error).partition(": ")
        return Check("collector", "problem", message, advice)


def _driver() -> Check:
    version = cuda.driver_version()
    if version is None:
        return Check(
            "driver",
            "problem",
            "there is no NVIDIA driver (libcuda.so.1)",
            "install the driver; in a container, start it with access to the GPU (docker run --gpus all)",
        )
    release = ""  # the driver's own version, such as 580.65.06
    with suppress(OSError):
        release = Path("/sys/module/nvidia/version").read_text().strip() + ", "
    finding = f"{release}CUDA {cuda.version_text(version)}"
    if version < _OLDEST_DRIVER:
        return Check(
            "driver",
            "problem",
            finding,
            "update the driver: CUDA 12.0 (525) or newer is needed",
        )
    return Check("driver", "ok", finding)


def _gpu(trial: Trial) -> Iterator[Check]:
    if trial.devices:
        yield Check("GPU", "ok", ", ".join(trial.devices))
    elif "NO_DEVICE" in trial.gpu_error:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is None:
            advice = "run nvidia-smi"
        else:
            advice = f"CUDA_VISIBLE_DEVICES is {hidden!r}: unset it"
        yield Check("GPU", "problem", "the driver shows no GPU", advice)
    elif cuda.driver_version() is not None:
        advice = "run nvidia-smi and read the kernel log"
        yield Check("GPU", "problem", f"no GPU can be used ({trial.gpu_error})", advice)


def _cupti() -> Iterator[Check]:
    version = cuda.driver_version()
    path = cuda.find_cupti()
    libraries = cuda.cupti_libraries()
    if version is None or version >= 13000:
        wheel = "nvidia-cuda-cupti"
    else:
        wheel = "nvidia-cuda-cupti-cu12"
    if path is None and not libraries:
        yield Check("libcupti", "problem", "not found", f"pip install {wheel}")
        return
    others = ", ".join(
        str(other)
        for other in libraries
        if path is None or other.resolve() != path.resolve()
    )
    if path is not None:
        if others:
            more = f"; others, used only if the program loads them itself: {others}"
        else:
            more = ""
        yield Check("libcupti", "ok", f"{path}{more}")
        if version is not None:
            yield _versions(path, version)
    elif version is not None:
        finding = (
            f"the driver (CUDA {cuda.version_text(version)}) is older than {others}"
        )
        yield Check("versions", "problem", finding, f"pip install {wheel}")


def _versions(path: Path, driver_version: int) -> Check:
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return Check(
            "versions", "problem", f"libcupti cannot be loaded: {error}", "reinstall it"
        )
    number = ctypes.c_uint32()
    library.cuptiGetVersion(ctypes.byref(number))
    ours = cuda.cupti_version_text(number.value)
    theirs = cuda.version_text(driver_version)
    return Check(
        "versions", "ok", f"CUPTI {ours} works with the driver's CUDA {theirs}"
    )


def _injection() -> Check:
    others = environment.others(os.environ)
    active = surroundings.tools(os.environ)
    if not others and not active:
        return Check(
            "other tools", "ok", "no other tool has set the injection variables"
        )
    findings = [f"{name} is set to {library}" for name, library in others.items()]
    findings += [
        f"this process runs under {tool.name} ({', '.join(signs)})"
        for tool, signs in active
    ]
    advice = [tool.advice for tool, _ in active]
    if others:
        advice.append(
            "`cutrace record` replaces it; unset it to use cutrace from inside a program"
        )
    return Check("other tools", "warning", "; ".join(findings), "; ".join(advice))


#: Findings on a part of a GPU, with advice.
_PARTS = {
    "MIG": (
        "the GPU is a MIG instance: other instances run beside it unseen",
        "record on an instance that has all compute slices of its GPU instance, or ask the administrator to turn "
        "MIG off for this GPU (nvidia-smi -mig 0)",
    ),
    "vGPU": (
        "the GPU is virtual, and the hypervisor may share it",
        "ask the administrator of the hypervisor to allow it for this virtual machine (the vGPU parameter "
        "enable_profiling=1, with a driver of the same release on both sides)",
    ),
}


def _sharing(trial: Trial) -> Iterator[Check]:
    """The checks of a shared or divided GPU; none for another GPU."""
    recorded = bool(trial.memsets)
    daemon = surroundings.mps(os.environ)
    if daemon is not None:
        finding = f"CUDA programs here are clients of the MPS daemon in {daemon}"
        advice = (
            "run the program outside MPS: CUDA_MPS_PIPE_DIRECTORY=/nowhere cutrace record ..., or end the daemon "
            "(echo quit | nvidia-cuda-mps-control)"
        )
        yield _shared("MPS", finding, advice, recorded)
    part = surroundings.divided(trial.devices, os.environ)
    if part:
        finding, advice = _PARTS[part]
        yield _shared(part, finding, advice, recorded)


def _shared(name: str, finding: str, advice: str, recorded: bool) -> Check:
    if recorded:
        return Check(name, "ok", f"{finding}; recording works")
    return Check(name, "warning", f"{finding}, and work on it was not recorded", advice)


def _permissions(trial: Trial) -> Iterator[Check]:
    control = Path("/dev/nvidiactl")
    if not trial.devices and not control.exists():
        return  # Without a GPU there is no device to open.
    yield _permission(trial, control)


def _permission(trial: Trial, control: Path) -> Check:
    if control.exists() and not os.access(control, os.R_OK | os.W_OK):
        advice = "join the group that owns it, or ask for access"
        return Check("permissions", "problem", f"no access to {control}", advice)
    if "PRIVILEGE" in trial.notes.upper():
        if surroundings.may_administrate():
            advice = "see troubleshooting in the documentation of cutrace"
        else:
            advice = _getting_privileges()
        return Check(
            "permissions",
            "warning",
            f"the driver refuses a part of the recording: {trial.notes}",
            advice,
        )
    return Check("permissions", "ok", "the driver refuses nothing")


def _getting_privileges() -> str:
    if surroundings.in_container():
        advice = "start the container with --cap-add SYS_ADMIN, or have the host's driver allow it to all users"
    else:
        advice = "run it as root, or have the driver allow it to all users"
    if surroundings.counters_restricted():
        advice += " (module option nvidia NVreg_RestrictProfilingToAdminUsers=0; RmProfilingAdminOnly is 1 now)"
    return advice


def _counters() -> Iterator[Check]:
    """Whether hardware metrics can be read; no check without a driver or libcupti."""
    path = cuda.find_cupti()
    if path is None or cuda.driver_version() is None:
        return
    needless = "recording needs no counters; hardware metrics do"
    refused = counters_refused()
    if refused:
        finding, advice = refused
        yield Check("counters", "warning", f"{finding}; {needless}", advice)
    elif not cuda.nvperf_host(path).exists():
        finding = f"{cuda.nvperf_host(path).name} is not beside {path}; {needless}"
        yield Check(
            "counters",
            "warning",
            finding,
            "install all of CUPTI: pip install nvidia-cuda-cupti",
        )
    elif surroundings.dcgm():
        finding = "this user may read the GPU's counters; DCGM runs here and holds the counters while it profiles"
        yield Check("counters", "ok", finding)
    else:
        yield Check("counters", "ok", "this user may read the GPU's counters")


def counters_refused() -> tuple[str, str] | None:
    """A known reason why counters of the GPU cannot be read here, and the advice; None if there is no such reason."""
    if surroundings.counters_restricted() and not surroundings.may_administrate():
        return (
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM)",
            _getting_privileges(),
        )
    if surroundings.mps(os.environ) is not None:
        advice = (
            "run the program outside MPS: CUDA_MPS_PIPE_DIRECTORY=/nowhere cutrace ..."
        )
        return "clients of MPS cannot read the GPU's counters", advice
    return None


def _nvtx(trial: Trial) -> Check:
    if trial.marks:
        return Check("NVTX", "ok", "a mark went through the collector into a capture")
    reason = trial.nvtx_error or trial.notes or "the mark is not in the capture"
    return Check(
        "NVTX",
        "problem",
        f"a mark was not recorded: {reason}",
        "see troubleshooting in the documentation of cutrace",
    )


def _capture(trial: Trial) -> Check:
    if trial.gpu_error:
        return Check(
            "capture",
            "problem",
            "no GPU work could be recorded",
            "solve the problems above",
        )
    if trial.memsets:
        version = cuda.cupti_version_text(trial.info.get("cupti_version"))
        path = trial.info.get("cupti_path")
        return Check(
            "capture",
            "ok",
            f"work on the GPU was recorded with CUPTI {version} ({path})",
        )
    reason = trial.notes or "its memory fill is not in the capture"
    return Check(
        "capture",
        "problem",
        f"work on the GPU was not recorded: {reason}",
        "see troubleshooting in the documentation of cutrace",
    )
