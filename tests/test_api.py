"""The verbs as functions, and docs/reference/python.md. Its examples run here."""

from __future__ import annotations

import ast
import builtins
import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from captures import Capture, training_steps
from cutrace.conversion import write as write_trace
from cutrace.runbin import Writer
from profiled import BYTES, FP32, profiled_capture
from support import cutrace as command_line
from support import rows, small_capture

REFERENCE = Path(__file__).parents[1] / "docs" / "reference" / "python.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", REFERENCE.read_text().partition("<!-- Made")[0], re.DOTALL)


#: The names that docs/reference/python.md describes.
PUBLIC = (*cutrace.__all__, "open", "slice")


def test_every_public_name_is_in_the_file_that_mypy_reads():
    tree = ast.parse((Path(__file__).parent / "typing" / "right.py").read_text())
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} >= set(PUBLIC)


def test_the_classes_of_public_signatures_are_public():
    known = {getattr(cutrace, name) for name in PUBLIC}
    for name in PUBLIC:
        function = getattr(cutrace, name)
        if not inspect.isfunction(function):
            continue
        there = vars(sys.modules[function.__module__])
        for word in re.findall(r"(?<![.\w])\w+", " ".join(function.__annotations__.values())):
            value = there.get(word)
            if inspect.isclass(value) and value.__module__.startswith("cutrace"):
                assert value in known, (name, word)


def test_all_names_leave_those_of_python_alone():
    assert not set(cutrace.__all__) & vars(builtins).keys()
    assert {*PUBLIC} <= set(dir(cutrace))


@pytest.fixture
def capture(tmp_path):
    return small_capture(tmp_path / "run.bin")


def test_the_examples_of_the_documentation_run(tmp_path):
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    for number, name in enumerate(("run", "rank0", "rank1", "other")):
        small_capture(tmp_path / f"{name}.bin", pid=100 + number, instance=number + 1)
    program = "import cutrace\n" + "".join(EXAMPLES)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "saxpy 100 ns" in done.stdout
    assert EXAMPLES
    written = {"run.pftrace", "step.bin", "job.pftrace", "redacted.json", "recorded.bin"}
    assert written <= {path.name for path in tmp_path.iterdir()}


def test_a_report_has_the_numbers_of_the_command_line(capture):
    report = cutrace.stats(capture, "cuda_gpu_kern_sum")
    (printed,) = json.loads(command_line("stats", "--report", report.name, "--format", "json", capture).stdout)[
        "reports"
    ]
    keys = [column["key"] for column in printed["columns"]]
    assert report.rows == [pytest.approx(tuple(row[key] for key in keys)) for row in printed["rows"]]
    assert str(report) == command_line("stats", "--report", report.name, capture).stdout.rstrip("\n")
    pytest.importorskip("pyarrow")
    assert report.arrow().to_pylist() == [pytest.approx(row) for row in printed["rows"]]


def test_several_reports_are_a_list_and_one_is_itself(capture):
    with cutrace.load(capture) as trace:
        assert [r.name for r in cutrace.stats(trace, ["cuda_api_sum", "nvtx_sum"])] == ["cuda_api_sum", "nvtx_sum"]
        usual = [report.name for report in cutrace.stats(trace)]
        assert "cuda_gpu_kern_sum" in usual
        assert "nvtx_sum" not in usual
        assert len(trace.kernels) == 2


def test_a_listing_can_be_read_twice_from_a_path_and_from_a_trace(capture):
    with cutrace.load(capture) as trace:
        for source in (capture, trace):
            report = cutrace.stats(source, "cuda_gpu_trace")
            assert len(list(report.rows)) == len(list(report.rows)) == 2
            assert len(report.head(1).rows) == 1


def test_reports_sort_as_asked_and_name_what_there_is(capture):
    with pytest.raises(cutrace.CutraceError, match="has a column 'size': there are share"):
        cutrace.stats(capture, "cuda_gpu_kern_sum", sort="size")
    with pytest.raises(cutrace.CutraceError, match="did you mean cuda_gpu_kern_sum"):
        cutrace.stats(capture, "cuda_gpu_kernel_sum")


def test_a_report_is_a_table_in_a_notebook_and_names_cannot_write_into_it(tmp_path):
    with Writer(tmp_path / "run.bin", pid=1) as writer:
        mark = writer.string("<script>")
        writer.rows("nvtx_ranges", rows("nvtx_ranges", 1, start=1, end=3, name=mark))
    page = cutrace.stats(tmp_path / "run.bin", "nvtx_sum")._repr_html_()
    assert page.startswith("<table>")
    assert "<td>:&lt;script&gt;</td>" in page


