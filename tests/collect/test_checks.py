"""The checks of cutrace doctor: each obstacle to recording has a finding and advice."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutrace.collect import checks, cuda
from cutrace.collect.checks import Check, Trial, can_record, run_checks

CUPTI = Path("/venv/nvidia/cu13/lib/libcupti.so.13")


@pytest.fixture
def machine(monkeypatch):
    """A machine that can record. The function that it yields changes a property of the machine."""

    def change(
        *,
        driver=13000,
        cupti=CUPTI,
        libraries=None,
        devices=("NVIDIA H200",),
        gpu_error="",
        memsets=1,
        marks=1,
        notes=(),
        nvtx_error="",
    ) -> dict[str, Check]:
        known = {cupti: 13} if libraries is None and cupti else libraries or {}
        info = {"notes": list(notes), "cupti_version": 28}
        trial = Trial(tuple(devices), gpu_error, nvtx_error, memsets, marks, info)
        monkeypatch.setattr(cuda, "driver_version", lambda: driver)
        monkeypatch.setattr(cuda, "find_cupti", lambda: cupti)
        monkeypatch.setattr(cuda, "cupti_libraries", lambda: known)
        monkeypatch.setattr(checks, "run_trial", lambda: trial)
        monkeypatch.setattr(checks, "_collector", lambda: Check("collector", "ok", "0.1.0"))
        monkeypatch.setattr(checks, "_counters", lambda: [Check("counters", "ok", "they may be read")])
        monkeypatch.setattr(checks, "_versions", lambda path, version: Check("versions", "ok", "they match"))
        return {check.name: check for check in run_checks()}

    for name in ("CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return change


def test_a_machine_that_can_record_passes_every_check(machine):
    found = machine()
    assert {check.status for check in found.values()} == {"ok"}
    assert can_record(tuple(found.values()))


@pytest.mark.parametrize(
    ("change", "name", "finding", "advice"),
    [
        ({"driver": None}, "driver", "no NVIDIA driver", "install the driver"),
        ({"driver": 11080}, "driver", "CUDA 11.8", "update the driver"),
        ({"devices": (), "gpu_error": "cuInit: CUDA_ERROR_NO_DEVICE"}, "GPU", "shows no GPU", "nvidia-smi"),
        ({"devices": (), "gpu_error": "cuInit: CUDA_ERROR_UNKNOWN"}, "GPU", "CUDA_ERROR_UNKNOWN", "nvidia-smi"),
        ({"cupti": None}, "libcupti", "not found", "pip install nvidia-cuda-cupti"),
        ({"cupti": None, "driver": 12080}, "libcupti", "not found", "nvidia-cuda-cupti-cu12"),
        (
            {"cupti": None, "driver": 12080, "libraries": {CUPTI: 13}},
            "versions",
            "older than /venv",
            "nvidia-cuda-cupti-cu12",
        ),
        ({"memsets": 0, "notes": ("CUPTI is held by Nsight",)}, "capture", "held by Nsight", "troubleshooting"),
        ({"memsets": 0}, "capture", "not in the capture", "troubleshooting"),
        ({"marks": 0}, "NVTX", "not in the capture", "troubleshooting"),
        ({"marks": 0, "nvtx_error": "no libnvToolsExt"}, "NVTX", "recorded: no libnvToolsExt", "troubleshooting"),
        ({"marks": 0, "notes": ("a full disk",)}, "NVTX", "recorded: a full disk", "troubleshooting"),
    ],
)
def test_each_problem_is_named_with_what_to_do(machine, change, name, finding, advice):
    found = machine(**change)
    assert found[name].status == "problem"
    assert finding in found[name].finding
    assert advice in found[name].advice
    assert not can_record(tuple(found.values()))


def test_hidden_gpus_are_explained(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = machine(devices=(), gpu_error="cuInit: CUDA_ERROR_NO_DEVICE")
    assert found["GPU"].advice == "CUDA_VISIBLE_DEVICES is '': unset it"


def test_another_tool_in_the_environment_is_a_warning(machine, monkeypatch):
    monkeypatch.setenv("CUDA_INJECTION64_PATH", "/opt/nsight/libToolsInjection64.so")
    found = machine()
    assert found["other tools"].status == "warning"
    assert "libToolsInjection64.so" in found["other tools"].finding
    assert can_record(tuple(found.values()))


def test_further_copies_of_libcupti_are_listed(machine):
    found = machine(libraries={CUPTI: 13, Path("/usr/local/cuda/lib64/libcupti.so.12"): 12})
    assert "/usr/local/cuda/lib64/libcupti.so.12" in found["libcupti"].finding


def test_a_collector_that_is_not_there_ends_the_checks(monkeypatch):
    def missing():
        raise checks.CutraceError("it is missing: install cutrace again")

    monkeypatch.setattr(checks, "collector", missing)
    assert run_checks() == (Check("collector", "problem", "it is missing", "install cutrace again"),)


def test_libcupti_of_the_newest_version_that_the_driver_can_use_is_taken(tmp_path, monkeypatch):
    for folder, name in (("cu13/lib", "libcupti.so.13"), ("cuda_cupti/lib", "libcupti.so.12")):
        (tmp_path / "nvidia" / folder).mkdir(parents=True)
        (tmp_path / "nvidia" / folder / name).touch()
    monkeypatch.setattr(cuda.sys, "path", [str(tmp_path)])
    for driver, name in ((13000, "libcupti.so.13"), (12080, "libcupti.so.12"), (None, "libcupti.so.13")):
        monkeypatch.setattr(cuda, "driver_version", lambda driver=driver: driver)
        assert cuda.find_cupti().name == name
    monkeypatch.setattr(cuda, "driver_version", lambda: 11080)
    assert cuda.find_cupti() is None


def test_versions_are_written_as_people_know_them():
    assert [cuda.version_text(v) for v in (13000, 12080, None)] == ["13.0", "12.8", "unknown"]
    assert [cuda.cupti_version_text(v) for v in (130000, 130500, 26, None)] == ["13.0", "13.5", "API 26", "unknown"]


def test_a_trial_that_wrote_nothing_holds_nothing(tmp_path):
    (tmp_path / "1-2.bin").touch()
    assert checks._contents(tmp_path) == (0, 0, {})
