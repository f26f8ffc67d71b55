"""PC samples in a Perfetto trace: stack samples with weights, as trace_processor reads them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import cutrace
from captures import ORIGIN
from pftrace import packets
from sampled import sampled_capture
from support.traceprocessor import query

MIDDLES = (ORIGIN + 250_000_000, ORIGIN + 750_000_000)
STACKS = {
    (MIDDLES[0], "void axpy<float>(float*)", "/src/axpy.cu:12", "long_scoreboard"): 70,
    (MIDDLES[0], "void axpy<float>(float*)", "/src/axpy.cu:12", "selected"): 10,
    (MIDDLES[0], "void axpy<float>(float*)", "/src/axpy.cu:13", "wait"): 5,
    (MIDDLES[1], "void axpy<float>(float*)", "/src/axpy.cu:12", "long_scoreboard"): 7,
    (MIDDLES[1], "sum(float*)", "+0x1c0", "barrier"): 8,
}


def converted(tmp_path: Path, *, in_blocks: bool = False) -> Path:
    out = tmp_path / "a.pftrace"
    cutrace.convert(sampled_capture(tmp_path / "a.bin", in_blocks=in_blocks), out)
    return out


@pytest.mark.parametrize("in_blocks", [False, True])
def test_each_row_is_a_stack_with_its_samples_as_weight(tmp_path, in_blocks):
    found: dict[tuple[int | str, ...], int] = {}
    clocks: Counter[int] = Counter()
    texts, frames, stacks, tasks, gpus = {}, {}, {}, {}, {}
    for packet in packets(converted(tmp_path, in_blocks=in_blocks)):
        sequence, data = packet.trusted_packet_sequence_id, packet.interned_data
        for clock in packet.clock_snapshot.clocks:
            if clock.is_incremental:
                clocks[sequence] = clock.timestamp
        texts |= {(sequence, t.iid): t.str.decode() for t in data.function_names}
        frames |= {(sequence, f.iid): texts[sequence, f.function_name_id] for f in data.frames}
        stacks |= {(sequence, s.iid): tuple(frames[sequence, f] for f in s.frame_ids) for s in data.callstacks}
        gpus |= {(sequence, a.iid): a.name for a in data.stack_sample_async_context_descriptors}
        tasks |= {(sequence, t.iid): (t.pid, gpus[sequence, t.async_id]) for t in data.stack_sample_task_contexts}
        if packet.HasField("stack_sample"):
            clocks[sequence] += packet.timestamp
            sample = packet.stack_sample
            assert tasks[sequence, sample.task_context_iid] == (4711, "GPU 0")
            key = (clocks[sequence], *stacks[sequence, sample.callstack_iid])
            assert key not in found
            found[key] = sample.primary_weight
    assert found == STACKS


def test_trace_processor_has_the_weights_by_frame(tmp_path):
    rows = query(
        converted(tmp_path),
        """
        select s.ts, f.name as stall, parent.name as place, track.name as counter, c.value
        from stack_sample s join stack_sample_counter c on c.stack_sample_id = s.id
        join stack_sample_counter_track track on track.id = c.track_id
        join stack_profile_callsite leaf on leaf.id = s.callsite_id join stack_profile_frame f on f.id = leaf.frame_id
        join stack_profile_callsite above on above.id = leaf.parent_id
        join stack_profile_frame parent on parent.id = above.frame_id
        """,
    )
    found = {(int(r["ts"]), r["place"], r["stall"], r["counter"]): float(r["value"]) for r in rows}
    assert found == {(time, place, stall, "PC samples"): n for (time, _, place, stall), n in STACKS.items()}


@pytest.mark.parametrize("suffix", [".json", ".sqlite", ".parquet"])
def test_other_formats_take_a_capture_with_samples(tmp_path, suffix):
    out = tmp_path / f"a{suffix}"
    cutrace.convert(sampled_capture(tmp_path / "a.bin"), out)
    assert out.exists()
