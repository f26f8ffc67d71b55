"""cutrace roofline: the page, the chart, and errors."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from profiled import BYTES, FP32, profiled_capture
from support import cutrace


@pytest.fixture
def capture(tmp_path) -> Path:
    counted = dict.fromkeys(FP32, 5e6)
    return profiled_capture(
        tmp_path / "run.bin", ("_Z4gemmPf", 1_000, counted | {BYTES: 1e6}), ("_Z4axpyPf", 1_000, counted)
    )


def test_the_page_has_the_kernels_and_stderr_what_is_missing(capture, tmp_path):
    out = tmp_path / "roofline.html"
    done = cutrace("roofline", capture, "-o", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert "1 launch lacks dram__bytes.sum: profile with --metrics flops" in done.stderr
    assert f"{out}: " in done.stderr
    text = out.read_text()
    assert ">gemm<" in text
    assert "1 launch lacks dram__bytes.sum" in text
    assert "20 TFLOP" in text  # 4 x 5e6 operations in 1 us


def test_the_picture_is_svg(capture, tmp_path):
    assert cutrace("roofline", capture, "-o", tmp_path / "a.svg").returncode == 0
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"
