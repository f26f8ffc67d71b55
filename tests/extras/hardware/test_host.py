"""CUPTI's functions by name, and the metrics of a chip, with the fake CUPTI."""

from __future__ import annotations

import _ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutrace.collect import cuda
from cutrace.errors import CutraceError
from cutrace.extras.hardware import cupti as module
from cutrace.extras.hardware.cupti import Cupti, CuptiError
from cutrace.extras.hardware.host import SAMPLES, Chip, ChipMetric, chips, first_chip
from cutrace.extras.hardware.sets import SETS, chosen, in_set

INSTRUCTIONS = "sm__inst_executed"
THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.fixture
def cupti(fake_cupti: Path) -> Iterator[Cupti]:
    """The fake CUPTI with the interface of 13.0."""
    yield Cupti(fake_cupti)
    fake(fake_cupti).fake_set_version(130001)
    for function in FAILURES:
        fake(fake_cupti).fake_fail(function.encode(), 0)


FAILURES = ("ProfilerHostInitialize", "ProfilerHostGetSupportedChips", "ProfilerHostGetMetricProperties")


def fake(path: Path):
    return module.ctypes.CDLL(str(path))


@pytest.fixture
def chip(cupti: Cupti) -> Iterator[Chip]:
    with Chip(cupti, "GH100") as chip:
        yield chip


@pytest.mark.parametrize(
    ("function", "sizes"),
    [
        ("ProfilerHostInitialize", (56, 48)),
        ("ProfilerGetCounterAvailability", (41, 40)),
        ("ProfilerHostGetMetricProperties", (64, 60)),
        ("RangeProfilerEnable", (36, 32)),
        ("RangeProfilerSetConfig", (90,)),
        ("RangeProfilerStop", (41,)),
        ("PmSamplingDecodeData", (45,)),
        ("ProfilerInitialize", (16,)),
    ],
)
def test_structs_have_the_sizes_of_new_and_old_releases(function, sizes):
    found = tuple(size for _, size in module._structs(function))
    assert found == sizes


@pytest.mark.parametrize("version", [130001, 130500])
def test_each_release_gets_the_struct_that_it_knows(cupti, version):
    fake(cupti.path).fake_set_version(version)
    with Chip(cupti, "GH100") as chip:
        assert chip.describe(f"{INSTRUCTIONS}.sum").dimension == "instruction"


def test_a_library_that_cannot_be_loaded(tmp_path):
    (tmp_path / "libcupti.so.13").write_text("no library")
    with pytest.raises(CutraceError, match=r"libcupti cannot be loaded: .*libcupti\.so\.13"):
        Cupti(tmp_path / "libcupti.so.13")


def test_a_library_without_hardware_metrics():
    with pytest.raises(CutraceError, match=r"older than CUPTI 12\.6"):
        Cupti(Path(_ctypes.__file__))


def test_a_function_that_the_library_lacks(cupti, monkeypatch):
    monkeypatch.setattr(module, "_FUNCTIONS", "Newest: size count\n")
    with pytest.raises(CutraceError, match=r"has no cuptiNewest: install a newer libcupti"):
        cupti.call("Newest")


def test_no_libcupti(monkeypatch):
    monkeypatch.setattr(cuda, "cupti_in_process", lambda: None)
    monkeypatch.setattr(cuda, "find_cupti", lambda: None)
    with pytest.raises(CutraceError, match="pip install nvidia-cuda-cupti"):
        Cupti.found()


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (7, "CUPTI_ERROR_INVALID_OPERATION"),
        (26, "DCGM"),
        (35, "NVreg_RestrictProfilingToAdminUsers=0"),
    ],
)
def test_a_failure_says_what_to_do(cupti, code, sentence):
    fake(cupti.path).fake_fail(b"ProfilerHostInitialize", code)
    with pytest.raises(CuptiError, match=sentence) as raised:
        Chip(cupti, "GH100")
    assert raised.value.code == code


@pytest.mark.parametrize("function", ["ProfilerHostGetSupportedChips", "ProfilerHostInitialize"])
@pytest.mark.parametrize("code", [15, 999])
def test_a_host_interface_that_does_not_work(cupti, function, code):
    fake(cupti.path).fake_fail(function.encode(), code)
    with pytest.raises(CutraceError, match=r"libnvperf_host\.so .*nvidia-cuda-cupti==13\.0\.85"):
        Chip(cupti, "GH100")


