"""Golden files on disk: their format, writing and reading, and errors for damaged files."""

from __future__ import annotations

import difflib
import errno
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.analysis.definitions import METRICS, MetricClass
from cutrace.errors import CutraceError
from cutrace.golden import Codes, Interval, Module, Observed, Span, golden_files, observed, read, text, write
from cutrace.golden.model import DIVIDED, SIGNED, function_of
from support.measured import MODULE, NAME, many, run

HEAD = f"""\
# Written by cutrace. Review it like code.
format = 2
module = "{MODULE}"
"""


def module(**entries: dict[str, Observed]) -> Module:
    return Module(MODULE, entries)


def kernels(**counts: int) -> Observed:
    """A test that only launched kernels."""
    return Observed({"": {"kernel_launches": dict(counts)}})


def body(golden: Module) -> str:
    """The golden file without its head."""
    said = text(golden)
    assert said.startswith(HEAD)
    return said.removeprefix(HEAD)


def changed_lines(old: str, new: str) -> list[str]:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and not line.startswith(("+++", "---"))]


# Writing values


def test_a_test_is_a_table_without_zeros_and_without_totals_of_what_is_listed_by_name():
    assert body(Module(MODULE, {NAME: {"sm_90": observed([run()])}})) == (
        'seen = ["sm_90"]\n'
        "\n"
        '["TestSoftmax::test_fwd[float16-1024x4096]"]\n'
        "kernels = { softmax_fwd = 1, vectorized_elementwise = 2 }\n"
        "memcpy_count = { d2h = 1 }\n"
        "memcpy_bytes = { d2h = 4 }\n"
        "memset_count = 1\n"
        "memset_bytes = 64\n"
        "syncs = { cudaStreamSynchronize = 1 }\n"
    )


def test_a_test_with_one_kernel_takes_at_most_four_lines_and_300_bytes():
    golden = text(many(100))
    per_test = (golden.count("\n") - HEAD.count("\n")) / 100
    assert per_test <= 4
    assert len(golden) / 100 < 300


def test_a_changed_count_is_a_diff_of_two_lines():
    golden = many(100)
    before = text(golden)
    golden.tests["test_fwd[50]"] = {"sm_90": kernels(softmax_fwd=2)}
    assert changed_lines(before, text(golden)) == ["-kernels = { softmax_fwd = 1 }", "+kernels = { softmax_fwd = 2 }"]


def test_many_names_take_a_line_each_so_that_a_changed_one_is_a_diff_of_two_lines():
    names = {f"a_kernel_with_a_long_name_{i}": 1 for i in range(9)}
    before, after = (
        module(test={"sm_90": kernels(**names)}),
        module(test={"sm_90": kernels(**names, another=1)}),
    )
    assert changed_lines(text(before), text(after)) == ["+kernels.another = 1"]


def test_what_each_class_looks_like():
    values = {
        "sync_calls": (1, 2),
        "peak_memory_bytes": Span(0, 4096),
        "allocations": Span(3, 3),
        "kernel_time_ns": Interval(18400, 18700, 18900, 3),
        "busy_ns": Interval(1, 2, 3, 9, (1, 1, 1, 2, 2, 2, 3, 3, 3)),
        "ours.tokens": 0,
    }
    seen = Observed({"": values, "forward": {"memset_count": 1}}, {"": {"memset_count": (1, 2)}})
    assert body(module(test={"sm_90": seen})) == (
        'seen = ["sm_90"]\n'
        "\n"
        "[test]\n"
        "sync_calls = [1, 2]\n"
        "allocations = 3\n"
        "peak_memory_bytes = { min = 0, max = 4096 }\n"
        "kernel_time_ns = { min = 18400, median = 18700, q3 = 18900, n = 3 }\n"
        "busy_ns = { min = 1, median = 2, q3 = 3, n = 9, samples = [1, 1, 1, 2, 2, 2, 3, 3, 3] }\n"
        '"ours.tokens" = 0\n'
        "unstable.memset_count = [1, 2]\n"
        "[test.region.forward]\n"
        "memset_count = 1\n"
    )


# Environments


def test_what_environments_share_is_written_once_and_the_rest_for_each():
    shared = {"fill": 1}
    entry = {"sm_80": kernels(ampere_gemm=1, **shared), "sm_90": kernels(sm90_gemm=1, **shared)}
    assert body(module(test=entry)) == (
        'seen = ["sm_80", "sm_90"]\n'
        "\n"
        "[test]\n"
        "kernels = { fill = 1 }\n"
        "[test.on.sm_80]\n"
        "kernels = { ampere_gemm = 1 }\n"
        "[test.on.sm_90]\n"
        "kernels = { sm90_gemm = 1 }\n"
    )


