"""What a golden file says after an update: what is written, where, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutrace.analysis.metrics import Gate, Metrics
from cutrace.errors import CutraceError
from cutrace.golden import Golden, Interval, Rules, Section, compare, measured, text, unsettled, updated
from support.measured import H200, TEST, run

A100 = "nvidia-a100"
MIB = 1 << 20


def update(
    golden: Golden | None, *runs: Metrics, mode: Any = "changed", gpu: str = H200, recorded: str = "r", **rules: Any
) -> tuple[Golden, tuple[str, ...]]:
    return updated(golden, runs, test=TEST, gpu=gpu, recorded=recorded, mode=mode, rules=Rules(**rules))


def first(*runs: Metrics, **options: Any) -> Golden:
    return update(None, *(runs or (run(),)), **options)[0]


def test_exact_metrics_hold_everywhere_memory_and_times_on_their_gpu():
    golden = first()
    assert golden.test == TEST
    assert golden.common.metrics["kernels"] == {"softmax_fwd": 1, "vectorized_elementwise": 2}
    assert golden.common.metrics["graph_launches"] == 0
    assert golden.gpus == {
        H200: Section(
            {
                "peak_memory_bytes": 32 * MIB,
                "net_memory_bytes": 0,
                "kernel_time_ns": Interval(18_700, 18_700, 18_700, 1),
                "busy_ns": Interval(18_000, 18_000, 18_000, 1),
                "api_time_ns": Interval(40_000, 40_000, 40_000, 1),
            },
            recorded="r",
        )
    }


def test_what_did_not_happen_is_written_so_that_it_fails_when_it_does():
    written = text(first(run(kernel_launches=0, kernels={}, sync_calls=0, syncs={})))
    assert "kernels = {}\n" in written
    assert "syncs = {}\n" in written
    assert "sync_calls = 0\n" in written
    assert "memcpy_h2d" not in written


def test_what_is_never_compared_is_not_written():
    assert "idle_share" not in text(first())


def test_what_runs_do_not_agree_on_is_listed_and_not_written():
    golden, notes = update(
        None,
        run(sync_calls=1, regions={"f": {"memset_count": 1}}),
        run(sync_calls=2, regions={"f": {"memset_count": 2}}),
    )
    assert golden.common.unstable == ("sync_calls", "f/memset_count")
    assert "sync_calls" not in golden.common.metrics
    assert notes[0] == "sync_calls is not recorded: runs do not agree on it"


def test_memory_of_several_runs_is_the_highest_unless_they_are_far_apart():
    golden = first(run(peak_memory_bytes=MIB), run(peak_memory_bytes=2 * MIB))
    assert golden.gpus[H200].metrics["peak_memory_bytes"] == 2 * MIB
    golden = first(run(peak_memory_bytes=MIB), run(peak_memory_bytes=9 * MIB))
    assert golden.gpus[H200].unstable == ("peak_memory_bytes",)


def test_runs_that_agree_are_settled_whatever_their_times():
    assert unsettled([run(), run(kernel_time_ns=99_000)]) == ()
    assert unsettled([run(), run(sync_calls=7, peak_memory_bytes=0)]) == ("sync_calls", "peak_memory_bytes")
    assert unsettled([run()]) == ()


@pytest.mark.parametrize("runs", [[run(problems=("records dropped",))], []])
def test_nothing_is_recorded_of_what_cannot_be_trusted(runs):
    with pytest.raises(CutraceError, match="nothing is recorded of tests/test_softmax"):
        update(None, *runs)


def test_another_test_is_an_error():
    with pytest.raises(CutraceError, match="cannot be updated with"):
        update(replace(first(), test="other"), run())


def test_a_golden_file_passes_the_runs_it_was_made_of():
    runs = [run(regions={"f": {"kernel_launches": 1}}), run(regions={"f": {"kernel_launches": 1}})]
    assert not compare(first(*runs), runs, gpu=H200, rules=Rules(strict=True)).failed


@pytest.mark.parametrize("mode", ["missing", "changed", "all"])
def test_nothing_changes_when_nothing_changed(mode):
    golden = first()
    again = run(kernel_time_ns=19_500, peak_memory_bytes=33 * MIB)
    assert text(update(golden, again, mode=mode, recorded="another driver")[0]) == text(golden)


# What replaces what

MODES = {
    "an exact metric": ({"sync_calls": 2}, {"changed", "all"}, "CHANGED"),
    "an exact metric that is less": ({"sync_calls": 0}, {"changed", "all"}, "CHANGED"),
    "more memory": ({"peak_memory_bytes": 64 * MIB}, {"all"}, "WORSE"),
    "less memory": ({"peak_memory_bytes": 16 * MIB}, {"changed", "all"}, "BETTER"),
    "a slower time": ({"kernel_time_ns": 60_000}, {"all"}, ""),
    "a faster time": ({"kernel_time_ns": 8_000}, {"changed", "all"}, ""),
}


@pytest.mark.parametrize("mode", ["missing", "changed", "all"])
@pytest.mark.parametrize("case", MODES)
def test_what_an_update_replaces(case, mode):
    changed, modes, verdict = MODES[case]
    golden, notes = update(first(), run(**changed), mode=mode)
    assert (text(golden) != text(first())) is (mode in modes)
    # Times are not gated here, so that nobody needs to hear of them.
    noted = bool(verdict) and mode not in modes
    assert [note.partition(":")[0] for note in notes] == (
        [f"{next(iter(changed))} keeps its value ({verdict})"] if noted else []
    )


def test_what_is_kept_says_how_to_replace_it():
    assert update(first(), run(peak_memory_bytes=64 * MIB))[1] == (
        "peak_memory_bytes keeps its value (WORSE): --cutrace-update=all replaces it",
    )


def test_missing_adds_what_is_not_there():
    golden = first(run(streams_used=None))
    after, _ = update(golden, run(sync_calls=9, regions={"f": {"memset_count": 1}}), mode="missing")
    assert after.common.metrics["streams_used"] == 1
    assert after.common.metrics["sync_calls"] == 1
    assert after.common.regions == {"f": {"memset_count": 1}}


def test_a_kind_of_copy_comes_and_goes_as_a_line():
    copies = {"memcpy_count": 2, "memcpy_bytes": 8, "memcpy_h2d_count": 1, "memcpy_h2d_bytes": 4}
    golden, _ = update(first(), run(**copies))
    assert golden.common.metrics["memcpy_h2d_count"] == 1
    assert text(update(golden, run())[0]) == text(first())
    assert text(update(first(), run(**copies), mode="missing")[0]) == text(first())


def test_a_region_that_is_gone_goes():
    golden = first(run(regions={"f": {"memset_count": 1}, "g": {"memset_count": 1}}))
    after, _ = update(golden, run(regions={"g": {"memset_count": 1}}))
    assert list(after.common.regions) == ["g"]
    kept, notes = update(golden, run(regions={"g": {"memset_count": 1}}), mode="missing")
    assert kept == golden
    assert notes == ("the region f keeps its values: it was not entered",)


def test_what_is_no_longer_measured_goes():
    golden = first(run(**{"ours.tokens": 3}))
    assert "ours.tokens" not in update(golden, run())[0].common.metrics
    assert "ours.tokens" in update(golden, run(), mode="missing")[0].common.metrics


def test_what_became_stable_is_recorded_and_no_longer_listed():
    golden = first(run(sync_calls=1), run(sync_calls=2))
    after, _ = update(golden, run(), run(), mode="missing")
    assert after.common.unstable == ()
    assert after.common.metrics["sync_calls"] == 1


def test_what_became_unstable_keeps_its_value():
    after, notes = update(first(), run(sync_calls=1), run(sync_calls=2))
    assert after == first()
    assert notes == ("sync_calls keeps its value: runs do not agree on it",)


def test_what_it_was_recorded_on_changes_with_its_section():
    after, _ = update(first(), run(peak_memory_bytes=16 * MIB), recorded="another driver")
    assert after.gpus[H200].recorded == "another driver"


def test_ignored_kernels_are_not_written():
    kernels = {**run().values["kernels"], "ncclDevKernel": 2}
    golden = first(run(kernel_launches=5, kernels=kernels), ignore=("nccl*",))
    assert golden == first()


# Several GPUs


def test_another_gpu_adds_its_section_and_leaves_what_holds_everywhere():
    golden, _ = update(first(), run(peak_memory_bytes=MIB), gpu=A100)
    assert golden.common == first().common
    assert golden.gpus[H200] == first().gpus[H200]
    assert golden.gpus[A100].metrics["peak_memory_bytes"] == MIB


def test_what_differs_on_another_gpu_is_written_there():
    golden, _ = update(first(), run(streams_used=2), gpu=A100)
    assert golden.common == first().common
    assert golden.gpus[A100].metrics["streams_used"] == 2
    assert not compare(golden, [run()], gpu=H200).failed
    assert not compare(golden, [run(streams_used=2)], gpu=A100).failed


def test_what_no_longer_differs_there_is_no_longer_written_there():
    golden, _ = update(first(), run(streams_used=2), gpu=A100)
    after, _ = update(golden, run(), gpu=A100)
    assert "streams_used" not in after.gpus[A100].metrics


def test_a_change_on_every_gpu_that_is_known_holds_everywhere_again():
    both, _ = update(first(), run(), gpu=A100)
    one, _ = update(both, run(sync_calls=2), gpu=H200)
    assert one.common.metrics["sync_calls"] == 1
    after, _ = update(one, run(sync_calls=2), gpu=A100)
    assert after.common.metrics["sync_calls"] == 2
    assert all("sync_calls" not in section.metrics for section in after.gpus.values())


def test_a_kind_of_copy_that_only_one_gpu_lacks_is_written_as_none():
    golden, _ = update(first(), run(memcpy_d2h_count=None, memcpy_d2h_bytes=None), gpu=A100)
    assert golden.gpus[A100].metrics["memcpy_d2h_count"] == 0
    assert compare(golden, [run(memcpy_count=1)], gpu=A100).failed


behaviours = st.fixed_dictionaries(
    {
        "sync_calls": st.integers(0, 2),
        "kernels": st.dictionaries(st.sampled_from("ab"), st.integers(1, 2)),
        "memcpy_h2d_count": st.sampled_from([None, 1, 2]),
        "ours.tokens": st.sampled_from([None, 0, 1]),
        "peak_memory_bytes": st.sampled_from([0, 4 * MIB]),
        "regions": st.dictionaries(st.sampled_from("fg"), st.fixed_dictionaries({"memset_count": st.integers(0, 1)})),
    }
)
EXACT = Rules(frozenset({Gate.EXACT}))


@given(st.lists(st.tuples(st.sampled_from([H200, A100, "b"]), behaviours), min_size=1, max_size=6))
def test_after_any_updates_a_gpu_passes_what_it_was_updated_with(history):
    golden = None
    for gpu, behaviour in history:
        measurement = run(**behaviour)
        golden, _ = update(golden, measurement, gpu=gpu, mode="all")
        assert not compare(golden, [measurement], gpu=gpu, rules=Rules(strict=True)).failed
        assert update(golden, measurement, gpu=gpu, mode="all")[0] == golden


@given(behaviours, behaviours)
def test_an_update_on_one_gpu_changes_nothing_that_is_exact_on_another(one, other):
    one["regions"] = other["regions"]  # regions are made by the test, not by the GPU: they go for all
    one["ours.tokens"] = other["ours.tokens"] = 1
    before = first(run(**one))
    after, _ = update(before, run(**other), gpu=A100)
    assert not compare(after, [run(**one)], gpu=H200, rules=replace(EXACT, strict=True)).failed


def test_what_was_measured_without_a_gpu_says_nothing_of_memory_and_times():
    golden = measured([run()], test=TEST, gpu="", recorded="")
    assert golden.gpus == {}
    assert "peak_memory_bytes" not in text(golden)
