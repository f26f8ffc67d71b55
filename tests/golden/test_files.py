"""Golden files on disk: what they look like, that they come back as they were, and what is said of damaged ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.analysis.metrics import METRICS, Gate
from cutrace.errors import CutraceError
from cutrace.golden import Golden, Interval, Section, golden_files, read, text, write
from cutrace.golden.model import SIGNED

TEST = "tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]"
GOLDEN = Golden(
    TEST,
    Section(
        {
            "memset_count": 1,
            "kernel_launches": 3,
            "kernels": {"vectorized_elementwise": 2, "softmax_fwd": 1},
            "memcpy_d2h_bytes": 4,
            "syncs": {},
            "ours.tokens": 7,
        },
        {"forward": {"kernel_launches": 1}},
        unstable=("allocations", "forward/sync_calls"),
    ),
    {
        "nvidia-h200": Section(
            {"kernel_time_ns": Interval(18400, 18700, 18900, 3), "peak_memory_bytes": 33554432},
            {'a "b"': {"kernel_time_ns": Interval(1, 2, 3, 9, (1, 1, 1, 2, 2, 2, 3, 3, 3))}},
            recorded="sm_90, driver 580.159, CUDA 13.0",
        )
    },
)
TEXT = """\
# Written by `pytest --cutrace --cutrace-update`. Review it like code.
format = 1
test = "tests/test_softmax.py::TestSoftmax::test_fwd[float16-1024x4096]"

[common]
kernel_launches = 3
kernels = { softmax_fwd = 1, vectorized_elementwise = 2 }
memcpy_d2h_bytes = 4
memset_count = 1
syncs = {}
"ours.tokens" = 7
unstable = ["allocations", "forward/sync_calls"]
[common.region.forward]
kernel_launches = 1

