"""Jobs with several process groups (TP x PP x DP) and known facts."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cutrace
from captures import Capture

pytest.importorskip("pyarrow")

from cutrace.extras.fleet import rank_calls
from cutrace.extras.fleet.bandwidth import slow_times, slowness
from cutrace.extras.fleet.clocks import clock_ids, shift_of
from cutrace.extras.fleet.communicators import kind_of
from cutrace.extras.fleet.engines import Engine
from cutrace.extras.fleet.matching import named_ranks
from cutrace.extras.fleet.merging import merge
from cutrace.extras.fleet.model import Lines
from cutrace.extras.fleet.rank_calls import CallReader, RankCalls
from cutrace.extras.fleet.running import ALL, run

#: The kernel and the NCCL function of each kind of call.
KERNELS = {
    "AllReduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
    "AllGather": "ncclDevKernel_AllGather_RING_LL",
    "ReduceScatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
    "Send": "ncclDevKernel_SendRecv",
}
RANKS_OF_HOST = 4
TRANSFER = 12_000


#: Names of kernels, of NCCL functions and of torch collectives, and their kinds.
KINDS = {
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL": "all-reduce", "c10d::barrier": "all-reduce",
    "vllm::cross_device_reduce_2stage": "all-reduce", "nccl:_all_gather_base": "all-gather",
    "ncclReduceScatter": "reduce-scatter", "all_to_allv": "all-to-all", "ncclDevKernel_SendRecv": "send-recv",
    "nccl:recv 1<-0": "send-recv", "ncclBroadcast": "broadcast", "ncclBcast": "broadcast", "scatter": "scatter",
    "nccl:gather": "gather", "ncclReduce": "reduce", "_Z4gemmPf": "",
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_call_is_in_its_name(name):
    assert kind_of(name) == KINDS[name]


@dataclass
class Call:
    """The true arrivals and ends of a call of a group, by rank (ns)."""

    kind: str
    group: tuple[int, ...]
    bytes: int
    slow: bool = False
    arrivals: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)


class TrainingJob:
    """Steps of tp x pp x dp ranks. Each layer has an all-reduce of the tensor-parallel group, and the first stage has
    one more. Each stage sends to the next one. A step ends with a reduce-scatter and an all-gather of the data-parallel
    group. Ranks in ``slow`` compute slower by a factor. Transfers of ``slow_steps`` take 40 times as long. ``clocks``
    is the time (ns) that the clock of a host is ahead."""

    def __init__(
        self,
        shape: tuple[int, int, int],
        steps: int,
        seed: int,
        *,
        slow: dict[int, float] | None = None,
        clocks: dict[int, int] | None = None,
        slow_steps: range = range(0),
    ) -> None:
        tp, pp, dp = shape
        self.ranks = tp * pp * dp
        self.clocks = clocks or {}
        self._random = np.random.default_rng(seed)
        self._slow = slow or {}
        self._factor = 1.0
        self._now = dict.fromkeys(range(self.ranks), 1_000_000)
        self.calls: list[Call] = []
        grid = np.arange(self.ranks).reshape(dp, pp, tp)
        for step in range(steps):
            self._factor = 40.0 if step in slow_steps else 1.0
            for stage in range(pp):
                for replica in range(dp):
                    self._layers(tuple(grid[replica, stage].tolist()), 3 + (stage == 0))
                    if stage + 1 < pp:
                        for rank, following in zip(grid[replica, stage], grid[replica, stage + 1], strict=True):
                            self._call("Send", (int(rank), int(following)), 1 << 14)
            for stage in range(pp):
                for column in range(tp):
                    group = tuple(grid[:, stage, column].tolist())
                    if dp > 1:
                        self._call("ReduceScatter", group, 1 << 16)
                        self._call("AllGather", group, 1 << 16)

    def _layers(self, group: tuple[int, ...], layers: int) -> None:
        for _ in range(layers):
            for rank in group:
                work = 200_000 * self._random.normal(1, 0.02) * self._slow.get(rank, 1.0)
                self._now[rank] += int(work)
            if len(group) > 1:
                self._call("AllReduce", group, 1 << 20)

    def _call(self, kind: str, group: tuple[int, ...], size: int) -> None:
        call = Call(kind, group, size, self._factor > 1)
        for rank in group:
            call.arrivals[rank] = self._now[rank] = self._now[rank] + 2_000
        end = max(call.arrivals.values()) + int(TRANSFER * self._factor * self._random.uniform(1, 1.5))
        for rank in group:
            call.ends[rank] = self._now[rank] = end + int(self._random.uniform(0, 500))
        self.calls.append(call)

    @property
    def groups(self) -> dict[tuple[int, ...], list[Call]]:
        groups = defaultdict(list)
        for call in self.calls:
            if call.kind != "Send":
                groups[call.group].append(call)
        return groups

    def waits(self, group: tuple[int, ...]) -> int:
        return sum(max(call.arrivals.values()) - call.arrivals[rank] for call in self.groups[group] for rank in group)

    def write(self, folder: Path, how: str, *, without: dict[int, int] | None = None) -> list[Path]:
        """Write the captures. ``how`` is the source of communicators: nvtx, grouped, torch or none. ``without`` is the
        number of unrecorded first calls, by rank."""
        folder.mkdir()
        paths = []
        for rank in range(self.ranks):
            host = rank // RANKS_OF_HOST
            about = {"host": f"node{host}", "boot_id": f"boot {host}", "rank": rank}
            path = folder / f"rank{rank:02}.bin"
            with Capture(path, pid=100 + rank, **about) as c:
                launches = {kind: c.launch(name) for kind, name in KERNELS.items()}
                own = [call for call in self.calls if rank in call.group]
                for number, call in enumerate(own[(without or {}).get(rank, 0) :], 1):
                    start, end = call.arrivals[rank], call.ends[rank]
                    c.kernel(launches[call.kind], start, end, correlation=number)
                    asked(c, how, call, rank, start - 1_500, number)
                c.clocks()
                clock = c._rows["clocks"][0]
                clock["realtime"] += self.clocks.get(host, 0)
            paths.append(path)
        return paths


def asked(c: Capture, how: str, call: Call, rank: int, start: int, number: int) -> None:
    """Write the host's records of a call, which takes at most 1.4 us."""
    communicator = 1 + hash(call.group) % (1 << 60)
    fields: dict[str, object] = {"NCCL communicator ID": communicator, "Message size [bytes]": call.bytes}
    name = f"nccl{call.kind}"
    if how == "none":
        return
    c.api("cudaLaunchKernel", start + 1_100, start + 1_200, correlation=number)
    if how == "nvtx":
        c.push_pop(name, start + 1_000, start + 1_300, domain="NCCL", arguments=json.dumps(fields))
    if how == "grouped":
        c.push_pop("ncclGroupStart", start, start + 10, domain="NCCL")
        c.push_pop(name, start + 100, start + 200, domain="NCCL", arguments=json.dumps(fields))
        c.push_pop("ncclGroupEnd", start + 1_000, start + 1_300, domain="NCCL")
    if how == "torch":
        members = len(call.group)
        elements = call.bytes // 2
        scattered = members if call.kind == "ReduceScatter" else 1
        gathered = members if call.kind == "AllGather" else 1
        fields = {
            "Collective name": {"Send": "send", "AllReduce": "allreduce"}.get(call.kind, f"_{call.kind}_base"),
            "Process Group Name": str(communicator), "Process Group Description": "mesh", "dtype": "BFloat16",
            "Process Group Ranks": str(list(call.group)), "Group size": members,
            "In msg nelems": elements * scattered, "Out msg nelems": elements * gathered,
        }  # fmt: skip
        c.add(
            "host_slices", start=10**12 + start + 1_000, end=10**12 + start + 1_300, name="record_param_comms",
            thread=100, kind=1, arguments=json.dumps(fields),
        )  # fmt: skip


