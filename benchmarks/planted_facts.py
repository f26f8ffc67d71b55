"""Plant faults in simulated jobs, and compare the sentences of `cutrace batch all` with the planted faults.

    python benchmarks/planted_facts.py [--seeds 20] [--only network,groups] [--pairs 20] [--out results.json]

Each scenario is a job of simulated ranks (benchmarks/simulate_ranks.py) with one kind of fault. The seed determines
rank, machine and time. A sentence has to name each fact with its place and time, and other sentences are not allowed.
Then pairs of sets of jobs are compared. In ``same`` pairs, clocks differ from job to job by 0.7 percent. In ``slower``
pairs, one set is also 2 percent slower.

Prints a line for each scenario; ``--out`` adds the result to a file.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import cutrace
from convert import add_result, hardware
from simulate_ranks import RANKS_OF_MACHINE, Facts, Layout, simulate
from workloads import options

RANKS, COPIES = 16, 24
# The time (ns) between two steps in scenarios with a time of the fault. The job then takes 24 s.
SLOWLY = 1_000_000_000
# Pairs of sets of jobs.
JOBS, RANKS_OF_JOB, COPIES_OF_JOB = 12, 2, 2
CLOCK, SLOWER = 0.007, 1.02


@dataclass(frozen=True)
class Scenario:
    """A job with faults. Each regular expression of ``expected`` has to match a sentence. Other sentences have to match
    one of ``allowed``. ``how`` has arguments of the simulation."""

    facts: Facts
    expected: list[str]
    allowed: list[str] = field(default_factory=list)
    ranks: int = RANKS
    copies: int = COPIES
    how: dict[str, Any] = field(default_factory=dict)


_Random = np.random.Generator


def one(random: _Random, ranks: int = RANKS) -> int:
    return int(random.integers(ranks))


def rank_of(number: int) -> str:
    """A regular expression for the label of a rank, with or without marks."""
    return rf"rank {number}( \(incomplete\))?( GPU \d+)?( on node\d+)?"


# A slow or late rank also has other idle times and another share of communication than the other ranks.
def consequences(ranks: Sequence[int]) -> list[str]:
    names = "|".join(map(str, ranks))
    files = "|".join(f"{rank:04}" for rank in ranks)
    return [rf"^rank ({names})\b", rf"^rank({files})[-.]"]


def slow(random: _Random) -> Scenario:
    rank = one(random)
    return Scenario(Facts(slow={rank: 1.2}), [rf"^{rank_of(rank)}: its kernels take 1\.[12]\d"], consequences([rank]))


def stalled(random: _Random) -> Scenario:
    rank = one(random)
    return Scenario(
        Facts(stalled={rank: 500_000}), [rf"^{rank_of(rank)}: .*late to a collective"], consequences([rank])
    )


def lost(random: _Random) -> Scenario:
    rank = one(random)
    said = [r"records? dropped because the collector's memory limit was reached, in 1 of 16 files"]
    refused = rf"calls of communicator \d+ on rank {rank} \(incomplete\) cannot be matched"
    allowed = [*consequences([rank]), "^1 of 16 files", refused]
    return Scenario(Facts(lost={rank: 0.4}), said, allowed)


def killed(random: _Random) -> Scenario:
    rank = one(random)
    said = [r"1 process killed or still running", rf"rank {rank}\b.* ended .* before"]
    return Scenario(Facts(killed=(rank,)), said, [*consequences([rank]), "^1 of 16 files"], how={"pause": SLOWLY})


def duplicates(random: _Random) -> Scenario:
    return Scenario(Facts(duplicates=(one(random),)), ["^1 of 17 files: not counted"])


def missing(random: _Random) -> Scenario:
    ranks = random.choice(RANKS, 2, replace=False).tolist()
    first, second = sorted(ranks)
    return Scenario(Facts(missing=tuple(ranks)), [rf"^ranks {first} and {second} of 16 are absent"])


def empty(random: _Random) -> Scenario:
    rank = one(random)
    return Scenario(Facts(empty=(rank,)), [rf"^rank {rank} is without GPU work"], consequences([rank]))


def node(random: _Random) -> Scenario:
    machine = one(random, 4)
    ranks = range(machine * RANKS_OF_MACHINE, (machine + 1) * RANKS_OF_MACHINE)
    said = [rf"8 of 8 (GPUs|ranks) of node{machine:03}: .*kernels take 1\.[12]\d"]
    allowed = [rf"^8 of 8 (GPUs|ranks|runs) of node{machine:03}", *consequences(ranks)]
    return Scenario(Facts(slow=dict.fromkeys(ranks, 1.2)), said, allowed, ranks=32)


def network(random: _Random) -> Scenario:
    first = float(random.integers(3, 10))
    return Scenario(
        Facts(network=(first, 10.0, 40.0)), [r"transfers.*(3[5-9]|4[0-5])(\.\d)? times"], how={"pause": SLOWLY}
    )


def groups(random: _Random) -> Scenario:
    rank = one(random)
    how = {"layout": Layout(2, 2, 4)}
    said = [rf"^{rank_of(rank)}.*late to a collective"]
    return Scenario(Facts(stalled={rank: 500_000}, uneven=True), said, consequences([rank]), how=how)


def inferred(random: _Random) -> Scenario:
    """Groups without NCCL payloads. They have to be found, or refused with the names of the calls, without sentences
    about other groups."""
    scenario = groups(random)
    allowed = [*scenario.expected, *scenario.allowed, "cannot be (aligned|matched)"]
    return Scenario(scenario.facts, [], allowed, how={**scenario.how, "payloads": False})


def even(random: _Random) -> Scenario:
    """Groups without any fault."""
    return Scenario(Facts(uneven=True), [], how={"layout": Layout(2, 2, 4)})


def restarted(random: _Random) -> Scenario:
    rank = one(random)
    said = [rf"rank {rank}\b.* in 2 consecutive recordings"]
    return Scenario(Facts(restarted={rank: COPIES // 2}), said, consequences([rank]), how={"pause": SLOWLY})


def clocks(random: _Random) -> Scenario:
    """On one machine, a clock is off by seconds and one rank starts late."""
    machine = one(random, 4)
    ranks = range(machine * RANKS_OF_MACHINE, (machine + 1) * RANKS_OF_MACHINE)
    seconds = int(random.choice([-3, -2, 2, 3]))
    facts = Facts(clocks={machine: seconds * 10**9}, late={int(random.choice(ranks)): 3})
    (late,) = facts.late
    word = "ahead of"
    if seconds < 0:
        word = "behind"
    clock = rf"(node{machine:03}|rank ).*clock {abs(seconds)}(\.\d+)? s {word}"
    said = [clock, rf"rank {late}\b.*started"]
    allowed = ["its first call counts as", *consequences([late])]
    return Scenario(facts, said, allowed, ranks=32, how={"pause": SLOWLY})


def ended(random: _Random) -> Scenario:
    rank = one(random)
    said = [rf"rank {rank}\b.* ended 5(\.\d+)? s before"]
    return Scenario(Facts(ended={rank: 5}), said, consequences([rank]), how={"pause": SLOWLY})


def heavy(random: _Random) -> Scenario:
    return Scenario(Facts(heavy={one(random): 100}), [])


def formats(random: _Random) -> Scenario:
    ranks = random.choice(RANKS, 3, replace=False).tolist()
    endings = dict(zip(ranks, (".pftrace", ".json", ".sqlite"), strict=True))
    # A JSON trace does not have the communicators.
    return Scenario(Facts(formats=endings), [rf"calls of nccl\w+ on rank {ranks[1]} cannot be matched"])


def nothing(random: _Random) -> Scenario:
    return Scenario(Facts(), [])


SCENARIOS: tuple[Callable[[_Random], Scenario], ...] = (
    nothing, slow, stalled, lost, killed, duplicates, missing, empty, node, network, groups, inferred, even, restarted,
    clocks, ended, heavy, formats,
)  # fmt: skip


def check(scenario: Scenario, seed: int, folder: Path) -> tuple[list[str], list[str]]:
    """Return the facts that no sentence names, and the sentences about other things."""
    paths = simulate(folder, scenario.ranks, scenario.copies, scenario.facts, seed=seed, **scenario.how)
    result = cutrace.batch("all", paths, folder / "out", name="ddp *", mode="sequential")
    sentences = [*result.sentences, *result.missing]
    unfound = [pattern for pattern in scenario.expected if not any(re.search(pattern, text) for text in sentences)]
    known = [*scenario.expected, *scenario.allowed]
    invented = [text for text in sentences if not any(re.search(pattern, text) for pattern in known)]
    return unfound, invented


def jobs(folder: Path, name: str, seed: int, factor: float) -> list[Path]:
    """Simulate a set of jobs of one program. Returns their files."""
    random = np.random.default_rng(seed)
    paths = []
    for number in range(JOBS):
        clock = factor * random.normal(1, CLOCK)
        facts = Facts(slow=dict.fromkeys(range(RANKS_OF_JOB), clock))
        job = f"{name}{number}"
        paths += simulate(folder, RANKS_OF_JOB, COPIES_OF_JOB, facts, seed=seed * 1000 + number, job=job)
    return paths


def reported(seed: int, factor: float, folder: Path) -> bool:
    """Simulate two sets of jobs. Kernels of the second set take ``factor`` times as long. Returns whether a sentence
    says that something is slower."""
    before = jobs(folder, "old", 2 * seed, 1.0)
    after = jobs(folder, "new", 2 * seed + 1, factor)
    result = cutrace.batch("regressions", after, folder / "out", baseline=before, mode="sequential")
    return any("slower" in text for text in result.sentences)


def main() -> None:
    parser = options.parser(__doc__, out=None, only=None)
    parser.add_argument("--seeds", type=int, default=20, help="jobs of each scenario (20)")
    parser.add_argument("--pairs", type=int, default=20, help="pairs of sets of jobs (20)")
    args = parser.parse_args()
    scenarios: dict[str, dict[str, Any]] = {}
    for make in SCENARIOS:
        if args.only and not make.__name__.startswith(tuple(args.only)):
            continue
        unfound: list[str] = []
        invented: list[str] = []
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as folder:
                scenario = make(np.random.default_rng(seed))
                wanted, others = check(scenario, seed + 1, Path(folder))
            unfound += [f"seed {seed}: {pattern}" for pattern in wanted]
            invented += [f"seed {seed}: {text}" for text in others]
        scenarios[make.__name__] = {"jobs": args.seeds, "not_found": unfound, "invented": invented}
        print(f"{make.__name__}: {len(unfound)} not found, {len(invented)} invented", flush=True)
        for text in (*unfound[:5], *invented[:8]):
            print(f"    {text}")
    pairs = {"same": 0, "slower": 0}
    for seed in range(args.pairs):
        for name, factor in (("same", 1.0), ("slower", SLOWER)):
            with tempfile.TemporaryDirectory() as folder:
                pairs[name] += reported(seed + 1, factor, Path(folder))
    print(f"regressions in {args.pairs} pairs of {JOBS} jobs each: {pairs}")
    result = {
        "benchmark": "planted facts",
        "capture": "groups.bin",
        "events": RANKS * args.seeds,
        "scenarios": scenarios,
        "pairs": {"count": args.pairs, "jobs": JOBS, "reported": pairs},
        "hardware": hardware(2),
    }
    if args.out:
        add_result(args.out, result)
    failed = [name for name, one in scenarios.items() if one["not_found"] or one["invented"]]
    sys.exit(bool(failed or pairs["same"] or pairs["slower"] < args.pairs))


if __name__ == "__main__":
    main()