def test_a_difference_says_what_and_whether_it_fails(tmp_path, capture):
    other = training_steps(tmp_path / "other.bin", steps=1)
    assert not cutrace.diff(capture, capture).failed
    found = cutrace.diff(capture, other)
    assert found.failed
    assert str(found) == command_line("diff", capture, other).stdout.rstrip("\n")
    assert "<table>" in found._repr_html_()
    assert not cutrace.diff(capture, other, fail_on="none").failed
    with Capture(other) as c:
        c.loss(1, 42)
    found = cutrace.diff(capture, other)
    assert found.missing == ["after: 42 records that CUPTI dropped because it had no buffer"]
    assert found.missing[0] in str(found)
    assert found.missing[0] in found._repr_html_()


def test_a_roofline_has_the_points(tmp_path):
    path = profiled_capture(tmp_path / "run.bin", ("_Z4gemmPf", 1_000, dict.fromkeys(FP32, 5e6) | {BYTES: 1e6}))
    (roof,) = cutrace.roofline(path)
    assert [(point.kernel, point.kind, point.operations, point.bytes) for point in roof.points] == [
        ("gemm", "fp32", 2e7, 1e6)
    ]


def test_reasons_are_returned_and_written_where_asked(tmp_path):
    path = profiled_capture(tmp_path / "run.bin", ("_Z4gemmPf", 1_000, dict.fromkeys(FP32, 5e6) | {BYTES: 1e6}))
    before = set(tmp_path.iterdir())
    found = cutrace.why(path)
    assert [answer.facts.kernel for answer in found.answers] == ["gemm"]
    assert found.rooflines == tuple(cutrace.roofline(path))
    assert set(tmp_path.iterdir()) == before
    with cutrace.load(path) as trace:
        assert cutrace.why(trace, destination=tmp_path / "a.html") == found
    assert ">gemm<" in (tmp_path / "a.html").read_text()
    with pytest.raises(cutrace.CutraceError, match=r"ends in \.html"):
        cutrace.why(path, destination=tmp_path / "a.png")


def test_an_open_trace_is_never_written_over_its_files(tmp_path, capture):
    page = shutil.copy(capture, tmp_path / "a.html")
    chrome = tmp_path / "imported.json"
    cutrace.convert(capture, chrome, capture=False)
    with cutrace.load(page) as trace, cutrace.load(chrome) as imported, cutrace.load([page, chrome]) as both:
        assert (trace.sources, imported.sources, both.sources) == ((page,), (chrome,), (page, chrome))
        for write in (
            lambda: cutrace.view(trace, page),
            lambda: cutrace.view(imported, page, before=both),
            lambda: cutrace.why(both, destination=page),
            lambda: write_trace(imported, chrome),
        ):
            with pytest.raises(cutrace.CutraceError, match="is an input"):
                write()


def test_a_trace_is_redacted_into_any_format(tmp_path, capture):
    for name in ("red.bin", "red.json", "red.pftrace"):
        cutrace.redact(capture, tmp_path / name)
        assert b"./train" not in (tmp_path / name).read_bytes()
    assert json.loads((tmp_path / "red.json").read_text())["traceEvents"]
    with cutrace.load(tmp_path / "red.bin") as trace:
        assert len(trace.kernels) == 2


def test_the_trace_processor_has_the_trace_and_no_file_stays(tmp_path, capture, monkeypatch):
    pytest.importorskip("perfetto")
    if (shell := shutil.which("trace_processor_shell")) is None:
        pytest.skip("needs trace_processor_shell")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cutrace.convert(capture, converted := tmp_path / "a:b.pftrace")
    for source in (capture, converted):
        with cutrace.trace_processor(source, shell=shell) as engine:
            assert not list(tmp_path.glob("cutrace.*"))
            found = [(row.name, row.dur) for row in engine.query("select name, dur from gpu_slice order by ts")]
            program = engine.http.subprocess
        assert found == [("saxpy", 100), ("saxpy", 150)]
        assert program.wait(10) is not None


def test_a_trace_processor_that_cannot_be_started_is_an_error(tmp_path, capture, monkeypatch):
    pytest.importorskip("perfetto")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    text = tmp_path / "text"
    text.write_text("no program")
    text.chmod(0o700)
    for shell in (tmp_path / "none", text, shutil.which("false")):
        with pytest.raises(cutrace.CutraceError, match=r"[^.]\. Name a trace_processor_shell that runs here"):
            cutrace.trace_processor(capture, shell=shell)
    assert not list(tmp_path.glob("cutrace.*"))
    monkeypatch.setitem(sys.modules, "perfetto.trace_processor", None)
    with pytest.raises(cutrace.CutraceError, match="pip install perfetto"):
        cutrace.trace_processor(capture)


def test_names_are_demangled_where_they_are_mangled():
    assert cutrace.demangle("_Z5saxpyif") == "saxpy(int, float)"
    assert cutrace.demangle("i") == "i"