def collectives(paths: list[Path], out: Path) -> cutrace.Batch:
    return cutrace.batch("collectives", paths, out, mode="sequential")


def rows(result: cutrace.Batch, table: str) -> list[dict[str, object]]:
    return next(report.arrow().to_pylist() for report in result.reports if report.name == table)


def shown(group: tuple[int, ...], ranks: int) -> str:
    return f"all {ranks} ranks" if len(group) == ranks else named_ranks(group)


@pytest.mark.parametrize("how", ["nvtx", "grouped", "torch"])
@pytest.mark.parametrize(("shape", "seed"), [((2, 2, 4), 1), ((4, 2, 2), 2), ((1, 2, 6), 3), ((8, 1, 1), 4)])
def test_groups_have_their_calls_bytes_and_waits(tmp_path, how, shape, seed):
    job = TrainingJob(shape, 4, seed)
    found = rows(collectives(job.write(tmp_path / "job", how), tmp_path / "out"), "collective_groups")
    by_title = {row["group"]: row for row in found}
    wanted = {shown(group, job.ranks): group for group in job.groups}
    assert len(found) == len(by_title)
    assert by_title.keys() == wanted.keys()
    for title, group in wanted.items():
        row = by_title[title]
        calls = job.groups[group]
        assert row["communicator"]
        assert (row["calls"], row["ranks"]) == (len(calls), len(group))
        assert row["bytes"] == sum(call.bytes for call in calls)
        # The ends of calls show the clocks of hosts only up to a small error.
        assert row["waited_ns"] == pytest.approx(job.waits(group), abs=600 * len(calls) * len(group))


