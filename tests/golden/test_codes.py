"""The machine code of kernels in golden files: comparison, updates, files and errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cutrace.analysis.definitions import Metrics
from cutrace.errors import CutraceError
from cutrace.golden import (
    Codes,
    Comparison,
    Entry,
    Module,
    Observed,
    Row,
    Rules,
    Update,
    Verdict,
    compare,
    difference,
    observed,
    parse_gate,
    parse_ignore,
    parse_tolerance,
    parse_update,
    read,
    text,
)
from cutrace.golden.codes import changed_codes, code_difference
from cutrace.golden.decide import Expectation, GateSettings, MeasuredRun, Next, State, decide
from cutrace.golden.files import may_have_code
from cutrace.golden.model import plain, stored
from cutrace.golden.rules import parse_limits
from cutrace.trace.codes import KernelCode
from support.measured import MODULE, NAME, TEST, entry, run, updated

FIRST = "9f3c52d0a1b2c3d4 registers=32 shared=1024 bytes=512"
OTHER = "0000000000000001 registers=40 shared=1024 bytes=512"
THIRD = "0000000000000002 registers=40 local=8 bytes=640"
FILL = "0000000000000003 registers=8 bytes=128"
CODE = {"softmax_fwd": (FIRST,), "vectorized_elementwise": (FILL,)}
CHANGED = {**CODE, "softmax_fwd": (OTHER,)}
GATED = Rules(parse_gate("work,code"))


def coded(codes: dict[str, tuple[str, ...]] | None = CODE, **changed: Any) -> Metrics:
    return replace(run(**changed), codes=codes)


def golden(*runs: Metrics) -> Entry:
    return entry(*(runs or (coded(),)))


def against(before: Entry, *runs: Metrics, rules: Rules = GATED, on: str = "sm_90") -> Comparison:
    return compare(before, runs, environment=on, rules=rules)


def row(comparison: Comparison) -> Row | None:
    return next((one for one in comparison.rows if one.metric == "code"), None)


# Two codes


def test_a_code_is_written_as_its_recording_describes_it():
    code = KernelCode(0x9F3C52D0A1B2C3D4, registers=32, static_shared=1024, local=0, size=512, architecture=90)
    assert code.description == FIRST
    assert observed([coded({"k": (code.description,)})]).values[""]["code"] == Codes({"k": (FIRST,)})


@pytest.mark.parametrize(
    ("old", "new", "phrases"),
    [
        ([FIRST], [FIRST], []),
        ([FIRST], [FIRST.replace("32", "33")], []),  # the hash decides
        ([FIRST], [OTHER], ["other code", "registers 32 -> 40"]),
        ([OTHER], [THIRD], ["other code", "static shared 1024 -> 0", "local 0 -> 8", "code bytes 512 -> 640"]),
        ([FIRST, OTHER], [OTHER, THIRD], ["other code", "registers 32 -> 40", "static shared 1024 -> 0",
                                          "local 0 -> 8", "code bytes 512 -> 640"]),
        ([FIRST], [OTHER, THIRD], ["other code (1 gone, 2 new)"]),
    ],
)  # fmt: skip
def test_a_difference_names_what_the_compiler_changed(old, new, phrases):
    assert code_difference(old, new) == phrases


def test_kernels_are_named_and_many_are_counted():
    assert changed_codes(CODE, CHANGED) == "softmax_fwd: other code, registers 32 -> 40"
    assert changed_codes({"a": (FIRST,)}, {"b": (FIRST,)}) == "- code of a; + code of b"
    many = {f"k{i}": (FIRST,) for i in range(8)}
    assert changed_codes(many, dict.fromkeys(many, (OTHER,))).endswith("; and 2 more")


# Comparison


def test_equal_code_is_the_same():
    found = row(against(golden(), coded()))
    assert found is not None
    assert (found.verdict, found.gated, found.failed, found.rule) == (Verdict.SAME, True, False, "exact")


def test_other_code_fails_where_the_gate_names_it():
    found = row(against(golden(), coded(CHANGED)))
    assert found is not None
    assert (found.verdict, found.failed) == (Verdict.CHANGED, True)
    assert found.detail == "softmax_fwd: other code, registers 32 -> 40"
    for gate in ("work,counter", "work,counter,state,time", "none"):
        told = row(against(golden(), coded(CHANGED), rules=Rules(parse_gate(gate))))
        assert told is not None
        assert (told.verdict, told.failed, told.gated) == (Verdict.CHANGED, False, False)


def test_the_worst_of_several_runs_counts():
    found = row(against(golden(), coded(), coded(CHANGED)))
    assert found is not None
    assert found.verdict is Verdict.CHANGED
    assert found.detail == "softmax_fwd: other code, registers 32 -> 40 (in 1 of 2 runs)"


@pytest.mark.parametrize("word", ["unknown", "ambiguous"])
def test_code_that_is_not_known_is_never_equal(word):
    found = against(golden(), coded({**CODE, "softmax_fwd": (word,)}))
    assert found.unverified == "the machine code of a kernel is not known"
    assert not found.failed
    partly = against(golden(), coded({**CODE, "softmax_fwd": (FIRST, word)}))
    assert partly.unverified == "the machine code of a kernel is not known"
    free = row(against(golden(), coded({**CODE, "softmax_fwd": (word,)}), rules=Rules()))
    assert free is not None
    assert free.verdict is Verdict.NEW
    # Code is not compared if the golden file has no code of this kernel.
    without = {"vectorized_elementwise": (FILL,)}
    assert against(golden(coded(without)), coded({**without, "softmax_fwd": (word,)})).unverified


def test_other_code_is_told_although_that_of_another_kernel_is_not_known():
    found = row(against(golden(), coded({**CHANGED, "vectorized_elementwise": ("unknown",)})))
    assert found is not None
    assert found.verdict is Verdict.CHANGED


def test_a_kernel_without_golden_code_is_not_verified():
    found = against(golden(), coded({**CODE, "cast": (FIRST,)}))
    assert found.unverified == "no golden value of code"
    assert row(found).detail == "no golden value of code: cast"
    assert against(entry(run()), coded()).unverified == "no golden value of code"
    assert row(against(entry(run()), coded(), rules=Rules())) is None


def test_kernels_that_are_gone_are_a_matter_of_their_number():
    found = against(golden(), coded({"softmax_fwd": (FIRST,)}))
    assert row(found).verdict is Verdict.SAME


def test_code_of_one_gpu_says_nothing_about_another():
    both = {**golden(), **entry(coded(), environment="sm_80")}
    elsewhere = against(both, coded(CHANGED), on="sm_120")
    assert row(elsewhere).verdict is Verdict.UNVERIFIED
    assert elsewhere.unverified == "no golden for sm_120"
    own = Rules(own=("softmax*", "vectorized*"))
    assert row(against(golden(), coded(CHANGED), rules=own, on="sm_120")) is None


@pytest.mark.parametrize("before", [golden(), entry(run())])
def test_a_gate_without_a_recording_of_code_says_what_to_do(before):
    found = against(before, run())
    assert "cutrace_gate = work,counter,code" in found.unverified
    assert row(against(before, run(), rules=Rules())) is None


def test_a_run_without_kernels_has_no_code_to_compare():
    nothing = run(kernels={})
    before = entry(nothing)
    assert row(against(before, nothing)) is None
    assert row(against(before, replace(nothing, codes={}))) is None


@pytest.mark.parametrize("ignored", ["code", "code:softmax*", "kernels:softmax*"])
def test_ignored_kernels_have_no_code(ignored):
    rules = Rules(GATED.gate, ignore=parse_ignore(ignored))
    found = row(against(golden(), coded(CHANGED), rules=rules))
    assert found is None or found.verdict is Verdict.SAME
    assert "softmax_fwd" not in str(observed([coded()], rules).values[""].get("code", ""))


# Updates


def test_an_update_writes_what_is_known():
    found = observed([coded({**CODE, "softmax_fwd": ("ambiguous",)})])
    assert found.values[""]["code"] == Codes({"vectorized_elementwise": (FILL,)})
    assert "code" not in observed([coded({"softmax_fwd": ("unknown",)})]).values[""]


def test_runs_that_differ_make_it_unstable():
    found = observed([coded(), coded(CHANGED)])
    assert "code" not in found.values[""]
    shaky = {**CODE, "softmax_fwd": (OTHER, FIRST)}
    assert found.unstable[""] == {"code": Codes(shaky)}
    compared = row(against({"sm_90": found}, coded()))
    assert compared is not None
    assert (compared.verdict, compared.gated) == (Verdict.UNSTABLE, False)


@pytest.mark.parametrize(
    ("update", "written"),
    [("changed", CHANGED), ("all", CHANGED), ("code", CHANGED), ("missing", CODE), ("kernels", CODE)],
)
def test_an_update_replaces_other_code(update, written):
    after, _ = updated(golden(), coded(CHANGED), update=update)
    assert after["sm_90"].values[""]["code"] == Codes(written)


@pytest.mark.parametrize("update", ["changed", "missing", "code"])
def test_an_update_adds_code(update):
    after, _ = updated(entry(run()), coded(), update=update)
    assert after["sm_90"].values[""]["code"] == Codes(CODE)


def test_an_update_without_code_keeps_what_there_is():
    after, _ = updated(golden(), run(), update="all")
    assert after == golden()


def verdict(before: Entry | None, update: str, gate: str = "work", *runs: Metrics) -> Any:
    """The decision on a test in a session that records code."""
    expected = Expectation(Rules(parse_gate(gate)), Path("golden/test_a.toml"), entry=before)
    settings = GateSettings(parse_update(update) if update else None)
    measured = [MeasuredRun(one, "sm_90") for one in runs or (coded(CHANGED),) * 3]
    return decide(expected, measured, settings)


@pytest.mark.parametrize(
    ("before", "update", "gate", "written"),
    [
        (None, "changed", "work", None),
        (None, "changed", "work,code", CHANGED),
        (None, "code", "work", CHANGED),
        (entry(run()), "changed", "work", None),
        (entry(run()), "all", "work", None),
        (entry(run()), "changed", "work,code", CHANGED),
        (entry(run()), "code", "work", CHANGED),
        (entry(coded(), environment="sm_80"), "changed", "work", CHANGED),
        (golden(), "changed", "work", CHANGED),
    ],
)
def test_an_update_writes_code_where_there_is_some_or_someone_asks(before, update, gate, written):
    new = verdict(before, update, gate).new_values
    values = new.observed.values[""] if new.observed else {}
    assert values.get("code") == (written and Codes(written))


def test_a_test_with_code_of_some_kernels_notes_the_others():
    partly = coded({**CODE, "softmax_fwd": ("ambiguous",)})
    for gate, update in (("work", ""), ("work,code", ""), ("work", "code")):
        found = verdict(golden(), update, gate, partly, partly, partly)
        assert "the machine code of softmax_fwd is not known, so it is not compared" in found.notes
    assert verdict(golden(), "", "work,code", partly, partly, partly).state is State.UNVERIFIED
    assert verdict(golden(), "", "work", partly, partly, partly).state is State.GATED
    assert not verdict(entry(run()), "", "work", partly).notes


def test_code_that_is_not_known_needs_no_further_run():
    partly = coded({**CODE, "softmax_fwd": ("ambiguous",)})
    assert verdict(golden(partly), "", "work,code", partly).next is Next.PASS


def test_own_kernels_change_their_code_in_one_environment_only():
    own = Rules(own=("softmax*",))
    both = {**golden(), **entry(coded(), environment="sm_80")}
    after, _ = updated(both, coded(CHANGED), own=own.own)
    assert after["sm_80"] == both["sm_80"]


# Files


def test_code_stands_below_its_environment():
    several = {"softmax_fwd": (OTHER, FIRST), "void fill<int>": (FILL,)}
    found = observed([coded(several, kernels={"softmax_fwd": 1})])
    said = text(Module(MODULE, {"test": {"sm_90": Observed({"": {"code": found.values[""]["code"]}})}}))
    assert said.endswith(
        f'[test]\n[test.on.sm_90]\ncode.softmax_fwd = ["{OTHER}", "{FIRST}"]\ncode."void fill<int>" = "{FILL}"\n'
    )


def test_equal_code_of_several_environments_is_written_for_each(tmp_path):
    both = Module(MODULE, {"test": {**golden(), **entry(coded(), environment="sm_80")}})
    said = text(both)
    assert said.count("code.softmax_fwd") == 2
    shared, _, _ = said.partition(".on.")
    assert "\ncode" not in shared
    (tmp_path / "a.toml").write_text(said)
    assert read(tmp_path / "a.toml") == both


def test_other_code_is_a_diff_of_one_line():
    lines = [text(Module(MODULE, {NAME: golden(coded(codes))})).split("\n") for codes in (CODE, CHANGED)]
    assert len(lines[0]) == len(lines[1])
    assert sum(old != new for old, new in zip(*lines, strict=True)) == 1


def test_a_difference_of_golden_files_names_the_kernel():
    (found,) = difference(TEST, golden(), golden(coded(CHANGED))).environments["sm_90"]
    assert (found.metric, found.detail) == ("code", "softmax_fwd: other code, registers 32 -> 40")
    (gone,) = difference(TEST, golden(), entry(run())).environments["sm_90"]
    assert gone.detail == "- code of softmax_fwd; - code of vectorized_elementwise"
    assert difference(TEST, entry(run()), golden()).environments["sm_90"]


HEAD = f'format = 2\nmodule = "{MODULE}"\nseen = ["sm_90"]\n\n'
WRONG = {
    "for all": (f'[test]\ncode.k = "{FILL}"', 6, "code depends on the GPU: write it below [test.on.sm_90]"),
    "a region": (f'[test]\n[test.on.sm_90.region.a]\ncode.k = "{FILL}"', 7, "code belongs to the whole test"),
    "no table": (f'[test]\n[test.on.sm_90]\ncode = "{FILL}"', 7, "code is a table of strings by kernel, not a string"),
    "a number": ("[test]\n[test.on.sm_90]\ncode.k = 7", 7, "the code of k is a hash of 16 digits"),
    "no list": ("[test]\n[test.on.sm_90]\ncode.k = []", 7, "the code of k is a hash of 16 digits"),
    "a short hash": ('[test]\n[test.on.sm_90]\ncode.a = "0000000000000001"\ncode.k = "9f3c"', 8, "the code of k"),
    "a word": ('[test]\n[test.on.sm_90]\ncode.k = "ambiguous"', 7, "the code of k is a hash of 16 digits"),
    "a property": ('[test]\n[test.on.sm_90]\ncode.k = ["0000000000000001 speed=2"]', 7, "the code of k is a hash"),
    "unstable": (f'[test]\nunstable.code.k = ["{FILL}", "{OTHER}"]', 6, "code depends on the GPU"),
}  # fmt: skip


@pytest.mark.parametrize(("said", "line", "reason"), WRONG.values(), ids=WRONG)
def test_a_wrong_code_is_an_error_with_file_and_line(tmp_path, said, line, reason):
    path = tmp_path / "test_a.toml"
    path.write_text(HEAD + said + "\n")
    with pytest.raises(CutraceError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}:{line}: {reason}")


@pytest.mark.parametrize(
    ("entry_of_test", "found"),
    [
        (golden(), True),
        ({"sm_90": observed([coded(), coded(CHANGED)])}, True),
        (entry(run(kernels={"decode": 1, "code": 2})), False),
    ],
)
def test_code_is_found_without_reading_the_file(tmp_path, entry_of_test, found):
    path = tmp_path / "test_a.toml"
    path.write_text(text(Module(MODULE, {"test_code[code = 1]": entry_of_test})))
    assert may_have_code(path) is found
    assert not may_have_code(tmp_path / "none.toml")


def test_json_holds_codes():
    assert stored(plain(Codes(CODE))) == Codes(CODE)


# Words


def test_code_is_a_word_of_gates_and_updates():
    assert parse_gate("work,code") == {"work", "code"}
    assert parse_update("all,code") == Update("all", frozenset({"code"}))
    assert parse_ignore("code:nccl*") == ("code:nccl*",)


def test_code_has_neither_tolerance_nor_limit():
    with pytest.raises(CutraceError, match="code is equal or not, and has no tolerance"):
        parse_tolerance("code=10%")
    with pytest.raises(CutraceError, match="cannot be limited: gate it instead"):
        parse_limits({"code": 1})