def test_a_test_seen_elsewhere_than_most_has_a_list_of_its_own():
    both = {"sm_80": kernels(fill=1), "sm_90": kernels(fill=1)}
    assert body(module(a=both, b=both, test={"sm_90": kernels(fill=1)})).endswith(
        '[test]\nseen = ["sm_90"]\nkernels = { fill = 1 }\n'
    )


def test_an_environment_that_one_run_alone_showed_is_marked():
    entry = {"sm_80": kernels(fill=1), "sm_90": Observed(kernels(fill=1).values, confirmed=False)}
    assert body(module(test=entry)).endswith('[test]\nunconfirmed = ["sm_90"]\nkernels = { fill = 1 }\n')


def test_a_region_in_one_environment_alone_is_written_there():
    entry = {"sm_80": kernels(fill=1), "sm_90": Observed({**kernels(fill=1).values, "forward": {"memset_count": 1}})}
    assert body(module(test=entry)).endswith(
        "[test]\nkernels = { fill = 1 }\n[test.on.sm_90.region.forward]\nmemset_count = 1\n"
    )


# Reading it back

# Names of every kind: tests, kernels, regions.
hostile = st.sampled_from(
    ['"', "\\", "\n", "\r\n", "\0", "\x7f", "\u202e", "é", "a.b", " ", "]", "#", "format", "module", "seen", "::seen",
     "region", "on", "unstable", "kernels", "::", ""]
)  # fmt: skip
names = st.one_of(st.text(st.characters(codec="utf-8"), max_size=8), hostile)
environments = st.sampled_from(["sm_80", "sm_90", "sm_90-cuda13", "sm_90+sm_120"])
counts = st.integers(0, 2**63 - 1)
alternatives = st.sets(counts, min_size=2, max_size=3).map(lambda found: tuple(sorted(found)))
parts = st.dictionaries(names, st.one_of(counts, alternatives), min_size=1, max_size=3)
code = st.from_regex(r"\A[0-9a-f]{16}( registers=[1-9][0-9]?)?( local=8)?( bytes=512)?\Z")
codes_of_kernel = st.sets(code, min_size=1, max_size=2).map(lambda found: tuple(sorted(found)))
codes = st.dictionaries(names, codes_of_kernel, max_size=3).map(Codes)