@pytest.mark.parametrize("how", ["nvtx", "torch", "none"])
@pytest.mark.parametrize(
    ("shape", "slow", "seed"), [((2, 2, 4), 5, 1), ((2, 2, 4), 14, 2), ((4, 1, 4), 9, 3), ((1, 2, 8), 12, 4)]
)
def test_only_the_slow_rank_is_late(tmp_path, how, shape, slow, seed):
    job = TrainingJob(shape, 12, seed, slow={slow: 1.4}, clocks={1: 2_500_000, 2: -700_000})
    result = collectives(job.write(tmp_path / "job", how), tmp_path / "out")
    late = [sentence for sentence in result.sentences if "late to a collective" in sentence]
    assert {re.split(":| on ", sentence)[0] for sentence in late} == {f"rank {slow}"}
    for row in rows(result, "collective_ranks"):
        host = int(str(row["rank"]).split()[1]) // RANKS_OF_HOST
        others = np.median([job.clocks.get(rank // RANKS_OF_HOST, 0) for rank in range(job.ranks)])
        assert row["clock_ahead_ns"] == pytest.approx(job.clocks.get(host, 0) - others, abs=2_000)


def test_the_bus_bandwidth_is_that_of_nccl_tests(tmp_path):
    job = TrainingJob((4, 1, 2), 3, 7)
    result = collectives(job.write(tmp_path / "job", "nvtx"), tmp_path / "out")
    for row in rows(result, "collectives"):
        kind = str(row["collective"]).split("_")[1]
        calls = [call for call in job.calls if call.kind == kind and shown(call.group, job.ranks) == row["group"]]
        ranks = len(calls[0].group)
        # An all-gather receives the bytes of all ranks, and a reduce-scatter sends them.
        whole = calls[0].bytes * (1 if kind == "AllReduce" else ranks)
        factor = (ranks - 1) / ranks * (2 if kind == "AllReduce" else 1)
        times = [max(call.ends.values()) - max(call.arrivals.values()) for call in calls]
        wanted = len(calls) * whole * factor / sum(times) * 1e9
        assert row["bus_bandwidth_bytes_per_s"] == pytest.approx(wanted, rel=0.001 if ranks == 4 else 0.1)


@pytest.mark.parametrize("how", ["nvtx", "none"])
@pytest.mark.parametrize(("shape", "seed"), [((2, 2, 4), 1), ((1, 1, 8), 2), ((8, 1, 1), 3)])
def test_a_time_in_which_the_network_was_slow_is_found(tmp_path, how, shape, seed):
    job = TrainingJob(shape, 40, seed, slow_steps=range(12, 18))
    result = collectives(job.write(tmp_path / "job", how), tmp_path / "out")
    (sentence,) = (one for one in result.sentences if one.startswith("transfers"))
    first, last, ratio, calls = re.search(
        r"from \S+:(\d\d\.\d{3}) to \S+:(\d\d\.\d{3}) UTC took (\S+) times as long as usual \((\d+) calls\)", sentence
    ).groups()
    slow = [call for call in job.calls if call.slow and call.kind != "Send"]
    arrival = max(slow[0].arrivals.values()) / 1e9
    end = max(slow[-1].ends.values()) / 1e9
    assert float(last) - float(first) == pytest.approx(end - arrival, abs=0.006)
    assert float(ratio) == pytest.approx(40, rel=0.15)
    if how == "nvtx":
        assert int(calls) == len(slow)


@pytest.mark.parametrize(("how", "unit"), [("nvtx", "bytes/s"), ("none", "ns")])
def test_transfers_over_time_show_when_the_network_was_slow(tmp_path, how, unit):
    job = TrainingJob((1, 1, 8), 40, 2, slow_steps=range(12, 18))
    ran = run("collectives", job.write(tmp_path / "job", how), tmp_path / "out", engine=Engine(mode="sequential"))
    (picture,) = [one for one in ran.results["collectives"].pictures if isinstance(one, Lines)]
    assert picture.unit == unit
    assert picture.labels[0].startswith("all 8 ranks")
    assert len(set(picture.labels)) == len(picture.labels)
    values = picture.values[0]
    if unit == "bytes/s":
        values = 1 / values
    assert np.nanmax(values) / np.nanmedian(values[-8:]) == pytest.approx(40, rel=0.4)
    slow = [call for call in job.calls if call.slow]
    first, start, last, end = (max(call.arrivals.values()) for call in (slow[0], job.calls[0], slow[-1], job.calls[-1]))
    (seen,) = np.nonzero(values > 10 * np.nanmedian(values[-8:]))
    assert seen[0] / len(values) == pytest.approx((first - start) / (end - start), abs=0.1)
    assert seen[-1] / len(values) == pytest.approx((last - start) / (end - start), abs=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_single_slow_transfers_are_no_slow_time(seed):
    random = np.random.default_rng(seed)
    count = 3_000
    transfer = random.lognormal(10, 0.3, count)
    # On average, every tenth call takes 10 to 100 times as long.
    late = random.random(count) < 0.1
    transfer[late] *= random.uniform(10, 100, late.sum())
    start = np.cumsum(random.uniform(1e6, 2e6, count)).astype(np.int64)
    end = start + transfer.astype(np.int64)
    slow = slowness(np.full(count, "name", object), np.full(count, 8), transfer)
    assert slow_times(0, start, end, slow, int(end[-1] - start[0])) == []
    transfer[1_000:1_200] *= 40
    slow = slowness(np.full(count, "name", object), np.full(count, 8), transfer)
    (found,) = slow_times(0, start, end, slow, int(end[-1] - start[0]))
    assert found.start == pytest.approx(start[1_000], abs=20e6)
    assert found.end == pytest.approx(end[1_199], abs=20e6)


def test_late_ranks_of_a_wrong_clock_are_matched_by_the_intervals_between_calls(tmp_path):
    job = TrainingJob((2, 1, 8), 30, 5, clocks={2: -1_000_000_000})
    paths = job.write(tmp_path / "job", "nvtx", without={5: 60, 9: 60})
    result = collectives(paths, tmp_path / "out")
    firsts = [sentence for sentence in result.sentences if "its first call counts as number" in sentence]
    # A step has four calls in the pair, and two in the replicas.
    assert sorted(re.findall(r"rank \d+|number \d+", sentence) for sentence in firsts) == [
        ["rank 5", "number 21"], ["rank 5", "number 41"], ["rank 9", "number 21"], ["rank 9", "number 41"],
    ]  # fmt: skip
    assert not [sentence for sentence in result.sentences if "late to" in sentence or "cannot" in sentence]
    by_rank = {row["rank"]: row["clock_ahead_ns"] for row in rows(result, "collective_ranks")}
    assert by_rank["rank 9"] == pytest.approx(-1_000_000_000, abs=2_000)


def test_calls_that_do_not_fit_are_refused_by_name(tmp_path):
    job = TrainingJob((1, 1, 5), 20, 6)
    paths = job.write(tmp_path / "job", "nvtx", without={2: 4})
    TrainingJob((1, 1, 5), 22, 60, slow={0: 1.1}).write(tmp_path / "other", "nvtx")[4].replace(paths[4])
    result = collectives(paths, tmp_path / "out")
    refused, *others = result.sentences
    assert re.match(r"44 calls of communicator \d+ on rank 4 cannot be matched with those on ranks 0 to 3", refused)
    # The refused calls do not count here.
    assert [re.sub(r"communicator \d+", "it", sentence) for sentence in others] == [
        "rank 2: it has 36 calls of it, and others have 40: its first call counts as number 5"
    ]
    assert "rank 4" not in {row["rank"] for row in rows(result, "collective_ranks")}


def test_calls_of_one_rank_without_a_communicator_are_refused_by_name(tmp_path):
    job = TrainingJob((1, 1, 5), 10, 7)
    paths = job.write(tmp_path / "job", "nvtx")
    job.write(tmp_path / "other", "none")[4].replace(paths[4])
    result = collectives(paths, tmp_path / "out")
    assert [sentence for sentence in result.sentences if "cannot be matched" in sentence] == [
        "10 calls of ncclDevKernel_AllGather_RING_LL on rank 4 cannot be matched, so nothing is said about them",
        "10 calls of ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL on rank 4 cannot be matched, "
        "so nothing is said about them",
    ]
    assert "rank 4" not in {row["rank"] for row in rows(result, "collective_ranks")}


CLOCKS = {1: 4_000_000, 3: -900_000}


def test_merging_corrects_the_clocks_of_hosts_by_collectives(tmp_path):
    job = TrainingJob((2, 2, 4), 6, 8, clocks=CLOCKS)
    paths = job.write(tmp_path / "job", "nvtx")
    ranks = merge(paths, tmp_path / "merged.bin")
    # The clock of the first file is right.
    for number, rank in enumerate(ranks):
        assert rank.ahead == pytest.approx(CLOCKS.get(number // RANKS_OF_HOST, 0), abs=1_000)
    assert "its clock was 4.00 ms ahead, by the ends of collectives" in ranks[4].sentence()
    assert "behind" in ranks[12].sentence()
    assert "collectives" not in ranks[1].sentence()
    with cutrace.load(tmp_path / "merged.bin") as merged:
        found = defaultdict(list)
        for process in merged.processes:
            kernels = merged.kernels[merged.kernels["process"] == process.index]
            found[process.rank] = sorted(kernels["end"].tolist())
    for rank in range(job.ranks):
        own = sorted(call.ends[rank] for call in job.calls if rank in call.group)
        assert np.abs(np.array(found[rank]) - np.array(own) - 10**12).max() < 1_000
    (*_, last) = merge(paths, tmp_path / "kept.bin", clock="keep")
    assert last.ahead == 0


def test_other_reports_of_a_batch_use_the_clocks_that_collectives_tell(tmp_path):
    job = TrainingJob((2, 1, 4), 6, 8, clocks={1: 2 * 10**9})
    paths = job.write(tmp_path / "job", "nvtx")
    engine = Engine("sequential")
    (apart,) = run("utilization", paths, tmp_path / "alone", engine=engine).results["utilization"].pictures
    (together,) = run(ALL, paths, tmp_path / "all", engine=engine).results["utilization"].pictures
    # The clocks of the hosts are two seconds apart, and the job lasts 20 ms.
    assert apart.step * apart.values.shape[1] > 10**9
    assert together.step * together.values.shape[1] < 10**8
    assert np.isfinite(together.values).any(axis=1).all()


GROUPS_BIN = Path(__file__).parents[2] / "data" / "groups.bin"


def test_a_real_training_with_two_groups(tmp_path):
    result = collectives([GROUPS_BIN], tmp_path / "out")
    gradients, second = sorted(rows(result, "collective_groups"), key=lambda row: -int(row["calls"]))
    # Two steps of DDP with three buckets, and an all-reduce of the second group in each. Sends, and all-reduces of a
    # rank alone, do not count.
    assert (gradients["calls"], gradients["ranks"], gradients["bytes"]) == (6, 2, 6 * 1_050_624)
    assert (second["calls"], second["ranks"], second["bytes"]) == (2, 2, 2 << 20)
    assert gradients["communicator"] != second["communicator"]
    # NCCL ran the second group on stream 7, and the other groups on another stream.
    with cutrace.load(GROUPS_BIN) as trace:
        reduces = trace.strings.take(trace.launches["name"], lambda name: "AllReduce" in name).astype(bool)
        kernels = trace.kernels[reduces[trace.kernels["launch"]]]
    for row, of_group in ((second, kernels["stream"] == 7), (gradients, kernels["stream"] != 7)):
        starts = [
            np.sort(kernels["start"][of_group & (kernels["process"] == process)].astype(np.int64))
            for process in np.unique(kernels["process"])
        ]
        # Each process has its own clock snapshots.
        assert row["waited_ns"] == pytest.approx(np.abs(starts[0] - starts[1]).sum(), abs=1_000)
    # A small message between two H200 on NVLink does not reach their full bandwidth.
    assert 50e9 < second["bus_bandwidth_bytes_per_s"] < 300e9


def asked_in_group(c: Capture, calls: list[tuple[str, int, int]], launches: list[tuple[int, int]]) -> None:
    """Write a group of calls (function, communicator, bytes), and launches (correlation, start of the kernel) at its
    end."""
    begin = launches[0][1] - 1_000
    c.push_pop("ncclGroupStart", begin, begin + 1, domain="NCCL")
    for at, (name, communicator, size) in enumerate(calls):
        fields = {"NCCL communicator ID": communicator, "Message size [bytes]": size}
        start = begin + 10 + 10 * at
        c.push_pop(name, start, start + 5, domain="NCCL", arguments=json.dumps(fields))
    c.push_pop("ncclGroupEnd", begin + 100, begin + 900, domain="NCCL")
    for at, (correlation, _) in enumerate(launches):
        c.api("cudaLaunchKernel", begin + 200 + 10 * at, begin + 205 + 10 * at, correlation=correlation)


def test_kernels_of_groups_of_calls_have_their_communicators(tmp_path):
    for rank in range(2):
        with Capture(tmp_path / f"rank{rank}.bin", pid=100 + rank) as c:
            reduce, gather = c.launch(KERNELS["AllReduce"]), c.launch(KERNELS["AllGather"])
            alone = {"NCCL communicator ID": 30 + rank, "No. of ranks": 1, "Rank": 0}
            c.push_pop("ncclCommDestroy", 1, 2, domain="NCCL", arguments=json.dumps(alone))
            # Three calls in one kernel, and a call of a rank alone, which needs no kernel.
            calls = [
                ("ncclAllReduce", 10, 100),
                ("ncclAllReduce", 10, 200),
                ("ncclAllReduce", 30 + rank, 5),
                ("ncclAllReduce", 10, 300),
            ]
            asked_in_group(c, calls, [(1, 10_000)])
            c.kernel(reduce, 10_000, 11_000, stream=7, correlation=1)
            # Two communicators with different kinds of kernels.
            asked_in_group(c, [("ncclAllGather", 20, 64), ("ncclAllReduce", 10, 400)], [(2, 20_000), (3, 20_000)])
            c.kernel(reduce, 20_000, 21_000, stream=7, correlation=2)
            c.kernel(gather, 20_000, 21_000, stream=8, correlation=3)
            # No call belongs to this kernel, but only one communicator uses its stream.
            c.api("cudaLaunchKernel", 29_000, 29_100, correlation=4)
            c.kernel(gather, 30_000, 31_000, stream=8, correlation=4)
            c.clocks()
    result = collectives(sorted(tmp_path.glob("rank*.bin")), tmp_path / "out")
    groups = {row["communicator"]: (row["calls"], row["bytes"]) for row in rows(result, "collective_groups")}
    assert groups == {"10": (2, 1_000), "20": (2, None)}


def test_calls_without_a_communicator_do_not_change_the_clocks_that_others_tell(tmp_path):
    for rank in range(4):
        with Capture(tmp_path / f"rank{rank}.bin", pid=100 + rank, boot_id=f"boot {rank}") as c:
            reduce, gather = c.launch(KERNELS["AllReduce"]), c.launch(KERNELS["AllGather"])
            fields = json.dumps({"NCCL communicator ID": 10})
            for number in range(1, 7):
                at = 10_000_000 * number
                c.api("cudaLaunchKernel", at, at + 100, correlation=number)
                c.push_pop("ncclAllReduce", at - 100, at + 200, domain="NCCL", arguments=fields)
                c.kernel(reduce, at + 1_000, at + 2_000, stream=7, correlation=number)
                # These are calls of pairs of ranks, but their name is the same on all ranks.
                later = at + 2_000_000 + 1_000_000 * (rank // 2)
                c.kernel(gather, later, later + 1_000, stream=8, correlation=100 + number)
            c.clocks()
    result = collectives(sorted(tmp_path.glob("rank*.bin")), tmp_path / "out")
    assert result.sentences == []
    groups = rows(result, "collective_groups")
    assert sorted((row["communicator"], row["ranks"]) for row in groups) == [("", 2), ("", 2), ("10", 4)]
    assert {row["clock_ahead_ns"] for row in rows(result, "collective_ranks")} == {0}


def test_files_of_a_host_share_its_clock():
    places = [
        ("boot 1", "node0"),
        ("boot 1", "renamed"),
        ("import-1", "node0"),
        ("import-2", "node0"),
        ("", "node0"),
        ("import-3", ""),
        ("", ""),
        ("", ""),
    ]
    parts = [SimpleNamespace(boot=boot, host=host) for boot, host in places]
    assert clock_ids(parts).tolist() == [0, 0, 1, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(("longer", "index"), [(1.01, 0), (1.05, None)])
def test_intervals_that_differ_by_more_than_a_fiftieth_are_no_match(longer, index):
    ends = np.cumsum(np.full(40, 100_000_000))
    assert shift_of((ends * longer).astype(np.int64), ends, None) == index


def test_calls_stay_in_memory_while_there_is_room(monkeypatch):
    read = []

    def of_part(part: str) -> SimpleNamespace:
        read.append(part)
        return SimpleNamespace(by_key={"a": [1, 2], "b": [3]})

    monkeypatch.setattr(RankCalls, "read", of_part)
    monkeypatch.setattr(rank_calls, "_KEPT", 5)
    reader = CallReader(["first", "second"])
    for part in (0, 0, 1, 1):
        reader.read(part)
    assert read == ["first", "second", "second"]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([3], "rank 3"),
        ([1, 4], "ranks 1 and 4"),
        (range(2, 90), "ranks 2 to 89"),
        ([1, 2, 5], "ranks 1, 2 and 5"),
        ([1, 2, 5, 9, 10], "ranks 1, 2, 5, 9 and 10"),
        ([1, 2, 5, 9, 10, 12], "ranks 1, 2, 5, 9 and 2 more"),
        (range(0, 22, 2), "ranks 0, 2, 4, 6, ... 20"),
    ],
)
def test_ranks_have_short_names(numbers, words):
    assert named_ranks(numbers) == words
