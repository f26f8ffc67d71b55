"""cutrace metrics: the metrics of a chip, and its errors for bad input."""

from __future__ import annotations

import _ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cutrace.extras.hardware.sets import SETS
from support import cutrace, refused
from support.fakedriver import FakeDriver


@pytest.fixture
def fake(fake_driver: FakeDriver):
    """Run ``cutrace metrics`` without a GPU and with the fake libcupti. The chip is GH100 unless an argument names
    one."""

    def run(*arguments: object, failures: str = "", chip: bool = True):
        words = [*arguments, "--cupti", fake_driver.libraries / "libcupti.so.13"]
        if chip and "--chip" not in words:
            words += ["--chip", "GH100"]
        return cutrace("metrics", *words, env={"FAKE_CUPTI_FAILURES": failures})

    return run


def tables(done) -> list[list[dict]]:
    assert (done.returncode, done.stderr) == (0, "")
    return [table["rows"] for table in json.loads(done.stdout)["reports"]]


def test_metrics_of_instructions(fake):
    (rows,) = tables(fake("list", "--lines", "*inst_executed", "--format", "json"))
    assert [(row["name"], row["kind"], row["dimension"]) for row in rows] == [
        ("smsp__sass_inst_executed", "instruction", "instruction"),
        ("smsp__sass_thread_inst_executed", "instruction", "instruction"),
    ]
    refused(fake("list", "--lines", "nothing_like_it"), "no metric of GH100 matches 'nothing_like_it'")
    refused(fake("list", "--lines", "--sampled"), "ask for one of them")
    refused(fake("list", "--lines", failures="SassMetricsGetMetrics:999"), "install the NVIDIA driver")


def test_sets_with_their_passes(fake):
    (rows,) = tables(fake("sets", "--format", "json"))
    assert [row["set"] for row in rows] == list(SETS)
    assert [row["question"] for row in rows] == [each.asks for each in SETS.values()]
    by_name = {row["set"]: row for row in rows}
    assert by_name["occupancy"] | {"question": ""} == {"set": "occupancy", "metrics": 2, "passes": 1, "question": ""}
    assert by_name["speed-of-light"]["passes"] == 6


def test_a_chip_that_lacks_a_set_has_the_others(fake):
    (rows,) = tables(fake("sets", "--chip", "TU102", "--format", "json"))
    by_name = {row["set"]: (row["metrics"], row["passes"]) for row in rows}
    assert by_name["branches"] == (0, 0)
    assert by_name["occupancy"] == (2, 1)
    refused(fake("sets", "branches", "--chip", "TU102"), "TU102 has no metric of the set branches")


def test_a_set_has_its_metrics_and_formulas(fake):
    (rows,) = tables(fake("sets", "flops", "--format", "json"))
    assert {"metric": "dram__bytes.sum", "description": "# of bytes"} in rows
    assert [tuple(row.values()) for row in rows[-len(SETS["flops"].formulas) :]] == list(SETS["flops"].formulas)


def test_metrics_are_listed_by_pattern(fake):
    (rows,) = tables(fake("list", "*pipe_fma*", "--format", "json"))
    assert [row["name"] for row in rows] == ["sm__inst_executed_pipe_fma", "sm__pipe_fma_cycles_active"]
    (kernels,), (sampled,) = (
        tables(fake("list", "--format", "json")),
        tables(fake("list", "--sampled", "--format", "json")),
    )
    assert {row["name"] for row in sampled} < {row["name"] for row in kernels}


def test_describing_counts_passes_or_lists_endings(fake):
    shown = fake("describe", "sm__inst_executed.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed").stdout
    assert shown.splitlines()[0] == "Metrics of GH100, 2 passes together"
    (described, endings) = tables(fake("describe", "lts__t_sector_hit_rate", "--format", "json"))
    assert described[0]["kind"] == "ratio"
    assert [row["name"] for row in endings] == [f"lts__t_sector_hit_rate{e}" for e in (".max_rate", ".pct", ".ratio")]
    sass = "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum"
    assert fake("describe", sass).returncode == 0
    refused(fake("describe", sass, "--sampled"), f"GH100 has no metric {sass}")


def test_the_chip_is_that_of_the_first_gpu(fake_driver):
    command = [sys.executable, "-m", "cutrace", "metrics", "sets"]
    done = subprocess.run(command, env=fake_driver.environment(), capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[0] == "Sets of metrics on GH100", done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("describe", "sm__inst_executd.sum"), "did you mean sm__inst_executed.sum"),
        (("describe", "sm__inst_executed.total"), "`cutrace metrics describe sm__inst_executed` lists its endings"),
        (("describe", "nothing"), "`cutrace metrics list` lists all"),
        (("list", "nothing"), "no metric of GH100 matches 'nothing'"),
        (("list", "/[/"), "/[/ is not a regular expression"),
        (("sets", "ocupancy"), "there is no set ocupancy: did you mean occupancy?"),
        (("sets", "all"), "there is no set all: the sets are overview,"),
        (("sets", "--chip", "gh100"), "does not know the chip gh100: did you mean GH100?"),
        (("sets", "--chip", "nothing"), "does not know the chip nothing: it knows GH100, TU102"),
    ],
)
def test_wrong_words(fake, arguments, sentence):
    refused(fake(*arguments), sentence)


@pytest.mark.parametrize(
    ("failures", "sentence"),
    [
        ("ProfilerHostInitialize:999", "it needs libnvperf_host.so in its folder"),
        ("ProfilerHostGetSupportedChips:15", "it needs libnvperf_host.so in its folder"),
        ("ProfilerHostInitialize:35", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("ProfilerHostConfigAddMetrics:26", "another tool holds the counters of this GPU"),
    ],
)
def test_failures_of_cupti(fake, failures, sentence):
    refused(fake("sets", failures=failures), sentence)


def test_libraries_that_do_not_serve(tmp_path):
    text = tmp_path / "libcupti.so.13"
    text.write_text("no library")
    refused(cutrace("metrics", "sets", "--cupti", text), "libcupti cannot be loaded")
    missing = tmp_path / "none" / "libcupti.so.13"
    refused(cutrace("metrics", "sets", "--cupti", missing), "libcupti cannot be loaded")
    old = Path(_ctypes.__file__)
    refused(cutrace("metrics", "sets", "--cupti", old), "is older than CUPTI 12.6, which hardware metrics need")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU here")
def test_no_gpu_to_take_the_chip_of(fake):
    refused(fake("sets", chip=False), "there is no GPU here: name a chip with --chip, one of GH100, TU102")