@st.composite
def intervals(draw) -> Interval:
    samples = sorted(draw(st.lists(counts, min_size=1, max_size=12)))
    n = len(samples)
    return Interval(samples[0], samples[n // 2], samples[-1], n, tuple(samples) if draw(st.booleans()) else ())


def values_of(name: str) -> st.SearchStrategy:
    if name not in METRICS:
        return st.integers(-(2**62), 2**62)
    if METRICS[name].kind is MetricClass.CODE:
        return codes
    if METRICS[name].kind is MetricClass.TIME:
        return intervals()
    if METRICS[name].kind is MetricClass.STATE:
        edges = st.tuples(*[st.integers(-(2**62) if name in SIGNED else 0, 2**62)] * 2)
        return edges.map(lambda found: Span(min(found), max(found)))
    return st.one_of(parts, counts, alternatives) if name in DIVIDED else st.one_of(counts, alternatives)


STORED = [name for name, found in METRICS.items() if not found.total and found.kind is not MetricClass.INFO]


def values(*metrics: str) -> st.SearchStrategy:
    return st.lists(st.sampled_from(metrics), unique=True, max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({name: values_of(name) for name in chosen})
    )


of_tests = values(*STORED, "ours.tokens", "ours.a/b")
of_regions = values(*[name for name in STORED if name != "code"], "ours.tokens")
#: A region with an empty name is the whole window, so such names are filtered out.
regions = st.dictionaries(names.filter(bool), of_regions, max_size=1)


@st.composite
def observations(draw) -> Observed:
    found = {"": draw(of_tests), **draw(regions)}
    unstable = {region: draw(of_regions if region else of_tests) for region in found if draw(st.booleans())}
    return Observed(found, {region: shaky for region, shaky in unstable.items() if shaky}, draw(st.booleans()))


entries = st.dictionaries(environments, observations(), min_size=1, max_size=3)


@st.composite
def modules(draw) -> Module:
    tests = draw(st.dictionaries(names, entries, max_size=2))
    marks = {function_of(test): f"{draw(st.integers(0, 0xFFFF)):04x}" for test in tests if draw(st.booleans())}
    return Module(draw(names), tests, marks=marks)


@given(golden=modules())
def test_every_golden_file_comes_back_and_nothing_in_it_steers_a_terminal_or_breaks_a_line(tmp_path_factory, golden):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text(golden), encoding="utf-8", newline="")
    assert all(line.isprintable() for line in text(golden).split("\n"))
    again = read(path)
    assert again == golden
    assert list(again.tests) == list(golden.tests)
    assert text(again) == text(golden)


@pytest.mark.parametrize(
    ("character", "written"),
    [
        ("é", "é"), ("\U0001f600", "\U0001f600"), ('"', r"\""), ("\\", r"\\"), ("\t", r"\t"), ("\n", r"\n"),
        ("\x00", r"\u0000"), ("\x7f", r"\u007F"), ("\u200b", r"\u200B"), ("\u202e", r"\u202E"),
        ("\uffff", r"\uFFFF"), ("\U000e0001", r"\U000E0001"),
    ],
)  # fmt: skip
def test_invisible_characters_have_the_shortest_escape(character, written):
    golden = module(**{f"test[{character}]": {"sm_90": kernels(**{character: 1})}})
    assert body(golden).endswith(f'\n["test[{written}]"]\nkernels = {{ "{written}" = 1 }}\n')


def test_the_order_in_which_environments_and_metrics_were_found_does_not_show():
    one, other = observed([run()]), observed([run(memset_count=2)])
    backwards = Observed({"": dict(reversed(one.values[""].items()))})
    assert text(module(test={"sm_80": other, "sm_90": one})) == text(module(test={"sm_90": backwards, "sm_80": other}))


def test_an_id_that_no_text_can_hold_is_an_error():
    with pytest.raises(CutraceError, match=r"the name 'test\[\\udc80\]' has a character"):
        text(module(**{"test[\udc80]": {"sm_90": Observed()}}))


def test_a_mark_stands_before_the_first_parameter_and_a_line_explains_it():
    golden = replace(many(2), marks={"test_fwd": "3f2a"})
    first, _, rest = text(golden).partition("\n")
    assert first == HEAD.partition("\n")[0]
    assert rest.startswith("# A line such as")
    assert '\n\n# 3f2a\n["test_fwd[0]"]\n' in rest
    assert rest.count("# 3f2a\n") == 1


# Branches


def test_two_branches_that_add_tests_in_different_places_merge(tmp_path):
    base = many(6)
    tests = list(base.tests.items())
    new = ("test_new", {"sm_90": kernels(fill=1)})
    ours, theirs = (Module(MODULE, dict([*tests[:at], (f"{new[0]}_{at}", new[1]), *tests[at:]])) for at in (1, 4))
    for name, golden in {"base": base, "ours": ours, "theirs": theirs}.items():
        (tmp_path / name).write_text(text(golden))
    merge = ["git", "merge-file", "-p", "ours", "base", "theirs"]
    done = subprocess.run(merge, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    (tmp_path / "merged").write_text(done.stdout)
    assert read(tmp_path / "merged").tests == {**ours.tests, **theirs.tests}


# Writing


def test_writing_makes_folders_replaces_in_one_step_and_leaves_an_ordinary_file(tmp_path):
    path = tmp_path / "tests" / "test_a.toml"
    golden = module(test={"sm_90": kernels(fill=1)})
    write(golden, path)
    with path.open() as old:
        write(module(), path)
        assert old.read() == text(golden)
    assert list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_file_that_is_a_link_stays_one(tmp_path):
    (tmp_path / "link.toml").symlink_to("a.toml")
    write(module(), tmp_path / "link.toml")
    assert (tmp_path / "link.toml").is_symlink()
    assert (tmp_path / "a.toml").read_text() == text(module())


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CutraceError, match=r"cannot write .*a\.toml: (Not a directory|File exists)"):
        write(module(), tmp_path / "file" / "a.toml")


def test_golden_files_are_those_that_end_with_toml_and_are_not_hidden(tmp_path):
    for name in ("b/c.toml", "a.toml", ".x.toml", ".hidden/d.toml", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder.toml").mkdir()
    assert list(golden_files(tmp_path)) == [tmp_path / "a.toml", tmp_path / "b" / "c.toml"]


def test_a_folder_that_cannot_be_read_is_no_folder_without_golden_files(tmp_path, monkeypatch):
    (tmp_path / "locked").mkdir()
    scandir = os.scandir

    def refuse(folder):
        if Path(folder).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(CutraceError, match=r"cannot read the folder .*locked: Permission denied\. Check its name and"):
        list(golden_files(tmp_path))


def test_the_values_of_an_environment_replace_those_of_all(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        f'{HEAD}seen = ["sm_80", "sm_90"]\n\n[test]\nmemset_count = 1\nunstable.sync_calls = [1, 2]\n'
        "[test.on.sm_90]\nmemset_count = 2\nunstable.sync_calls = [3, 4]\n"
    )
    found = {name: (seen.values[""], seen.unstable[""]) for name, seen in read(path).tests["test"].items()}
    assert found == {
        "sm_80": ({"memset_count": 1}, {"sync_calls": (1, 2)}),
        "sm_90": ({"memset_count": 2}, {"sync_calls": (3, 4)}),
    }


def test_control_characters_have_the_short_escapes_of_toml():
    golden = Module(MODULE, {'\b\t\n\f\r"\\\x01': {"sm_90": kernels(fill=1)}})
    assert '["\\b\\t\\n\\f\\r\\"\\\\\\u0001"]' in body(golden)


# Damaged files

GOOD = f"""\
{HEAD}seen = ["sm_90"]

[test]
kernels = {{ softmax_fwd = 1 }}
memset_count = 1
kernel_time_ns = {{ min = 4, median = 5, q3 = 6, n = 2, samples = [4, 6] }}
[test.region.forward]
memset_count = 1
[test.on.sm_90]
sync_calls = 2

[test_b]
memset_count = 1
"""


def but(old: str, new: str) -> str:
    """The valid file with another string in one place."""
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def count(value: str) -> str:
    return but("memset_count = 1", f"memset_count = {value}")


def time(value: str) -> str:
    return but("{ min = 4, median = 5, q3 = 6, n = 2, samples = [4, 6] }", value)


DAMAGED = {
    "marks of a merge conflict": (but("[test_b]", "<<<<<<< ours\n[test_b]"), 15, "marks of a merge conflict"),
    "the end of such marks": (GOOD + ">>>>>>> theirs\n", 17, "choose one side"),
    "the middle of such marks": (GOOD + "=======\n", 17, "Take the file from version control"),
    "a file that stops in a line": (GOOD[: GOOD.index("memset_count")] + "memset", 8, "at the end of the file"),
    "a test twice": (GOOD + "[test_b]\n", 17, "[Dd]eclare"),
    "a metric twice": (count("1\nmemset_count = 2"), 9, "overwrite"),
    "a metric in two words": (but("memset_count", "kernel_launches = 1\nmemset_count"), 8, "repeats the value"),
    "no golden file": ('[project]\nname = "x"\n', 1, "this is not a golden file"),
    "an empty file": ("", 1, "this is not a golden file"),
    "a format that is no number": (but("format = 2", 'format = "2"'), 2, "this is not a golden file"),
    "format 1": ('format = 1\ntest = "a"\n[common]\n', 1, "format 1 is no longer supported: delete the folder"),
    "a later format": (but("format = 2", "format = 3"), 2, "format 3 is newer than 2.* install a newer cutrace"),
    "no module": (but("module", "# module"), 1, "no line 'module = ...'"),
    "another module": (but(MODULE, "tests/test_b.py"), 3, f"golden file of 'tests/test_b.py', not of '{MODULE}'"),
    "a module that is no text": (but(f'"{MODULE}"', "7"), 3, "module is a string in quotes, not a number"),
    "no environment": (but('seen = ["sm_90"]\n', ""), 5, "the environments of the values are missing"),
    "environments that are no list": (but('["sm_90"]', '"sm_90"'), 4, r"seen is a list of environments"),
    "an environment that was not seen": (but("[test.on.sm_90]", "[test.on.sm_80]"), 12, "'sm_80' is not among"),
    "an unconfirmed one that was not seen": (but("[test]", '[test]\nunconfirmed = ["x"]'), 7, "'x' is not among"),
    "a test that is no table": (but('seen = ["sm_90"]', 'seen = ["sm_90"]\nb = 3'), 5, "b is a table, not a number"),
    "an unknown metric": (count("1").replace("memset_count", "memsets_count", 1), 8, "did you mean memset_count"),
    "nothing like a metric": (but("memset_count", "x"), 8, r"reference of the pytest plugin"),
    "an unknown metric of a region": (but("forward]\nmem", "forward]\nmam"), 11, "did you mean memset_count"),
    "an unknown metric of an environment": (but("sync_calls", "sink_calls"), 13, "did you mean sync_calls"),
    "an unknown unstable metric": (but("memset_count", "unstable.malloc"), 8, "no metric 'malloc'"),
    "a list of environments in one": (but("sync_calls = 2", 'seen = ["sm_90"]'), 13, "no metric 'seen'"),
    "a region in a region": (but("forward]", "forward.region.a]"), 10, "no metric 'region'"),
    "a region as a number": (but("[test.region.forward]\nmem", "[test.region]\nf = 3\n#"), 11, "f is a table, not"),
    "a string": (count('"1"'), 8, "memset_count is a whole number, not a string"),
    "a truth": (count("true"), 8, "not true or false"),
    "a fraction": (count("1.0"), 8, "not a fraction"),
    "a date": (count("2020-01-01"), 8, "not a date"),
    "counts by name of what has no names": (count("{ a = 1 }"), 8, "memset_count is a whole number, not a table"),
    "a negative count": (count("-1"), 8, "memset_count cannot be -1"),
    "a count beyond 64 bits": (count(str(2**63)), 8, "cannot be"),
    "a number of too many digits": (count("9" * 5000), 8, "digits"),
    "a negative count by name": (but("softmax_fwd = 1", "softmax_fwd = -1"), 7, "softmax_fwd cannot be -1"),
    "one alternative": (count("[1]"), 8, "two or more different alternatives"),
    "an alternative twice": (count("[1, 1]"), 8, "two or more different alternatives"),
    "a breakdown that is a number": (but("{ softmax_fwd = 1 }", "1"), 7, "kernels is a table of counts by name"),
    "a part by itself": (but("memset_count", "memcpy_d2h_count"), 8, r"write memcpy_count = \{ d2h = 1 \}"),
    "what is never compared": (but("memset_count", "idle_share"), 8, "idle_share is never compared"),
    "a range that is none": (but("memset_count = 1", "frees = { min = 3, max = 2 }"), 8, "frees is a range"),
    "a negative range": (but("memset_count = 1", "frees = { min = -1, max = 2 }"), 8, "min cannot be -1"),
    "a time that is a number": (time("3"), 9, "kernel_time_ns is an interval"),
    "a time without a part": (time("{ min = 4, median = 5, q3 = 6 }"), 9, "is an interval"),
    "a time out of order": (time("{ min = 9, median = 5, q3 = 6, n = 2 }"), 9, "min <= median <= q3"),
    "samples that are missing": (time("{ min = 4, median = 5, q3 = 6, n = 2, samples = [4] }"), 9, "n samples"),
    "samples that are no list": (time("{ min = 4, median = 5, q3 = 6, n = 2, samples = 4 }"), 9, "samples is a list"),
    "a nest of brackets": ("x = " + "[" * 5000, 1, "nested too deeply|end of the file"),
    "a table in a row of tables": (but("[test_b]", "[[test_b]]"), 15, "test_b is a table, not a list"),
}  # fmt: skip


def test_the_good_file_is_good(tmp_path):
    (tmp_path / "a.toml").write_text(GOOD)
    assert list(read(tmp_path / "a.toml", module=MODULE).tests) == ["test", "test_b"]


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_wrong_is_said_with_file_and_line(case, tmp_path):
    source, line, sentence = DAMAGED[case]
    path = tmp_path / "a.toml"
    path.write_text(source)
    with pytest.raises(CutraceError, match=sentence) as error:
        read(path, module=MODULE)
    assert str(error.value).startswith(f"{path}:{line}: ")
    assert "\n" not in str(error.value)


def test_a_mark_of_the_encoding_and_ends_of_lines_of_windows_are_read(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert list(read(path, module=MODULE).tests) == ["test", "test_b"]


def test_bytes_that_are_no_text_are_found(tmp_path):
    path = tmp_path / "a.toml"
    path.write_bytes(b"format = 2\nmodule = '\xff'\n")
    with pytest.raises(CutraceError, match=r"a\.toml:2: .*UTF-8"):
        read(path)


@pytest.mark.parametrize("place", ["absent.toml", "folder", "pipe"])
def test_what_is_no_file_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CutraceError, match=f"cannot read the golden file .*{place}"):
        read(Path(tmp_path / place))
