"""The rules of cutrace why on kernels with one problem each, and on kernels that must not show the problem."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from cutrace.extras.hardware.facts import FLUSHED
from cutrace.extras.hardware.rules import COMPUTE, LIMITERS, MEMORY, busy_pipe
from cutrace.extras.hardware.why import Answer

PROGRAM = Path(__file__).parent / "programs" / "slow_kernels.py"
MATMUL = "matrix product"  # cuBLAS's kernel; its name depends on the version
#: By rule, the kernels that show its problem, and the kernels that must not.
SHOWN: dict[str, tuple[list[str], list[str]]] = {
    "DRAM-bound": (["copies"], ["reads_l2", "shared_rows", "fp32_operations", "few_blocks"]),
    "L2-bound": (["reads_l2"], ["copies", "shared_rows", "fp32_operations"]),
    "L1-bound": (["shared_rows", "shared_columns", "stores_columns"], ["copies", "reads_l2", "logic"]),
    "tensor-bound": ([], ["fp32_operations", "fp64_operations"]),
    "fma-bound": (["fp32_operations"], ["logic", "special_functions", MATMUL]),
    "alu-bound": (["logic"], ["fp32_operations", "special_functions"]),
    "fp64-bound": (["fp64_operations"], ["fp32_operations", MATMUL]),
    "xu-bound": (["special_functions"], ["fp32_operations", "logic"]),
    "latency-bound": (["few_blocks", "many_registers", "uneven"], ["copies", "fp32_operations", "idle_gpu"]),
    "small grid": (["idle_gpu"], ["few_blocks", "fp32_operations"]),
    "occupancy": (["few_blocks", "many_registers"], ["uneven", "copies", "fp32_operations"]),
    "achieved occupancy": (["uneven"], ["few_blocks", "copies"]),
    "tail": (["last_wave"], ["whole_waves", "copies", "idle_gpu"]),
    "idle multiprocessors": (["idle_gpu"], ["last_wave", "copies"]),
    "partial warps": (["partial_warps"], ["fp32_operations", "diverges"]),
    "sectors of loads": (["strided_loads"], ["copies", "strided_stores", "reads_l2"]),
    "sectors of stores": (["strided_stores"], ["copies", "strided_loads"]),
    "bank conflicts of loads": (["shared_columns"], ["shared_rows", "copies", "stores_columns"]),
    "bank conflicts of stores": (["stores_columns"], ["shared_rows", "copies", "shared_columns"]),
    "local memory": (["local_array"], ["fp32_operations", "many_registers"]),
    "divergence": (["diverges"], ["fp32_operations", "partial_warps", "copies"]),
    "stalls": (["few_blocks", "waits_at_barriers"], ["fp32_operations"]),
}
CASES = [(rule, kernel, at == 0) for rule, sides in SHOWN.items() for at in (0, 1) for kernel in sides[at]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """The answers by kernel."""
    pytest.importorskip("cupy")
    folder = tmp_path_factory.mktemp("rules")
    own = "/^(" + "|".join(sorted({kernel for _, kernel, _ in CASES} - {MATMUL})) + ")$|gemm|cutlass|nvjet|xmma/"
    command = [sys.executable, "-m", "cutrace", "profile", "--kernel", own, "--", sys.executable, str(PROGRAM)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    sums = {line for line in done.stdout.splitlines() if line.startswith("sum ")}
    assert len(sums) == 1, "the program computes the same in both runs"
    found = {}
    names = {kernel for _, kernel, _ in CASES}
    for answer in cutrace.why(folder / "run.bin").answers:
        name = answer.facts.kernel
        found[name if name in names else MATMUL] = answer
    return found


@pytest.mark.parametrize(("rule", "kernel", "shown"), CASES, ids=lambda value: str(value))
def test_a_kernel_shows_what_it_was_written_for_and_nothing_else(
    answers: dict[str, Answer], rule: str, kernel: str, shown: bool
) -> None:
    answer = answers[kernel]
    said = {finding.rule: finding.sentence for finding in answer.findings}
    assert (rule in said) == shown, (list(said.values()), dict(answer.facts.values))


def test_each_kernel_has_one_limiter_which_comes_first(answers: dict[str, Answer]) -> None:
    for kernel, answer in answers.items():
        limiters = [finding.rule in LIMITERS for finding in answer.findings]
        assert limiters[0], kernel
        assert sum(limiters) == 1, kernel


def test_the_set_why_leaves_no_rule_unasked(answers: dict[str, Answer]) -> None:
    for kernel, answer in answers.items():
        # If the caches cannot be flushed, the rule about repeated reads cannot be used.
        assert {rule.name for rule in answer.not_asked} <= {"repeated reads"}, kernel


def test_figures_are_those_of_the_source(answers: dict[str, Answer]) -> None:
    def said(kernel: str, rule: str) -> str:
        return next(finding.sentence for finding in answers[kernel].findings if finding.rule == rule)

    assert "8-way bank conflicts" in said("shared_columns", "bank conflicts of loads")
    assert "8-way bank conflicts" in said("stores_columns", "bank conflicts of stores")
    assert "12 % of the bytes are used" in said("strided_loads", "sectors of loads")
    assert "12 % of the bytes are used" in said("strided_stores", "sectors of stores")
    assert "divergent: 4 of 32" in said("diverges", "divergence")
    assert "(long_scoreboard)" in said("few_blocks", "stalls")
    assert "(barrier)" in said("waits_at_barriers", "stalls")
    assert "shared memory a block" in said("few_blocks", "occupancy")
    assert "registers a thread" in said("many_registers", "occupancy")


def test_a_matrix_product_is_near_the_peak_of_tensor_cores_or_of_shared_memory(answers: dict[str, Answer]) -> None:
    """A product by cuBLAS comes close to both peaks. The larger value is the limit."""
    answer = answers[MATMUL]
    busy = busy_pipe(answer.facts, "tensor")
    assert busy is not None
    assert busy > 60
    if answer.facts.values[COMPUTE] >= answer.facts.values[MEMORY]:
        assert answer.limiter == "tensor-bound"
    else:
        assert answer.limiter == "L1-bound"


def test_repeated_reads_are_said_if_the_caches_were_flushed(answers: dict[str, Answer]) -> None:
    answer = answers["reads_l2"]
    said = [finding.rule for finding in answer.findings]
    assert ("repeated reads" in said) == (answer.facts.caches == FLUSHED)
    assert "repeated reads" not in [finding.rule for finding in answers["copies"].findings]


def test_fp64_is_slow_on_the_chips_where_it_is(answers: dict[str, Answer]) -> None:
    answer = answers["fp64_operations"]
    slow = answer.facts.gpu.capability in ((7, 5), (8, 6), (8, 9), (12, 0))
    assert ("slow fp64" in [finding.rule for finding in answer.findings]) == slow
