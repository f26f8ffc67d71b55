"""Sets of metrics, each for one question. A set leaves out the metrics that a chip lacks."""

from __future__ import annotations

from dataclasses import dataclass

from ...errors import CutraceError, did_you_mean
from ...units import parse_words
from .host import Chip

_PCT = ".avg.pct_of_peak_sustained"
_PIPES = ("alu", "fma", "fp16", "fp64", "xu", "lsu")
_STALLS = (
    "barrier",
    "branch_resolving",
    "dispatch_stall",
    "drain",
    "gmma",
    "imc_miss",
    "lg_throttle",
    "long_scoreboard",
    "math_pipe_throttle",
    "membar",
    "mio_throttle",
    "misc",
    "no_instruction",
    "not_selected",
    "short_scoreboard",
    "sleeping",
    "tex_throttle",
    "wait",
)
#: Stall reasons that are rare. They would need another pass.
_RARE_STALLS = ("drain", "imc_miss", "misc", "sleeping", "tex_throttle")
_SPEED_OF_LIGHT = (
    f"sm__throughput{_PCT}_elapsed",
    f"gpu__compute_memory_throughput{_PCT}_elapsed",
    f"gpu__dram_throughput{_PCT}_elapsed",
    f"l1tex__throughput{_PCT}_active",
    f"lts__throughput{_PCT}_elapsed",
    "gpu__time_duration.sum",
    "gpc__cycles_elapsed.max",
    "gpc__cycles_elapsed.avg.per_second",
    "dram__cycles_elapsed.avg.per_second",
    "sm__cycles_active.avg",
)
_OCCUPANCY = (f"sm__warps_active{_PCT}_active", "sm__warps_active.avg.per_cycle_active")
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_PIPE_USE = (
    *(f"sm__inst_executed_pipe_{pipe}{_PCT}_active" for pipe in _PIPES),
    *(
        f"sm__pipe_{pipe}_cycles_active{_PCT}_active"
        for pipe in ("alu", "fma", "fp64", "tensor")
    ),
)
_OPERATIONS = tuple(
    f"smsp__sass_thread_inst_executed_op_{prefix}{op}_pred_on.sum"
    for prefix in "fdh"
    for op in ("add", "mul", "fma")
)


@dataclass(frozen=True)
class MetricSet:
    """The metrics (``names``) for the question ``asks``. ``formulas`` are pairs of name and formula of derived
    values."""

    name: str
    asks: str
    names: tuple[str, ...]
    formulas: tuple[tuple[str, str], ...] = ()