def test_chips(cupti):
    assert chips(cupti) == ["GH100", "TU102"]
    with pytest.raises(CutraceError, match=r"does not know the chip gh200: did you mean GH100\?"):
        Chip(cupti, "gh200")
    with pytest.raises(CutraceError, match=r"does not know the chip XY: it knows GH100, TU102"):
        Chip(cupti, "XY")


def test_no_first_chip_without_a_driver(cupti, monkeypatch):
    monkeypatch.setattr(cuda, "driver", lambda: None)
    assert first_chip(cupti) is None


def test_metrics_are_described(chip):
    assert chip.describe("dram__bytes_read.sum") == ChipMetric(
        "dram__bytes_read.sum", "counter", "# of bytes", "dram", "byte"
    )
    assert chip.describe("lts__t_sector_hit_rate").kind == "ratio"
    assert "sm__throughput" in chip.names()
    assert ".avg.pct_of_peak_sustained_elapsed" in chip.submetrics("sm__throughput")
    assert ".sum.per_second" in chip.submetrics(INSTRUCTIONS)
    assert chip.submetrics("lts__t_sector_hit_rate") == [".max_rate", ".pct", ".ratio"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sm__inst_executd.sum", r"no metric sm__inst_executd\.sum: did you mean sm__inst_executed\.sum"),
        (f"{INSTRUCTIONS}.summ", r"sm__inst_executed has no \.summ: `cutrace metrics describe sm__inst_executed`"),
        ("zz__zz.sum", "GH100 has no metric zz__zz.sum: `cutrace metrics list` lists all"),
    ],
)
def test_an_unknown_metric(chip, name, sentence):
    assert not chip.has(name)
    with pytest.raises(CutraceError, match=sentence):
        chip.describe(name)
    with pytest.raises(CutraceError, match=sentence):
        chip.configure([f"{INSTRUCTIONS}.sum", name])


def test_a_failure_is_not_taken_for_an_unknown_metric(chip):
    fake(chip.cupti.path).fake_fail(b"ProfilerHostGetMetricProperties", 26)
    with pytest.raises(CuptiError, match="DCGM"):
        chip.has(f"{INSTRUCTIONS}.sum")


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        (INSTRUCTIONS, f"{INSTRUCTIONS}.sum"),
        ("sm__throughput", THROUGHPUT),
        ("lts__t_sector_hit_rate", "lts__t_sector_hit_rate.ratio"),
    ],
)
def test_a_metric_without_rollup_is_told_one_that_it_has(chip, name, whole):
    with pytest.raises(CutraceError, match=f"{name} lacks a rollup: use {whole}, or another"):
        chip.configure([name])
    assert chip.configure([whole]).names == (whole,)


def test_each_configuration_has_its_own_passes(chip):
    assert chip.configure([f"{INSTRUCTIONS}.sum"]).passes == 1
    assert chip.configure([f"{INSTRUCTIONS}.sum", THROUGHPUT]).passes == 2
    assert chip.configure([f"{INSTRUCTIONS}.sum"]).passes == 1


def test_chosen_takes_sets_and_names_once_each_in_order(chip):
    occupancy = list(SETS["occupancy"].names)
    assert chosen(chip, "occupancy") == occupancy
    assert chosen(chip, f" dram__bytes.sum , occupancy,{occupancy[0]},") == ["dram__bytes.sum", *occupancy]


def test_a_set_leaves_out_what_the_chip_lacks(cupti, chip):
    tensor = "sm__inst_executed_pipe_tensor.sum"
    with Chip(cupti, "TU102") as old:
        assert tensor in in_set(chip, "raw")
        assert in_set(old, "raw") == [name for name in in_set(chip, "raw") if name != tensor]
        assert in_set(old, "branches") == []
        with pytest.raises(CutraceError, match="TU102 has no metric of the set branches"):
            chosen(old, "occupancy,branches")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ocupancy", "ocupancy is neither a set nor the name of a metric: did you mean occupancy"),
        ("everything", "everything is neither a set nor the name of a metric: the sets are overview"),
        ("occupancy,sm__nothing.sum", "no metric sm__nothing.sum"),
        ("", "names no metrics"),
        (" , ", "names no metrics"),
    ],
)
def test_what_names_no_metrics_is_an_error(chip, text, sentence):
    with pytest.raises(CutraceError, match=sentence):
        chosen(chip, text)


def test_metrics_of_samples_are_others(cupti, chip):
    sass = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
    with Chip(cupti, "GH100", SAMPLES) as samples:
        assert chip.has(sass)
        assert not samples.has(sass)
