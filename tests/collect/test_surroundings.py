"""Obstacles in the environment of a program that prevent CUPTI from recording. The environments are fake."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.collect import checks, cuda, surroundings
from cutrace.collect.checks import Check, Trial

REFUSED = Trial(("NVIDIA H200",), "", "", 0, 1, {"notes": ["CUPTI refused to record kernel (NOT_SUPPORTED)"]})


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("TracerPid:\t0\nCapEff:\t0000000000000000\n")
    (tmp_path / "self" / "maps").write_text("7f00 r-xp 0 08:01 1 /usr/lib/libc.so.6\n")
    return tmp_path


@pytest.mark.parametrize(
    ("variables", "name", "sign"),
    [
        ({"NSYS_PROFILING_SESSION_ID": "1"}, "Nsight Systems", "NSYS_PROFILING_SESSION_ID"),
        ({"CUDA_INJECTION64_PATH": "/opt/nsys/libToolsInjection64.so"}, "Nsight Systems", "libToolsInjection64.so"),
        ({"NV_TPS_LAUNCH_TOKEN": "x"}, "Nsight Compute", "NV_TPS_LAUNCH_TOKEN"),
        ({"LD_PRELOAD": "/a/b.so:/ncu/libcuda-injection.so"}, "Nsight Compute", "libcuda-injection.so"),
        ({"NV_SANITIZER_INJECTION_PORT_BASE": "1"}, "compute-sanitizer", "NV_SANITIZER_INJECTION_PORT_BASE"),
        ({"CUDBG_APICLIENT_PID": "1"}, "cuda-gdb", "CUDBG_APICLIENT_PID"),
    ],
)
def test_a_tool_is_known_by_its_variables(proc: Path, variables: dict[str, str], name: str, sign: str) -> None:
    ((tool, signs),) = surroundings.tools(variables, proc)
    assert (tool.name, signs) == (name, [sign])


def test_a_tool_is_known_by_its_libraries_in_the_process(proc: Path) -> None:
    with (proc / "self" / "maps").open("a") as maps:
        maps.write("7f01 r-xp 0 08:01 2 /opt/cs/libsanitizer-collection.so\n")
    ((_, signs),) = surroundings.tools({}, proc)
    assert signs == ["libsanitizer-collection.so"]


def test_a_debugger_is_known_by_its_process(proc: Path) -> None:
    (proc / "self" / "status").write_text("TracerPid:\t77\n")
    (proc / "77").mkdir()
    for comm, names in (("cuda-gdb", ["cuda-gdb"]), ("strace", [])):
        (proc / "77" / "comm").write_text(comm + "\n")
        assert [tool.name for tool, _ in surroundings.tools({}, proc)] == names


def test_no_tool_is_found_where_there_is_none(proc: Path) -> None:
    environment = {
        "PATH": "/bin",
        "CUDA_INJECTION64_PATH": "/x/libcutrace_collector.so",
        "LD_PRELOAD": "libjemalloc.so",
    }
    assert surroundings.tools(environment, proc) == []


def test_an_mps_daemon_is_known_by_its_pipe(tmp_path: Path) -> None:
    assert surroundings.mps({}, tmp_path) is None
    (tmp_path / "control").touch()
    assert surroundings.mps({}, tmp_path) == tmp_path
    assert surroundings.mps({"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}, Path("/nowhere")) == tmp_path
    assert surroundings.mps({"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}, tmp_path) is None


@pytest.mark.parametrize(
    ("device", "visible", "part"),
    [
        ("NVIDIA H200", "0", ""),
        ("NVIDIA GeForce RTX 4090", "", ""),
        ("NVIDIA RTX A6000", "", ""),
        ("Tesla V100-SXM2-16GB", "", ""),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "", "MIG"),
        ("NVIDIA H100", "MIG-5f0a", "MIG"),
        ("GRID T4-16Q", "", "vGPU"),
        ("NVIDIA A40-48Q", "", "vGPU"),
        ("NVIDIA A100-1-5C", "", "vGPU"),
    ],
)
def test_parts_of_gpus_are_told_apart_from_whole_ones(device: str, visible: str, part: str) -> None:
    assert surroundings.divided((device,), {"CUDA_VISIBLE_DEVICES": visible}) == part


@pytest.mark.parametrize(
    ("device", "name", "advice"),
    [("NVIDIA H100 MIG 1g.10gb", "MIG", "nvidia-smi -mig 0"), ("NVIDIA A40-48Q", "vGPU", "enable_profiling=1")],
)
def test_a_part_of_a_gpu_that_cannot_be_recorded_says_what_to_do(device: str, name: str, advice: str) -> None:
    refused = Trial((device,), "", "", 0, 1)
    (check,) = checks._sharing(refused)
    assert (check.name, check.status) == (name, "warning")
    assert advice in check.advice
    (check,) = checks._sharing(Trial((device,), "", "", 1, 1))
    assert (check.name, check.status, check.advice) == (name, "ok", "")


def test_mps_is_a_warning_only_where_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (check,) = checks._sharing(REFUSED)
    assert (check.name, check.status) == ("MPS", "warning")
    assert str(tmp_path) in check.finding
    assert "nvidia-cuda-mps-control" in check.advice


@pytest.mark.parametrize(
    ("admin", "container", "restricted", "advice"),
    [
        (False, True, True, ("--cap-add SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0")),
        (False, False, False, ("run it as root",)),
        (True, True, False, ("troubleshooting",)),
    ],
)
def test_missing_privileges_are_explained(
    monkeypatch: pytest.MonkeyPatch, admin: bool, container: bool, restricted: bool, advice: tuple[str, ...]
) -> None:
    monkeypatch.setattr(surroundings, "may_administrate", lambda: admin)
    monkeypatch.setattr(surroundings, "in_container", lambda: container)
    monkeypatch.setattr(surroundings, "counters_restricted", lambda: restricted)
    notes = ["refused to record kernel (CUPTI_ERROR_INSUFFICIENT_PRIVILEGES)"]
    trial = Trial(("NVIDIA H200",), "", "", 0, 1, {"notes": notes})
    (check,) = checks._permissions(trial)
    assert check.status == "warning"
    assert all(part in check.advice for part in advice)


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine with readable counters. The function that it yields checks a machine with other properties."""
    library = tmp_path / "libcupti.so.13"
    library.touch()
    (tmp_path / "libnvperf_host.so").touch()
    monkeypatch.setattr(cuda, "find_cupti", lambda: library)
    monkeypatch.setattr(cuda, "driver_version", lambda: 13000)

    def check(*, restricted=False, admin=False, container=False, dcgm=False, mps=None) -> Check:
        for name, value in {
            "counters_restricted": restricted, "may_administrate": admin, "in_container": container, "dcgm": dcgm
        }.items():  # fmt: skip
            monkeypatch.setattr(surroundings, name, lambda value=value: value)
        monkeypatch.setattr(surroundings, "mps", lambda environment: mps)
        (found,) = checks._counters()
        return found

    return check


