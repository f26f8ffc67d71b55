"""The sets of metrics against CUPTI 13.0 itself, whose host interface needs neither a GPU nor a driver."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cutrace.metrics.sets import SAMPLED, SETS
from support import cutrace

SETS_IN_ORDER = ("speed-of-light", "occupancy", "instructions", "flops", "issue", "branches", "memory", "raw")
#: Passes of each set by chip.
PASSES = {
    "GH100": (9, 1, 8, 7, 7, 2, 4, 2),
    "GA100": (9, 1, 6, 5, 6, 2, 4, 2),
    "AD102": (7, 1, 6, 6, 6, 2, 4, 2),
    "GB100": (8, 1, 7, 5, 6, 2, 4, 2),
}


def metrics(cupti: Path, *arguments: str) -> list[dict]:
    done = cutrace("metrics", *arguments, "--cupti", cupti, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return [table["rows"] for table in json.loads(done.stdout)["reports"]]


@pytest.mark.parametrize("chip", PASSES)
def test_all_sets_can_be_counted(real_cupti, chip):
    (sets,) = metrics(real_cupti, "sets", "--chip", chip)
    assert {row["set"]: row["passes"] for row in sets} == dict(zip(SETS_IN_ORDER, PASSES[chip], strict=True))


def test_gh100_has_all_that_the_sets_name_but_one_pipe(real_cupti):
    for name, each in SETS.items():
        (rows,) = metrics(real_cupti, "sets", name, "--chip", "GH100")
        lacking = set(each.names) - {row["metric"] for row in rows}
        assert {re.sub(r"\..*", "", metric) for metric in lacking} <= {"sm__inst_executed_pipe_fp16"}


def test_what_is_sampled_takes_one_pass(real_cupti):
    for chip, lacking in {"GH100": (), "AD102": ("nvl",), "GB100": ("pcie",)}.items():
        names = [name for name in SAMPLED if not name.startswith(tuple(lacking))]
        done = cutrace("metrics", "describe", *names, "--sampled", "--chip", chip, "--cupti", real_cupti)
        assert done.stdout.splitlines()[0] == f"Metrics of {chip}, 1 pass together"


def test_a_metric_is_described(real_cupti):
    (rows,) = metrics(real_cupti, "describe", "dram__bytes_read.sum", "--chip", "GH100")
    assert rows == [
        {
            "name": "dram__bytes_read.sum",
            "kind": "counter",
            "unit": "dram",
            "dimension": "byte",
            "description": "# of bytes read from DRAM",
        }
    ]
    described, endings = metrics(real_cupti, "describe", "sm__throughput", "--chip", "GH100")
    assert described[0]["kind"] == "throughput"
    assert {"name": "sm__throughput.avg.pct_of_peak_sustained_elapsed"} in endings


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("describe", "dram__bytes_raed.sum"), "did you mean dram__bytes_read.sum"),
        (("describe", "sm__throughput.sum"), "sm__throughput has no .sum"),
        (("describe", "dram__bytes_read", "--chip", "GH1000"), "did you mean GH100?"),
        (("list", "dram__nothing"), "no metric that 'dram__nothing' is found in"),
    ],
)
def test_errors_are_sentences(real_cupti, arguments, sentence):
    done = cutrace(
        "metrics", *arguments, *(() if "--chip" in arguments else ("--chip", "GH100")), "--cupti", real_cupti
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