SETS = {
    each.name: each
    for each in (
        MetricSet(
            "overview",
            "How busy is the GPU, and what does it move? One pass is enough, so ranges can use it, too.",
            (
                "gpu__time_duration.sum",
                f"sm__cycles_active{_PCT}_elapsed",
                f"sm__warps_active{_PCT}_active",
                f"sm__pipe_tensor_cycles_active{_PCT}_elapsed",
                "sm__inst_executed.sum",
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
            ),
        ),
        MetricSet(
            "why",
            "Why is the kernel slow? All that the rules of `cutrace why` need.",
            (
                *_SPEED_OF_LIGHT,
                *_OCCUPANCY,
                "smsp__inst_executed.sum",
                "smsp__average_thread_inst_executed_per_inst_executed.ratio",
                "sm__inst_executed.avg.per_cycle_active",
                "sm__inst_executed.avg.per_cycle_elapsed",
                f"sm__instruction_throughput{_PCT}_active",
                *_PIPE_USE,
                *_OPERATIONS,
                "smsp__issue_active.avg.per_cycle_active",
                "smsp__average_warp_latency_per_inst_issued.ratio",
                *(_STALL.format(why) for why in _STALLS if why not in _RARE_STALLS),
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                "lts__t_bytes.sum",
                "lts__t_sector_hit_rate.pct",
                "lts__t_sectors_srcunit_tex_op_read.sum",
                "l1tex__t_bytes.sum",
                "l1tex__t_sector_hit_rate.pct",
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
                "smsp__sass_average_data_bytes_per_sector_mem_global_op_ldgsts.pct",
                "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ld.sum",
                "smsp__sass_l1tex_t_sectors_pipe_lsu_mem_global_op_ldgsts.sum",
                "smsp__inst_executed_op_local_ld.sum",
                "smsp__inst_executed_op_local_st.sum",
                "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
                "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
            ),
        ),
        MetricSet(
            "speed-of-light",
            "How close does the kernel come to the limits of the GPU?",
            _SPEED_OF_LIGHT,
        ),
        MetricSet(
            "occupancy",
            "What share of the warp slots is used?",
            _OCCUPANCY,
        ),
        MetricSet(
            "instructions",
            "How many instructions are executed, and on which pipes?",
            (
                "sm__inst_executed.sum",
                "smsp__thread_inst_executed.sum",
                "sm__inst_executed.avg.per_cycle_active",
                "sm__inst_executed.avg.per_cycle_elapsed",
                f"sm__instruction_throughput{_PCT}_active",
                *(f"sm__inst_executed_pipe_{pipe}.sum" for pipe in _PIPES),
                *_PIPE_USE,
            ),
            (
                (
                    "threads per instruction",
                    "smsp__thread_inst_executed.sum / sm__inst_executed.sum",
                ),
            ),
        ),
        MetricSet(
            "flops",
            "How many floating-point operations does it do, by type, and for how many bytes?",
            (
                *_OPERATIONS,
                "sm__ops_path_tensor_src_fp16.sum",
                "sm__ops_path_tensor_src_bf16_dst_fp32.sum",
                "sm__ops_path_tensor_src_tf32_dst_fp32.sum",
                "sm__ops_path_tensor_src_fp64.sum",
                "sm__ops_path_tensor_src_fp8.sum",
                "sm__ops_path_tensor_src_int8.sum",
                "dram__bytes.sum",
                "lts__t_bytes.sum",
                "l1tex__t_bytes.sum",
                "gpu__time_duration.sum",
            ),
            (
                ("fp32 operations", "fadd + fmul + 2 x ffma"),
                ("fp64 operations", "dadd + dmul + 2 x dfma"),
                (
                    "fp16 operations",
                    "hadd + hmul + 2 x hfma, each on two numbers where the code is packed",
                ),
                ("arithmetic intensity", "operations / dram__bytes.sum"),
            ),
        ),
        MetricSet(
            "issue",
            "What do warps wait for instead of issuing instructions?",
            (
                "smsp__issue_active.avg.per_cycle_active",
                "smsp__average_warp_latency_per_inst_issued.ratio",
                *map(_STALL.format, _STALLS),
            ),
        ),
        MetricSet(
            "branches",
            "Do the threads of a warp diverge?",
            (
                "smsp__sass_average_branch_targets_threads_uniform.pct",
                "smsp__sass_branch_targets_threads_divergent.sum",
                "smsp__sass_branch_targets.sum",
                "smsp__average_thread_inst_executed_per_inst_executed.ratio",
            ),
        ),
        MetricSet(
            "memory",
            "How much data moves between DRAM, L2, L1 and shared memory, and how efficiently?",
            (
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                f"dram__throughput{_PCT}_elapsed",
                "lts__t_bytes.sum",
                "lts__t_sector_hit_rate.pct",
                "l1tex__t_sector_hit_rate.pct",
                "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
                "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
                "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
                "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
                "smsp__inst_executed_op_local_ld.sum",
                "smsp__inst_executed_op_local_st.sum",
            ),
            (
                (
                    "sectors per request",
                    "l1tex__t_sectors... / l1tex__t_requests..., 4 when 32 threads read 4 bytes side by side",
                ),
            ),
        ),
        MetricSet(
            "raw",
            "Which counts stay the same from run to run? For golden files.",
            (
                "sm__inst_executed.sum",
                "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
                "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
                "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
                "sm__inst_executed_pipe_tensor.sum",
                "dram__bytes_read.sum",
                "dram__bytes_write.sum",
                "lts__t_bytes.sum",
            ),
        ),
    )
}

#: CUPTI's names of the hardware counters in :data:`cutrace.analysis.definitions.METRICS`.
COUNTERS = {
    "instructions": "sm__inst_executed.sum",
    "tensor_instructions": "sm__inst_executed_pipe_tensor.sum",
    "fp32_fma": "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "fp32_add": "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum",
    "fp32_mul": "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum",
    "dram_bytes": "dram__bytes.sum",
    "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum",
    "l2_bytes": "lts__t_bytes.sum",
}

#: The metrics that are sampled by default, in one pass.
SAMPLED = (
    f"gr__cycles_active{_PCT}_elapsed",
    f"sm__cycles_active{_PCT}_elapsed",
    f"sm__pipe_tensor_cycles_active{_PCT}_elapsed",
    f"sm__inst_executed_realtime{_PCT}_elapsed",
    f"sm__warps_active_realtime{_PCT}_elapsed",
    "dram__bytes_read.sum.per_second",
    "dram__bytes_write.sum.per_second",
    "nvlrx__bytes.sum.per_second",
    "nvltx__bytes.sum.per_second",
    "pcie__read_bytes.sum.per_second",
    "pcie__write_bytes.sum.per_second",
)


def hint(word: str) -> str:
    """The advice for an unknown name of a set."""
    return did_you_mean(word, SETS, f"the sets are {', '.join(SETS)}")


def in_set(chip: Chip, name: str) -> list[str]:
    """The metrics of a set that a chip has."""
    return [metric for metric in SETS[name].names if chip.has(metric)]


def chosen(chip: Chip, text: str) -> list[str]:
    """The metrics of ``SET|NAME,...`` on a chip. Metrics of a set that the chip lacks are left out.

    Raises :class:`CutraceError` for a name that is neither a set nor a metric of the chip, and for a set without a
    metric of the chip.
    """
    names: list[str] = []
    for word in parse_words(text):
        if word in SETS:
            metrics = in_set(chip, word)
            if not metrics:
                raise CutraceError(
                    f"{chip.name} has no metric of the set {word}: use another set"
                )
            names += metrics
        elif "__" in word:
            chip.describe(word)
            names.append(word)
        else:
            raise CutraceError(
                f"{word} is neither a set nor the name of a metric: {hint(word)}"
            )
    if not names:
        raise CutraceError(
            f"{text!r} names no metrics: write a set ({', '.join(SETS)}) or names separated by commas"
        )
    return list(dict.fromkeys(names))
