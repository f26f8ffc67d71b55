"""Wrong uses of the public functions. Each raises one sentence and writes no file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import cutrace
from captures import training_steps
from cutrace import Conditions, CutraceError
from support import small_capture

NO_PATHS = "give a path or a list of paths"
NO_STRINGS = "give a string or a list of strings"
NO_TIME = "is not a time: give an int of nanoseconds, or a string such as '1.5s' or '200ms'"

#: Each expression uses a function wrongly. The folder has the capture run.bin, which is also open as `trace`.
WRONG = {
    "cutrace.load(5)": NO_PATHS,
    "cutrace.load(['run.bin', 5])": NO_PATHS,
    "cutrace.load('run.bin\\0')": NO_PATHS,
    "cutrace.load(Path('run.bin\\0'))": NO_PATHS,
    "cutrace.load(open('run.bin', 'rb'))": "give a list of paths",
    "cutrace.load(iter(['run.bin', None]))": "source=['run.bin', None] is not possible: give a list of paths",
    "cutrace.load('')": "the name of a file is empty: name a capture",
    "cutrace.load('run.bin', clock='none')": "choose one of align, keep",
    "cutrace.stats('run.bin', 5)": NO_STRINGS,
    "cutrace.stats('run.bin', 'kernels')": "there is no report 'kernels'",
    "cutrace.stats('run.bin', sort=5)": "sort=5 is not possible: give a string",
    "cutrace.stats('run.bin', names='ful')": "names='ful' is unknown: choose one of stable, full",
    "cutrace.stats('run.bin', ranges='mine')": "choose one of adopted, own",
    "cutrace.stats('run.bin', short=1.5)": NO_TIME,
    "cutrace.stats('run.bin', 'cuda_gpu_kern_sum').head('all')": "give an integer",
    "cutrace.stats('run.bin', 'cuda_gpu_kern_sum').head(-1)": "a report cannot have -1 rows: give 0 or more",
    "cutrace.info(None)": "give a path, a list of paths or a Trace",
    "cutrace.sql('run.bin', 5)": "query=5 is not possible: give a string",
    "cutrace.diff('run.bin', 'run.bin', fail_on=5)": NO_STRINGS,
    "cutrace.diff('run.bin', 'run.bin', fail_on=['counts', 'tme'])": "'tme' is not an aspect",
    "cutrace.diff('run.bin', 'run.bin', tolerance={'time': 0.1})": NO_STRINGS,
    "cutrace.convert('run.bin', 'out.json', start=1.5)": NO_TIME,
    "cutrace.convert('run.bin', 'out.json', format=5)": "give a string",
    "cutrace.convert('run.bin', 'out.json', derived='no')": "choose one of True, False",
    "cutrace.convert('run.bin', 'out.pftrace', compress='zip')": "choose one of zstd, deflate",
    "cutrace.convert('run.bin', None)": "give a path",
    "cutrace.slice('run.bin', 'out.bin', {'kernel': 'saxpy'})": "give a Conditions",
    "cutrace.slice('run.bin', 'out.bin', Conditions(), request='json')": "give a Request",
    "Conditions(kernel=5)": NO_STRINGS,
    "Conditions(gpu=[0, 1])": NO_STRINGS,
    "Conditions(index=1.5)": "give an integer or a string",
    "cutrace.slice('run.bin', 'out.bin', Conditions(start=0.5))": NO_TIME,
    "cutrace.slice('run.bin', 'out.bin', Conditions(nvtx='step', index=True))": "give an integer or a string",
    "cutrace.merge(['run.bin'], 'out.bin', names='rank')": "give a list of strings",
    "cutrace.batch('kernels', [5], 'out')": NO_PATHS,
    "cutrace.batch('kernels', 'run.bin', 'out', wait=0.5)": NO_TIME,
    "cutrace.batch('kernels', 'run.bin', 'out', workers=0)": "the number of workers cannot be 0: give 1 or more",
    "cutrace.redact(trace, 'out.bin')": "give a path",
    "cutrace.demangle(b'_Z5saxpyif')": "give a string",
    "cutrace.open('run.bin', browser=False, timeout=0.5)": NO_TIME,
    "cutrace.open('run.bin', browser=False, port=70_000)": "there is no port 70000: choose one from 0 to 65535",
    "cutrace.trace_processor('run.bin', shell=5)": "give a path",
    "cutrace.view('run.bin', 'out.txt')": "ends in .html",
    "cutrace.flame('run.bin', by='thread')": "choose one of range, stack",
    "cutrace.why('run.bin', kernel=5)": NO_STRINGS,
    "cutrace.roofline(5)": "give a path",
    "cutrace.profile('python train.py', 'out.bin')": "give a list of strings",
    "cutrace.region('step', 5)": NO_STRINGS,
    "cutrace.record(5)": "give a path",
    "cutrace.record('out.bin', kinds=[5])": NO_STRINGS,
    "cutrace.record('out.bin', last=1.5)": NO_TIME,
    "cutrace.record('out.bin', max_size=1.5)": "is not a size: give an int of bytes, or a string such as '512MiB'",
    "cutrace.record('out.bin', nvtx='yes')": "choose one of True, False",
    "cutrace.record('out.bin', flush_ms=0)": "the time between flushes cannot be 0 ms: give 1 or more, such as 100",
    "cutrace.record('out.bin', last='1s', dump_when='memory > 1GiB', dump_limit=2**32)": "cannot be 4294967296: give 1",
    "cutrace.arm('out.bin', flush_ms='1s')": "give an integer",
    "cutrace.attach('me', 'out.bin')": "give an integer",
    "cutrace.attach(1, 'out.bin').wait(0.5)": NO_TIME,
    "cutrace.dump(5)": "give a path",
    "cutrace.slice('run.bin', 'part.bin', nvtx='step')": "'nvtx': give conditions=cutrace.Conditions(nvtx=...)",
    "cutrace.stats('run.bin', limit=5)": "there is no argument 'limit': there is source, report, sort",
    "cutrace.stats('run.bin', sorted='name')": "there is no argument 'sorted': did you mean sort",
    "cutrace.record('out.bin', kind='nvtx')": "a recording has no option 'kind': did you mean kinds",
    "cutrace.mark(5)": "give a string",
    "trace.table(['kernels'])": "there is no table ['kernels']",
    "trace.table('kernel')": "there is no table 'kernel': did you mean kernels or",
    "trace.blocks('kernels', start=1.5)": NO_TIME,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong")
    small_capture(folder / "run.bin")
    return folder


def _use(expression: str, trace: cutrace.Trace) -> None:
    used = eval(expression, {"cutrace": cutrace, "Conditions": Conditions, "Path": Path, "trace": trace})
    if isinstance(used, Iterator):
        next(used)


@pytest.mark.parametrize("use", WRONG)
def test_a_wrong_use_is_one_sentence_and_leaves_no_file(folder, monkeypatch, use):
    monkeypatch.chdir(folder)
    with cutrace.load("run.bin") as trace, pytest.raises(CutraceError) as raised:
        _use(use, trace)
    assert WRONG[use] in str(raised.value)
    assert "\n" not in str(raised.value)
    assert list(folder.iterdir()) == [folder / "run.bin"]


def kept(source: Path, **conditions) -> tuple[str, ...]:
    destination = source.with_name("part.bin")
    return cutrace.slice(source, destination, Conditions(**conditions)).sentences


def test_a_bare_string_is_one_pattern(tmp_path):
    capture = small_capture(tmp_path / "run.bin")
    assert kept(capture, kernel="sax*") == kept(capture, kernel=["sax*"]) == ("kernels sax*",)
    with pytest.raises(CutraceError, match="no kernel \\*softmax\\*: there is saxpy"):
        kept(capture, kernel="*softmax*")
    assert Conditions(gpu="10").gpu == ("10",)
    assert kept(capture, gpu="0") == ("GPU 0",)
    assert kept(capture, tables="kernels") == ("tables kernels",)
    one, several = (cutrace.diff(capture, capture, tolerance=given) for given in ("time=10%", ["time=10%"]))
    assert str(one) == str(several)


def test_aspects_are_a_list_or_one_string(tmp_path):
    a = training_steps(tmp_path / "a.bin", steps=2)
    b = training_steps(tmp_path / "b.bin", steps=1)
    assert str(cutrace.diff(a, b, fail_on=["counts", "time"])) == str(cutrace.diff(a, b, fail_on="counts,time"))


def test_an_index_is_a_number_or_a_string(tmp_path):
    capture = training_steps(tmp_path / "run.bin", steps=3)
    (sentence,) = kept(capture, nvtx="step *", index=1)
    assert "step * [1]" in sentence
    assert kept(capture, nvtx="step *", index="1") == (sentence,)


def test_times_are_the_same_everywhere(tmp_path):
    capture = small_capture(tmp_path / "run.bin")
    with cutrace.load(capture) as trace:
        start = trace.kernels["start"][0]
        later = f"{int(start) - trace.start}ns"
    parts = []
    for time in (start, int(start), f"@{start}", later):
        kept(capture, start=time)
        parts.append((tmp_path / "part.bin").stat().st_size)
        cutrace.convert(capture, tmp_path / "part.csv", table="kernels", start=time)
        assert len((tmp_path / "part.csv").read_text().splitlines()) == 3
    assert len(set(parts)) == 1
    shorter = [cutrace.stats(capture, "short_kern_sum", short=time).rows for time in (120, np.int64(120), "120ns")]
    assert shorter[0] == shorter[1] == shorter[2]
    assert shorter[0] != cutrace.stats(capture, "short_kern_sum", short="1ms").rows
