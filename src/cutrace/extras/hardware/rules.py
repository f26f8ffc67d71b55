"""Rules that say in sentences why a kernel is slow.

The first rules name the limiter: the unit closest to its peak, or latency. They use the conditions of the rule "Speed
Of Light" of Nsight Compute, so that both tools start with the same statement. The other rules name causes, sorted by
the share of the kernel's time that a cause can explain. docs/internals/why.md lists all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ...units import count_of
from .facts import FLUSHED, Facts
from .roofline import RATES

_PCT = ".avg.pct_of_peak_sustained"
COMPUTE = f"sm__throughput{_PCT}_elapsed"
MEMORY = f"gpu__compute_memory_throughput{_PCT}_elapsed"
DRAM = f"gpu__dram_throughput{_PCT}_elapsed"
L2 = f"lts__throughput{_PCT}_elapsed"
L1 = f"l1tex__throughput{_PCT}_active"
CYCLES = "gpc__cycles_elapsed.max"
WARPS = f"sm__warps_active{_PCT}_active"
ISSUE = "smsp__issue_active.avg.per_cycle_active"
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
THREADS = "smsp__average_thread_inst_executed_per_inst_executed.ratio"
INSTRUCTIONS = "smsp__inst_executed.sum"
LOCAL = ("smsp__inst_executed_op_local_ld.sum", "smsp__inst_executed_op_local_st.sum")
DRAM_READ = "dram__bytes_read.sum"
L2_READ_SECTORS = "lts__t_sectors_srcunit_tex_op_read.sum"
L1_HITS = "l1tex__t_sector_hit_rate.pct"
_USED = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.pct"
SECTORS = "l1tex__t_sectors_pipe_lsu_mem_global_op_{}.sum"
#: Sectors that the instructions of the kernel access, for loads to registers and for asynchronous copies to shared
#: memory.
_TOUCHED = "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_{}.sum"
CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_{}.sum"
WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_{}.sum"
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
#: The bytes of a sector, the unit of transfer between L1, L2 and DRAM.
SECTOR = 32
_WARP = 32

#: The metrics of the busy time of each pipe (percent of the cycles in which its multiprocessor had a warp).
PIPES: dict[str, tuple[str, ...]] = {
    "tensor": (f"sm__pipe_tensor_cycles_active{_PCT}_active",),
    "fma": (
        f"sm__pipe_fma_cycles_active{_PCT}_active",
        f"sm__inst_executed_pipe_fma{_PCT}_active",
    ),
    "alu": (
        f"sm__pipe_alu_cycles_active{_PCT}_active",
        f"sm__inst_executed_pipe_alu{_PCT}_active",
    ),
    "fp64": (
        f"sm__pipe_fp64_cycles_active{_PCT}_active",
        f"sm__inst_executed_pipe_fp64{_PCT}_active",
    ),
    "fp16": (f"sm__inst_executed_pipe_fp16{_PCT}_active",),
    "xu": (f"sm__inst_executed_pipe_xu{_PCT}_active",),
    "lsu": (f"sm__inst_executed_pipe_lsu{_PCT}_active",),
}

#: A kernel is limited by latency if both compute and memory are below this percentage of their peaks. NVIDIA's rule
#: "Speed Of Light" has the same three thresholds.
LATENCY_BOUND = 60.0
#: A kernel is near a peak from this percentage on.
NEAR_PEAK = 80.0
#: Compute and memory are balanced if they differ by less (percentage points).
BALANCED = 10.0
_ISSUE_SLOTS = "issue slots"
#: A pipe explains the throughput of the multiprocessors if its use is at least this share of the throughput.
_EXPLAINS = 0.75

_GUIDE = "https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html"
_BEST = "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/index.html"
_CUDA = "https://docs.nvidia.com/cuda/cuda-c-programming-guide/index.html"
_VOLKOV = "https://www2.eecs.berkeley.edu/Pubs/TechRpts/2016/EECS-2016-143.pdf"
_ROOFLINE = "https://doi.org/10.1145/1498765.1498785"


@dataclass(frozen=True)
class Finding:
    """The finding of a rule: a ``sentence`` with figures, the largest ``share`` (0 to 1) of the kernel's time that it
    can explain, and the ``remedy``."""

    rule: str
    sentence: str
    share: float
    remedy: str


#: A sentence, the share of the time that it explains, and a remedy if it differs from the rule's remedy.
Said = tuple[str, float] | tuple[str, float, str]


@dataclass(frozen=True)
class KernelRule:
    """A rule on the ``metrics`` of a kernel. ``formula`` is compared with ``threshold``, in ``unit``. ``source`` is the
    origin of the rule. ``says`` gets facts with all metrics, and returns a sentence with its share, or None. With
    ``launch``, the rule also needs the launch configuration and the attributes of the GPU. With ``flushed``, it needs
    flushed caches."""

    name: str
    metrics: tuple[str, ...]
    formula: str
    remedy: str
    says: Callable[[Facts, float], Said | None]
    threshold: float = LATENCY_BOUND
    unit: str = "%"
    source: str = _GUIDE
    limiter: bool = False
    launch: bool = False
    flushed: bool = False

    def lacks(self, facts: Facts) -> str:
        """The inputs of the rule that the facts lack, with advice. "" if the facts have all inputs."""
        if not facts.values.keys() >= set(self.metrics):
            return "their metrics are in the set why: profile with --metrics why"
        if self.launch and (facts.shape is None or facts.room is None):
            return "the capture lacks the launch configuration or the attributes of the GPU"
        if self.flushed and facts.caches != FLUSHED:
            return "the bytes of DRAM depend on earlier kernels: profile with --caches flush"
        return ""

    def find(self, facts: Facts) -> Finding | None:
        """The finding of the rule on these facts. None without a finding, and if the facts lack an input of the
        rule."""
        if self.lacks(facts):
            return None
        said = self.says(facts, self.threshold)
        if said is None:
            return None
        sentence, share, *other = said
        remedy = self.remedy
        if other:
            remedy = other[0]
        return Finding(self.name, sentence, min(max(share, 0.0), 1.0), remedy)


def findings(facts: Facts) -> list[Finding]:
    """The findings on a kernel: its limiter first, then the causes, largest share of the time first."""
    limiters = []
    causes = []
    for rule in RULES:
        finding = rule.find(facts)
        if finding is None:
            continue
        if rule.limiter:
            limiters.append(finding)
        elif finding.share >= LEAST_SHARE:
            causes.append(finding)
    causes.sort(key=lambda finding: -finding.share)
    return limiters + causes


def not_asked(facts: Facts) -> list[KernelRule]:
    """The rules with an input that the facts lack."""
    return [rule for rule in RULES if rule.lacks(facts)]


#: Causes with a smaller share of the time are left out.
LEAST_SHARE = 0.01


# The limiter


def limit(facts: Facts) -> str:
    """Return the limiter of a kernel: ``memory``, ``compute``, ``balanced``, ``latency`` or ``small grid``. Needs
    :data:`COMPUTE` and :data:`MEMORY`."""
    compute = facts.values[COMPUTE]
    memory = facts.values[MEMORY]
    most = max(compute, memory)
    if most < LATENCY_BOUND:
        if facts.room is not None and facts.room.blocks and facts.room.waves < 1:
            return "small grid"
        return "latency"
    if most < NEAR_PEAK and abs(compute - memory) < BALANCED:
        return "balanced"
    if compute >= memory:
        return "compute"
    return "memory"


def memory_units(facts: Facts) -> dict[str, float]:
    """The counted throughputs of DRAM, L2 and L1 (percent of the peak over the whole time)."""
    units = {}
    for name, metric in (("DRAM", DRAM), ("L2", L2), ("L1", L1)):
        if metric in facts.values:
            units[name] = facts.values[metric]
    if "L1" in units:
        # L1 is counted only while its multiprocessor is active.
        units["L1"] *= facts.active
    return units


def memory_unit(facts: Facts) -> str:
    """The memory (DRAM, L2 or L1) with the throughput that determines :data:`MEMORY`. Needs the throughputs of all
    three.

    The throughputs of L1 and L2 can exceed :data:`MEMORY`, because they include parts that :data:`MEMORY` does not
    count.
    """
    memory = facts.values[MEMORY]
    units = memory_units(facts)
    if units["DRAM"] >= memory - _SAME:
        return "DRAM"
    return min(units, key=lambda name: abs(units[name] - memory))


#: Throughputs of different passes count as equal if they differ by less (percentage points).
_SAME = 1.0


def busy_pipe(facts: Facts, pipe: str) -> float | None:
    """The busy time of a pipe (percent of the time in which its multiprocessor has a warp). None if it was not
    counted."""
    counted = [facts.values[name] for name in PIPES[pipe] if name in facts.values]
    return max(counted, default=None)


def compute_units(facts: Facts) -> dict[str, float]:
    """The use of the counted pipes and of the issue slots (percent of the peak over the whole time)."""
    units = {}
    for pipe in PIPES:
        busy = busy_pipe(facts, pipe)
        if busy is not None:
            units[pipe] = busy * facts.active
    if ISSUE in facts.values:
        units[_ISSUE_SLOTS] = 100 * facts.values[ISSUE] * facts.active
    return units


_SAID_OF_MEMORY = {
    "DRAM": "memory-bound: {:.0f} % of the DRAM bandwidth",
    "L2": "memory-bound: {:.0f} % of the throughput of L2",
    "L1": "memory-bound: {:.0f} % of the throughput of L1 and shared memory",
}


def _memory(unit: str, facts: Facts, _: float) -> Said | None:
    """The memory ``unit`` closest to its peak limits the kernel."""
    if limit(facts) != "memory" or memory_unit(facts) != unit:
        return None
    memory = facts.values[MEMORY]
    remedy = _MEMORY_REMEDIES[unit]
    if memory < NEAR_PEAK:
        remedy += _MORE_IN_FLIGHT
    elif unit == "DRAM":
        remedy += _NO_FASTER
    return _SAID_OF_MEMORY[unit].format(memory), memory / 100, remedy


_SAID_OF_COMPUTE = {
    "tensor": "the tensor cores are",
    "fma": "the pipe of fp32 multiply-adds (fma) is",
    "alu": "the pipe of integers and logic (alu) is",
    "fp64": "the fp64 pipe is",
    "fp16": "the fp16 pipe is",
    "xu": "the pipe of special functions and conversions (xu) is",
    "lsu": "the pipe of loads and stores (lsu) is",
    _ISSUE_SLOTS: "the issue slots are",
}


def _compute_limit(facts: Facts) -> str | None:
    """The unit that limits a compute-bound kernel, "" if no counted unit explains its throughput. None for other
    kernels."""
    if limit(facts) != "compute":
        return None
    units = compute_units(facts)
    least = _EXPLAINS * facts.values[COMPUTE]
    issued = units.pop(_ISSUE_SLOTS, 0)
    # A pipe with an instruction in each cycle also fills the issue slots, so pipes come first.
    busiest = max(units, key=lambda name: units[name], default="")
    if busiest and units[busiest] >= least:
        return busiest
    if issued >= least:
        return _ISSUE_SLOTS
    return ""


def _pipe(unit: str, facts: Facts, _: float) -> Said | None:
    """A unit of the multiprocessors limits the kernel."""
    if _compute_limit(facts) != unit:
        return None
    compute = facts.values[COMPUTE]
    sentence = f"compute-bound: {compute:.0f} % of the peak of the multiprocessors"
    if unit:
        used = compute_units(facts)[unit]
        sentence += f"; {_SAID_OF_COMPUTE[unit]} {used:.0f} % busy"
    return sentence, compute / 100


def _peaks(facts: Facts) -> str:
    compute = facts.values[COMPUTE]
    memory = facts.values[MEMORY]
    return f"compute at {compute:.0f} % and memory at {memory:.0f} % of their peaks"


def _balanced(facts: Facts, _: float) -> Said | None:
    if limit(facts) != "balanced":
        return None
    most = max(facts.values[COMPUTE], facts.values[MEMORY])
    return f"balanced: {_peaks(facts)}", most / 100


def _latency(facts: Facts, _: float) -> Said | None:
    if limit(facts) != "latency":
        return None
    sentence = f"latency-bound: {_peaks(facts)}"
    issue = facts.values.get(ISSUE)
    if issue is not None:
        sentence += f"; a scheduler with warps issues an instruction in {100 * issue:.0f} % of the cycles"
    return sentence, _headroom(facts)


def _small_grid(facts: Facts, _: float) -> Said | None:
    if limit(facts) != "small grid" or facts.room is None or facts.shape is None:
        return None
    room = facts.room
    fit = room.blocks * room.multiprocessors
    blocks = count_of(facts.shape.blocks, "block")
    sentence = f"small grid: {room.waves:.2f} waves, {blocks} where {fit:,} fit; {_peaks(facts)}"
    return sentence, 1 - room.waves


def _headroom(facts: Facts) -> float:
    """The share of the time that the kernel would save if it reached the closest peak."""
    return 1 - max(facts.values[COMPUTE], facts.values[MEMORY]) / 100


# Occupancy and grid


def _occupancy(facts: Facts, threshold: float) -> Said | None:
    """Too few warps fit on a multiprocessor to hide latency."""
    if facts.room is None or facts.shape is None:
        return None
    room = facts.room
    threads = count_of(facts.shape.threads, "thread")
    if limit(facts) != "latency" or room.percent >= threshold or not room.blocks:
        return None
    reasons = {
        "registers": f"{facts.shape.registers} registers a thread",
        "shared memory": f"{facts.shape.shared:,} bytes of shared memory a block",
        "blocks": f"{threads} a block, of which {count_of(room.blocks, 'block')} fit",
        "warps": f"{threads} a block",
    }
    names = room.limiter.split(" and ")
    limiters = " and ".join(map(reasons.__getitem__, names))
    achieved = facts.values[WARPS]
    sentence = (
        f"occupancy: {achieved:.0f} % of the warp slots hold a warp, and at most {room.percent:.0f} % can, "
        f"limited by {limiters}"
    )
    remedy = _OCCUPANCY_REMEDIES[names[0]]
    return sentence, min(1 - room.percent / 100, _headroom(facts)), remedy


_OCCUPANCY_REMEDIES = {
    "registers": "Use fewer registers: __launch_bounds__ or -maxrregcount (num_warps and num_stages in Triton), fewer "
    "values of a thread at a time; or let each thread do more independent work.",
    "shared memory": "Use smaller tiles, fewer stages of a pipeline, or a narrower type in shared memory.",
    "blocks": "Use larger blocks: 128 to 256 threads.",
    "warps": "Use a block size that divides the warp slots of a multiprocessor.",
}


def _imbalance(facts: Facts, threshold: float) -> Said | None:
    """Fewer warps are resident than fit, though there are enough blocks."""
    if facts.room is None or limit(facts) != "latency":
        return None
    achieved = facts.values[WARPS]
    fit = facts.room.percent
    if fit - achieved < threshold:
        return None
    sentence = (
        f"achieved occupancy: {achieved:.0f} % of the warp slots hold a warp, though {fit:.0f} % can: "
        "blocks are short, or have unequal work"
    )
    return sentence, min(1 - achieved / fit, _headroom(facts))


def _tail(facts: Facts, threshold: float) -> Said | None:
    """The last wave has few blocks."""
    if facts.room is None:
        return None
    waves = facts.room.waves
    whole = int(waves)
    rest = waves - whole
    if not whole or not rest:
        return None
    last = 1 / (whole + 1)
    lost = (1 - rest) * last
    achieved = facts.values.get(WARPS)
    if achieved is not None and facts.room.percent:
        # If warps fill nearly all slots on average, the last wave must have been short. The metric counts only the time
        # in which a multiprocessor has a warp.
        lost = min(lost, 1 - achieved * facts.active / facts.room.percent)
    if 100 * lost < threshold:
        return None
    sentence = f"{waves:.1f} waves: the last one has {rest / waves:.0%} of the blocks and up to {last:.0%} of the time"
    return sentence.replace("%", " %"), lost


def _idle(facts: Facts, threshold: float) -> Said | None:
    """There are fewer blocks than multiprocessors."""
    if facts.room is None or facts.shape is None:
        return None
    blocks = facts.shape.blocks
    multiprocessors = facts.room.multiprocessors
    idle = 1 - blocks / multiprocessors
    if 100 * idle < threshold:
        return None
    sentence = (
        f"idle multiprocessors: {count_of(blocks, 'block')} on {multiprocessors}, "
        f"so {100 * idle:.0f} % of them have no work"
    )
    return sentence, idle


def _partial_warps(facts: Facts, threshold: float) -> Said | None:
    """The threads of a block do not fill whole warps."""
    if facts.shape is None:
        return None
    threads = facts.shape.threads
    empty = 1 - threads / (-(-threads // _WARP) * _WARP)
    if 100 * empty < threshold:
        return None
    sentence = f"partial warps: blocks of {count_of(threads, 'thread')} leave {100 * empty:.0f} % of the threads empty"
    return sentence, empty * _executing(facts)


def _executing(facts: Facts) -> float:
    """The share of the time that depends on the number of executed instructions: the whole time, unless memory is the
    limit."""
    if limit(facts) == "memory":
        return facts.values[COMPUTE] / 100
    return 1.0


# Memory


def used_of_loads(facts: Facts) -> float | None:
    """The share (percent) of used bytes in the sectors of global loads, including asynchronous copies to shared memory.
    None without such loads."""
    touched = 0.0
    used = 0.0
    for op in ("ld", "ldgsts"):
        sectors = facts.values.get(_TOUCHED.format(op), 0)
        touched += sectors
        used += sectors * facts.values.get(_USED.format(op), 0)
    if touched:
        return used / touched
    # The chip has no asynchronous copies, or the capture lacks their counts.
    return facts.values.get(_USED.format("ld")) or None


def _sectors(op: str, facts: Facts, threshold: float) -> Said | None:
    """Few bytes of the transferred sectors are used."""
    if op == "ld":
        used = used_of_loads(facts)
    else:
        used = facts.values[_USED.format(op)]
    sectors = facts.values[SECTORS.format(op)]
    if not used or used >= threshold or not sectors:
        return None
    whole = 0.0
    for each in ("ld", "st"):
        whole += facts.values.get(SECTORS.format(each), 0)
    what = {"ld": "loads", "st": "stores"}[op]
    sentence = (
        f"{SECTOR}-byte sectors of global {what}: {used:.0f} % of the bytes are used"
    )
    unused = (1 - used / 100) * sectors / whole
    return sentence, unused * facts.values[MEMORY] / 100


def _conflicts(op: str, facts: Facts, threshold: float) -> Said | None:
    """Accesses to shared memory are repeated because threads use different words of a bank."""
    if facts.room is None:
        return None
    conflicts = facts.values[CONFLICTS.format(op)]
    wavefronts = facts.values[WAVEFRONTS.format(op)]
    if not wavefronts or 100 * conflicts / wavefronts < threshold:
        return None
    # An access of a warp takes at most 32 wavefronts. Conflicts and wavefronts may be counted in different passes, so
    # their ratio can be larger.
    repeated = min(conflicts / wavefronts, 1 - 1 / _WARP)
    ways = 1 / (1 - repeated)
    what = {"ld": "loads", "st": "stores"}[op]
    sentence = (
        f"shared memory: {ways:.3g}-way bank conflicts of {what}, "
        f"{100 * repeated:.0f} % of the accesses are repetitions"
    )
    # A multiprocessor makes one access per cycle.
    cycles = facts.values[CYCLES] * facts.room.multiprocessors
    return sentence, conflicts / (cycles or 1)


def _local(facts: Facts, threshold: float) -> Said | None:
    """Registers are spilled, or arrays of a thread are in memory."""
    instructions = facts.values[INSTRUCTIONS]
    local = sum(facts.values[name] for name in LOCAL)
    if not instructions or 100 * local / instructions < threshold:
        return None
    share = local / instructions
    sentence = (
        f"local memory: {100 * share:.0f} % of the instructions load or store "
        "spilled registers or arrays of a thread"
    )
    return sentence, share


def _reuse(facts: Facts, threshold: float) -> Said | None:
    """L2 serves the same bytes many times. This excludes unused bytes of sectors, because another rule counts them."""
    memory = facts.values[MEMORY]
    read = facts.values[DRAM_READ]
    used = used_of_loads(facts) or 100
    served = facts.values[L2_READ_SECTORS] * SECTOR * min(used / 100, 1)
    hits = facts.values[L1_HITS]
    if memory_unit(facts) != "L2" or not read or served / read < threshold:
        return None
    times = served / read
    sentence = f"repeated reads: L2 serves each byte of DRAM {times:.0f} times, and L1 hits {hits:.0f} %"
    return sentence, (1 - 1 / times) * memory / 100


# Instructions


def _divergence(facts: Facts, threshold: float) -> Said | None:
    """Few threads of a warp take part in an instruction."""
    threads = facts.values[THREADS]
    full = float(_WARP)
    if facts.shape is not None:
        warps = -(-facts.shape.threads // _WARP)
        full = facts.shape.threads / warps
    # Exclude the missing threads of partial warps, because another rule counts them.
    if threads / full >= threshold / _WARP:
        return None
    sentence = f"divergent: {threads:.0f} of {full:.0f} threads active in an instruction on average"
    return sentence, (1 - threads / full) * _executing(facts)


def _fp64(facts: Facts, threshold: float) -> Said | None:
    """The chip does few fp64 operations."""
    busy = busy_pipe(facts, "fp64") or 0
    rates = RATES.get(facts.gpu.capability, {})
    if busy * facts.active < threshold or not rates:
        return None
    if rates["fp32"] < _SLOW * rates["fp64"]:
        return None
    major, minor = facts.gpu.capability
    sentence = (
        f"slow fp64: the fp64 pipe is {busy:.0f} % busy, and compute capability {major}.{minor} does "
        f"{rates['fp64']} fp64 multiply-adds a cycle of a multiprocessor beside {rates['fp32']} in fp32"
    )
    return sentence, busy / 100 * facts.active


#: fp64 is slow if fp32 is this many times as fast.
_SLOW = 8


@dataclass(frozen=True)
class Stall:
    """A stall reason: the cause of the wait of a warp, and the remedy. A ``harmless`` reason needs no action."""

    waits_for: str
    remedy: str = ""
    harmless: bool = False


_BY_LINE = "Look at the lines with the most samples: `cutrace record --sample pc`."
#: The stall reasons of warps by their names in CUPTI.
STALLS: dict[str, Stall] = {
    "long_scoreboard": Stall(
        "data of global or local memory",
        "Load earlier and more at a time (unroll, cp.async or TMA with several stages), reuse data in shared memory, "
        "or raise the occupancy.",
    ),
    "lg_throttle": Stall(
        "room in the queue of global and local memory",
        "Use fewer and wider loads and stores: 16 bytes a thread, and no spilled registers.",
    ),
    "short_scoreboard": Stall(
        "data of shared memory or a special function",
        "Avoid bank conflicts, keep values in registers, load wider, and use fewer special functions.",
    ),
    "mio_throttle": Stall(
        "room in the queue of shared memory and special functions",
        "Use fewer and wider accesses to shared memory, fewer warp shuffles, and fewer special functions.",
    ),
    "math_pipe_throttle": Stall(
        "a free pipe", "Mix instructions of several pipes, or use tensor cores."
    ),
    "wait": Stall(
        "the fixed latency of the instruction before",
        "Give each warp independent instructions (unroll, several accumulators), or raise the occupancy.",
    ),
    "barrier": Stall(
        "other warps at a barrier",
        "Balance the work of the warps before __syncthreads, use fewer barriers, or more and smaller blocks.",
    ),
    "membar": Stall(
        "a memory fence", "Use fewer fences, or fences of a narrower scope."
    ),
    "gmma": Stall(
        "warpgroup matrix products",
        "Keep more warpgroup matrix products in flight, if the tensor cores are not busy.",
    ),
    "no_instruction": Stall(
        "the next instruction",
        "Shrink the code that is executed (less unrolling, fewer branches), to fit the instruction cache. Launch more "
        "blocks if the grid is small: each instruction is then fetched for more warps.",
    ),
    "branch_resolving": Stall(
        "the target of a branch", "Use fewer branches, or predicated instructions."
    ),
    "dispatch_stall": Stall("dispatch", _BY_LINE),
    "drain": Stall(
        "stores at its end", "Write coalesced, and spread stores over the kernel."
    ),
    "imc_miss": Stall(
        "a constant", "Read constants of the same address in all threads."
    ),
    "tex_throttle": Stall(
        "room in the queue of textures", "Use fewer or wider texture reads."
    ),
    "sleeping": Stall("the end of a sleep", "Sleep shorter."),
    "misc": Stall("something else", _BY_LINE),
    "not_selected": Stall("its turn: it was ready", harmless=True),
}


def stall_metric(reason: str) -> str:
    """The metric of a stall reason."""
    return _STALL.format(reason)


def stall_shares(facts: Facts) -> dict[str, float]:
    """The share (0 to 1) of each counted stall reason in the time between two instructions of a warp, largest first.
    Needs :data:`LATENCY`."""
    latency = facts.values[LATENCY]
    shares = {}
    for reason in STALLS:
        cycles = facts.values.get(stall_metric(reason))
        if cycles is not None and latency:
            shares[reason] = cycles / latency
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _stalls(facts: Facts, threshold: float) -> Said | None:
    """Warps mostly wait for one reason, and the schedulers have idle cycles."""
    issue = facts.values[ISSUE]
    if 100 * issue >= NEAR_PEAK:
        return None
    for reason, share in stall_shares(facts).items():
        stall = STALLS[reason]
        if stall.harmless:
            continue
        if 100 * share < threshold:
            return None
        sentence = f"stalls: {100 * share:.0f} % of the time of a warp is waiting for {stall.waits_for} ({reason})"
        # A kernel near a peak waits because of that peak, so the share is limited.
        return sentence, min(share, 1 - issue, _headroom(facts)), stall.remedy
    return None


# All rules

_LIMITS = (COMPUTE, MEMORY)
_UNIT_METRICS = {"DRAM": DRAM, "L2": L2, "L1": L1}
_MEMORY_REMEDIES = {
    "DRAM": "Move fewer bytes: fuse kernels, keep data in L2 or shared memory, use narrower types.",
    "L2": "Ask L2 for fewer bytes: coalesce, and reuse data in shared memory or registers.",
    "L1": "Use fewer or wider accesses to shared memory and L1, avoid bank conflicts, and keep data in registers.",
}
#: The end of a remedy for kernels below :data:`NEAR_PEAK`, and for kernels above it.
_MORE_IN_FLIGHT = (
    " Or move the same bytes faster: keep more or wider accesses in flight."
)
_NO_FASTER = " With the same bytes the kernel can hardly run faster."
_PIPE_REMEDIES = {
    "tensor": "The tensor cores are the right place: do less work, or use a narrower type.",
    "fma": "Do fewer operations; use tensor cores for matrix products.",
    "alu": "Use fewer integer and logic operations: simpler indices, 32-bit instead of 64-bit, no invariants in loops.",
    "fp64": "Use fp32 or mixed precision where the accuracy allows it.",
    "fp16": "Use packed operations (half2), or tensor cores for matrix products.",
    "xu": "Use fewer special functions, divisions and conversions: fast intrinsics, polynomials, tables.",
    "lsu": "Use fewer and wider loads and stores: 16 bytes a thread.",
    _ISSUE_SLOTS: "Execute fewer instructions: vector loads, simpler indices, tensor cores.",
    "": "Look at the instructions by pipe: profile with --metrics instructions.",
}


def _rules() -> Iterator[KernelRule]:
    above = f"max(compute, memory), compute = {COMPUTE}, memory = {MEMORY}"
    for unit, metric in _UNIT_METRICS.items():
        yield KernelRule(
            name=f"{unit}-bound",
            metrics=(*_LIMITS, *_UNIT_METRICS.values()),
            formula=f"memory > compute, and of DRAM, L2 and L1 {metric} is the one that is closest to memory",
            source=_ROOFLINE if unit == "DRAM" else _GUIDE,
            remedy=_MEMORY_REMEDIES[unit],
            says=partial(_memory, unit),
            limiter=True,
        )
    for unit, remedy in _PIPE_REMEDIES.items():
        name = unit.removesuffix(" slots") or "compute"
        formula = "compute >= memory"
        if unit:
            formula += f", {unit} is the busiest unit that reaches {_EXPLAINS} x compute, pipes before issue slots"
        yield KernelRule(
            name=f"{name}-bound",
            metrics=_LIMITS,
            formula=formula,
            remedy=remedy,
            says=partial(_pipe, unit),
            limiter=True,
        )
    yield KernelRule(
        name="balanced",
        metrics=_LIMITS,
        formula=f"{above}; below {NEAR_PEAK:g}, and they differ by less than {BALANCED:g}",
        remedy="Reduce both the operations and the bytes.",
        says=_balanced,
        limiter=True,
    )
    yield KernelRule(
        name="latency-bound",
        metrics=_LIMITS,
        formula=f"{above} < threshold",
        source=_VOLKOV,
        remedy="Keep more work in flight: more warps, or more independent instructions of a warp.",
        says=_latency,
        limiter=True,
    )
    yield KernelRule(
        name="small grid",
        metrics=_LIMITS,
        formula=f"{above} < threshold, and blocks / (multiprocessors x blocks that fit) < 1",
        remedy="Launch more blocks: split the work finer, batch it, or run other kernels beside it.",
        says=_small_grid,
        limiter=True,
        launch=True,
    )
    yield KernelRule(
        name="occupancy",
        metrics=(*_LIMITS, WARPS),
        formula="theoretical occupancy = warps that fit / warp slots of a multiprocessor, if latency-bound",
        threshold=80.0,
        source=_BEST + "#occupancy",
        remedy="Let more warps fit.",
        says=_occupancy,
        launch=True,
    )
    yield KernelRule(
        name="achieved occupancy",
        metrics=(*_LIMITS, WARPS),
        formula=f"theoretical occupancy - {WARPS}, if latency-bound with at least 1 wave",
        threshold=10.0,
        remedy="Give all warps the same work; let each block do more if blocks are short.",
        says=_imbalance,
        launch=True,
    )
    yield KernelRule(
        name="tail",
        metrics=(),
        formula="(1 - blocks of the last wave / blocks of a full one) / waves, rounded up",
        threshold=10.0,
        remedy="Choose a grid that fills whole waves, smaller blocks, or blocks that stay and take work in a loop.",
        says=_tail,
        launch=True,
    )
    yield KernelRule(
        name="idle multiprocessors",
        metrics=(),
        formula="1 - blocks / multiprocessors",
        threshold=1.0,
        source=_BEST + "#thread-and-block-heuristics",
        remedy="Launch at least as many blocks as there are multiprocessors.",
        says=_idle,
        launch=True,
    )
    yield KernelRule(
        name="partial warps",
        metrics=_LIMITS,
        formula="1 - threads of a block / threads of its warps",
        threshold=10.0,
        source=_BEST + "#thread-and-block-heuristics",
        remedy=f"Use a multiple of {_WARP} threads a block.",
        says=_partial_warps,
        launch=True,
    )
    sectors = tuple(SECTORS.format(op) for op in ("ld", "st"))
    for op, what in (("ld", "loads"), ("st", "stores")):
        yield KernelRule(
            name=f"sectors of {what}",
            metrics=(MEMORY, _USED.format(op), *sectors),
            formula=f"{_USED.format(op)} < threshold",
            threshold=80.0,
            source=_BEST + "#coalesced-access-to-global-memory",
            remedy="Let the threads of a warp access neighbouring addresses: swap the loops or the layout, or go "
            "through shared memory.",
            says=partial(_sectors, op),
        )
    for op, what in (("ld", "loads"), ("st", "stores")):
        conflicts = CONFLICTS.format(op)
        wavefronts = WAVEFRONTS.format(op)
        yield KernelRule(
            name=f"bank conflicts of {what}",
            metrics=(conflicts, wavefronts, CYCLES),
            formula=f"{conflicts} / {wavefronts}",
            threshold=10.0,
            source=_BEST + "#shared-memory-and-memory-banks",
            remedy="Pad the rows of the array by a word (by 16 bytes if a thread accesses 16 bytes at a time), or "
            "swizzle its columns.",
            says=partial(_conflicts, op),
            launch=True,
        )
    yield KernelRule(
        name="local memory",
        metrics=(*LOCAL, INSTRUCTIONS),
        formula=f"({LOCAL[0]} + {LOCAL[1]}) / {INSTRUCTIONS}",
        threshold=1.0,
        source=_BEST + "#local-memory",
        remedy="Allow more registers, keep fewer values at a time, and index arrays of a thread by constants only.",
        says=_local,
    )
    yield KernelRule(
        name="repeated reads",
        metrics=(MEMORY, DRAM, L2, L1, DRAM_READ, L2_READ_SECTORS, L1_HITS),
        formula=f"{SECTOR} x {L2_READ_SECTORS} x used share of the sectors / {DRAM_READ}, "
        "if L2 is closest to memory and the caches were flushed",
        threshold=4.0,
        unit="",
        source=_BEST + "#shared-memory-in-matrix-multiplication-c-ab",
        remedy="Load a tile once into shared memory or registers and use it several times.",
        says=_reuse,
        flushed=True,
    )
    yield KernelRule(
        name="divergence",
        metrics=(*_LIMITS, THREADS),
        formula=f"{THREADS} / threads of a full warp x {_WARP} < threshold",
        threshold=24.0,
        unit="threads",
        source=_BEST + "#branching-and-divergence",
        remedy="Let the threads of a warp take the same branch: sort or group the work, or branch by whole warps.",
        says=_divergence,
    )
    yield KernelRule(
        name="slow fp64",
        metrics=(PIPES["fp64"][0],),
        formula=f"{PIPES['fp64'][0]}, if fp32 is at least {_SLOW} times as fast by the documented rates",
        threshold=60.0,
        source=_CUDA + "#arithmetic-instructions",
        remedy="Use fp32, or pairs of fp32 values; look for constants and functions that are fp64 by accident.",
        says=_fp64,
    )
    yield KernelRule(
        name="stalls",
        metrics=(*_LIMITS, ISSUE, LATENCY, *map(stall_metric, _ASKED)),
        formula=f"largest of the stall metrics / {LATENCY}, if the schedulers issue in less than {NEAR_PEAK:g} % of "
        "the cycles",
        threshold=30.0,
        remedy="Depends on the reason.",
        says=_stalls,
    )


#: The stall reasons that the rule about stalls compares.
_ASKED: Sequence[str] = (
    "long_scoreboard",
    "lg_throttle",
    "short_scoreboard",
    "mio_throttle",
    "math_pipe_throttle",
    "wait",
    "barrier",
    "membar",
    "no_instruction",
    "branch_resolving",
    "dispatch_stall",
)

RULES: tuple[KernelRule, ...] = tuple(_rules())
#: The names of the rules on the limiter.
LIMITERS = frozenset(rule.name for rule in RULES if rule.limiter)