[gpu.nvidia-h200]
recorded = "sm_90, driver 580.159, CUDA 13.0"
peak_memory_bytes = 33554432
kernel_time_ns = { min = 18400, median = 18700, q3 = 18900, n = 3 }
[gpu.nvidia-h200.region."a \\"b\\""]
kernel_time_ns = { min = 1, median = 2, q3 = 3, n = 9, samples = [1, 1, 1, 2, 2, 2, 3, 3, 3] }
"""


def test_a_metric_is_a_line_and_the_order_is_that_of_the_metrics():
    assert text(GOLDEN) == TEXT


def test_what_is_written_is_read_back(tmp_path):
    assert write(GOLDEN, tmp_path / "a.toml")
    assert read(tmp_path / "a.toml", test=TEST) == GOLDEN


# Names of every kind: tests, kernels, regions, GPUs.
names = st.one_of(
    st.text(), st.sampled_from(['"', "\\", "\n", "\r\n", "\0", "\x7f", "\u202e", "é", "a.b", " ", "]", "#"])
)
counts = st.integers(0, 2**63 - 1)


@st.composite
def intervals(draw):
    samples = sorted(draw(st.lists(counts, min_size=1, max_size=12)))
    n = len(samples)
    return Interval(samples[0], samples[n // 2], samples[-1], n, tuple(samples) if draw(st.booleans()) else ())


def values_of(name: str):
    if METRICS[name].counts:
        return st.dictionaries(names, counts, max_size=4)
    if METRICS[name].gate is Gate.TIME:
        return intervals()
    return st.integers(-(2**62), 2**62) if name in SIGNED else counts


STORED = [name for name in METRICS if METRICS[name].gate is not Gate.INFO]
metrics = st.lists(st.sampled_from(STORED), unique=True, max_size=6).flatmap(
    lambda chosen: st.fixed_dictionaries({name: values_of(name) for name in chosen})
)
unstable = st.lists(
    st.tuples(st.one_of(st.just(""), names.map(lambda name: name + "/")), st.sampled_from(STORED)).map("".join),
    max_size=3,
).map(tuple)
sections = st.builds(Section, metrics, st.dictionaries(names, metrics, max_size=3), names, unstable)
goldens = st.builds(
    Golden, names.filter(bool), st.builds(Section, metrics, st.dictionaries(names, metrics, max_size=3), st.just("")),
    st.dictionaries(names, sections, max_size=3),
)  # fmt: skip


@given(golden=goldens)
def test_every_golden_file_comes_back_and_is_written_the_same_again(tmp_path_factory, golden):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text(golden), encoding="utf-8", newline="")
    again = read(path)
    assert again == golden
    assert text(again) == text(golden)


@given(golden=goldens)
def test_nothing_in_a_file_steers_a_terminal_and_a_line_is_a_line(golden):
    assert all(line.isprintable() for line in text(golden).split("\n"))


def test_the_order_in_which_things_were_found_does_not_show():
    other = Golden(
        TEST,
        Section(dict(reversed(GOLDEN.common.metrics.items())), GOLDEN.common.regions, unstable=GOLDEN.common.unstable),
        GOLDEN.gpus,
    )
    assert text(other) == TEXT


def test_writing_what_is_there_already_touches_nothing(tmp_path):
    path = tmp_path / "a.toml"
    commented = TEXT.replace("memset_count = 1", "memset_count = 0x1  # of the padding").replace("\n", "\r\n")
    path.write_bytes(commented.encode())
    before = path.stat().st_mtime_ns
    assert not write(GOLDEN, path)
    assert path.read_bytes() == commented.encode()
    assert path.stat().st_mtime_ns == before


def test_writing_makes_folders_replaces_in_one_step_and_leaves_an_ordinary_file(tmp_path):
    path = tmp_path / "tests" / "test_a.py" / "test.toml"
    assert write(GOLDEN, path)
    with path.open() as old:
        assert write(Golden("other::test"), path)
        assert old.read() == TEXT
    assert list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_damaged_file_is_replaced(tmp_path):
    (tmp_path / "a.toml").write_text("<<<<<<< HEAD")
    assert write(GOLDEN, tmp_path / "a.toml")
    assert read(tmp_path / "a.toml") == GOLDEN


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CutraceError, match=r"cannot write .*a\.toml: (Not a directory|File exists)"):
        write(GOLDEN, tmp_path / "file" / "a.toml")


def test_an_id_that_no_text_can_hold_is_an_error():
    with pytest.raises(CutraceError, match=r"U\+DC80"):
        text(Golden("test_a.py::test[\udc80]"))


def test_golden_files_are_those_that_end_with_toml_and_are_not_hidden(tmp_path):
    for name in ("b/c.toml", "a.toml", ".x.toml", ".hidden/d.toml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.toml").mkdir()
    assert list(golden_files(tmp_path)) == [tmp_path / "a.toml", tmp_path / "b" / "c.toml"]


def replaced(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new)


DAMAGED = {
    "a conflict of version control": (replaced("[common]\n", "<<<<<<< HEAD\n[common]\n"), 5, "Take the file from"),
    "a file that stops in a line": (TEXT[: TEXT.index("memset_count")] + "memset", 9, "at the end of the file"),
    "a file that stops in a string": (TEXT[: TEXT.index("float16")], 3, "at the end of the file"),
    "a key twice": (replaced("memset_count = 1", "memset_count = 1\nmemset_count = 1"), 10, "overwrite"),
    "a section twice": (TEXT + "\n[common]\n", 23, "[Dd]eclare"),
    "no golden file": ('[project]\nname = "x"\n', 1, "no golden file"),
    "an empty file": ("", 1, "no golden file"),
    "a format that is no number": (replaced("format = 1", 'format = "1"'), 2, "no golden file"),
    "a newer format": (replaced("format = 1", "format = 2"), 2, "install a newer cutrace"),
    "no test": (replaced(f'test = "{TEST}"', ""), 1, "no line 'test = ...'"),
    "another test": (replaced("1024x4096", "2048"), 3, "is the golden file of .*2048.*, but .*1024x4096"),
    "a test that is no text": (replaced(f'test = "{TEST}"', "test = 7"), 3, "test is a text in quotes, not a number"),
    "an unknown section": (TEXT + "[gpus.nvidia-h200]\nkernel_launches = 3\n", 22, "'gpus' is not known"),
    "a section that is none": ("format = 1\ntest = 't'\ngpu = 3\n", 3, "gpu is a section, not a number"),
    "a GPU that is no section": (TEXT + "[gpu]\nx = 3\n", 23, "x is a section"),
    "a region that is no section": ("format = 1\ntest = 't'\n[common]\nregion = 3\n", 4, "region is a section"),
    "an unknown metric": (replaced("memset_count", "memsets_count"), 9, "'memsets_count': did you mean memset_count"),
    "nothing like a metric": (replaced("memset_count", "x"), 9, r"docs/metrics\.md"),
    "an unknown metric of a region": (replaced("forward]\nkernel_", "forward]\nkernal_"), 14, "did you mean kernel_"),
    "an unknown metric among the unstable": (replaced('"allocations"', '"malloc"'), 12, "no metric 'malloc'"),
    "unstable that is no list": (replaced('["allocations", "forward/sync_calls"]', "3"), 12, "is a list of metrics"),
    "a text": (replaced("memset_count = 1", 'memset_count = "1"'), 9, "memset_count is a whole number, not a text"),
    "a truth": (replaced("memset_count = 1", "memset_count = true"), 9, "not true or false"),
    "a fraction": (replaced("memset_count = 1", "memset_count = 1.0"), 9, "not a fraction"),
    "a date": (replaced("memset_count = 1", "memset_count = 2020-01-01"), 9, "not a date"),
    "a table": (replaced("memset_count = 1", "memset_count = { a = 1 }"), 9, "not a table"),
    "a negative count": (replaced("memset_count = 1", "memset_count = -1"), 9, "cannot be -1"),
    "a count beyond 64 bits": (replaced("memset_count = 1", f"memset_count = {2**63}"), 9, "cannot be"),
    "a number of too many digits": (replaced("memset_count = 1", f"memset_count = {'9' * 5000}"), 9, "digits"),
    "a negative count by name": (replaced("softmax_fwd = 1", "softmax_fwd = -1"), 7, "softmax_fwd cannot be -1"),
    "a list by name that is a number": (replaced("syncs = {}", "syncs = 0"), 10, "syncs is a table of counts by name"),
    "a time that is a number": (replaced("peak_memory_bytes =", "busy_ns ="), 18, "busy_ns is an interval"),
    "a time without a part": (replaced(", n = 3 }", " }"), 19, "is an interval"),
    "a time out of order": (replaced("min = 18400", "min = 19000"), 19, "is no interval: min <= median <= q3"),
    "samples that are missing": (replaced("3, 3, 3]", "3, 3]"), 21, "n samples"),
    "samples that are no list": (replaced("[1, 1, 1, 2, 2, 2, 3, 3, 3]", "9"), 21, "samples is a list"),
    "what is never compared": (replaced("memset_count = 1", "idle_share = 0.5"), 9, "never compared"),
    "what it was recorded on": (replaced('"sm_90, driver 580.159, CUDA 13.0"', "90"), 17, "recorded is a text"),
    "a nest of brackets": ("x = " + "[" * 5000, 1, "nested too deeply|end of the file"),
    "dotted keys": ("format = 1\ntest = 't'\ncommon.memset_count = 1\ncommon.sync_calls = -1\n", 4, "cannot be -1"),
    "an equals sign in a key": ("format = 1\ntest = 't'\n[common.region]\n'a=b'.sync_calls = -1\n", 4, "cannot be -1"),
    "a table in a row of tables": ("format = 1\ntest = 't'\n[[common]]\n", 3, "common is a section, not a list"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_wrong_is_said_with_file_and_line(case, tmp_path):
    source, line, sentence = DAMAGED[case]
    path = tmp_path / "a.toml"
    path.write_text(source)
    with pytest.raises(CutraceError, match=sentence) as error:
        read(path, test=None if source.startswith("format = 1\ntest = 't'") else TEST)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_bytes_that_are_no_text_are_found(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"format = 1\ntest = '\xff'\n")
    with pytest.raises(CutraceError, match=r"a\.toml:2: .*UTF-8"):
        read(path)


@pytest.mark.parametrize("place", ["absent.toml", "folder", "pipe"])
def test_what_is_no_file_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CutraceError, match=f"cannot read the golden file .*{place}"):
        read(Path(tmp_path / place))


def test_metrics_that_a_caller_knows_may_occur(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("format = 1\ntest = 't'\n[common]\ntokens = 3\n'ours.by_name' = { a = 1 }\n")
    with pytest.raises(CutraceError, match="no metric 'tokens'"):
        read(path)
    known = {**METRICS, "tokens": METRICS["kernel_launches"]}
    assert read(path, known=known).common.metrics == {"tokens": 3, "ours.by_name": {"a": 1}}
