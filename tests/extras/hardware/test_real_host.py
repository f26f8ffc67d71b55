"""The sets of metrics with the real CUPTI 13.0. Its host interface needs neither a GPU nor a driver."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cutrace.extras.hardware.sets import SAMPLED, SETS
from support import cutrace, refused


def metrics(cupti: Path, *arguments: str) -> list[dict]:
    done = cutrace("metrics", *arguments, "--cupti", cupti, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    return [table["rows"] for table in json.loads(done.stdout)["reports"]]


def test_passes_of_gh100(real_cupti):
    (sets,) = metrics(real_cupti, "sets", "--chip", "GH100")
    passes = {row["set"]: row["passes"] for row in sets}
    assert (passes["speed-of-light"], passes["occupancy"]) == (9, 1)


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
        (("describe", "dram__bytes_read", "--chip", "GH1000"), "did you mean GH100 or "),
        (("list", "dram__nothing"), "no metric of GH100 matches 'dram__nothing'"),
    ],
)
def test_errors_are_sentences(real_cupti, arguments, sentence):
    chip = () if "--chip" in arguments else ("--chip", "GH100")
    refused(cutrace("metrics", *arguments, *chip, "--cupti", real_cupti), sentence)