def test_restricted_counters_are_no_trouble_for_a_recording(counters, monkeypatch: pytest.MonkeyPatch) -> None:
    found = counters(restricted=True)
    assert found.status == "warning"
    assert "ERR_NVGPUCTRPERM" in found.finding
    assert "recording needs no counters" in found.finding
    assert found.advice.startswith("run it as root")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in found.advice
    assert "--cap-add SYS_ADMIN" in counters(restricted=True, container=True).advice
    (check,) = checks._permissions(Trial(("NVIDIA H200",), "", "", 1, 1))
    assert check.status == "ok"


def test_without_a_gpu_there_is_nothing_to_permit() -> None:
    if not Path("/dev/nvidiactl").exists():
        assert list(checks._permissions(Trial())) == []


def test_counters_can_be_read(counters) -> None:
    assert counters() == Check("counters", "ok", "this user may read the GPU's counters", "")
    assert counters(restricted=True, admin=True).status == "ok"
    assert "DCGM" in counters(dcgm=True).finding


def test_counters_need_the_library_beside_cupti_and_no_mps(counters, tmp_path: Path) -> None:
    assert "outside MPS" in counters(mps=tmp_path).advice
    (tmp_path / "libnvperf_host.so").unlink()
    found = counters()
    assert found.status == "warning"
    assert f"libnvperf_host.so is not beside {tmp_path}" in found.finding
    assert "pip install nvidia-cuda-cupti" in found.advice


def test_nothing_is_said_of_counters_without_a_driver_or_cupti(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "driver_version", lambda: 13000)
    monkeypatch.setattr(cuda, "find_cupti", lambda: None)
    assert list(checks._counters()) == []


def test_dcgm_is_known_by_its_engine(proc: Path) -> None:
    assert not surroundings.dcgm(proc)
    (proc / "77").mkdir()
    (proc / "77" / "comm").write_text("nv-hostengine\n")
    assert surroundings.dcgm(proc)


def test_privileges_are_read_from_proc(proc: Path) -> None:
    assert not surroundings.may_administrate(proc)
    (proc / "self" / "status").write_text("CapEff:\t000001ffffffffff\n")
    assert surroundings.may_administrate(proc)
    assert not surroundings.counters_restricted(proc)
    (proc / "driver" / "nvidia").mkdir(parents=True)
    (proc / "driver" / "nvidia" / "params").write_text("RmProfilingAdminOnly: 1\n")
    assert surroundings.counters_restricted(proc)


def test_containers_are_known_by_what_they_leave(tmp_path: Path) -> None:
    assert not surroundings.in_container(tmp_path)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/kubepods/pod1/abc\n")
    assert surroundings.in_container(tmp_path)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/\n")
    assert not surroundings.in_container(tmp_path)
    (tmp_path / ".dockerenv").touch()
    assert surroundings.in_container(tmp_path)


def test_tools_are_a_warning_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "1")
    check = checks._injection()
    assert check.status == "warning"
    assert "Nsight Systems (NSYS_PROFILING_SESSION_ID)" in check.finding
    assert "without nsys" in check.advice
