"""The machine code of kernels, from captures made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.trace.codes import KernelCode

ONE = KernelCode(hash=(1 << 64) - 1, registers=32, static_shared=0, local=0, size=512, architecture=90)
TWO = KernelCode(hash=2, registers=40, static_shared=128, local=8, size=640, architecture=90)


def add_code(capture: Capture, name: str, code: KernelCode, context: int = 1) -> None:
    capture.add(
        "kernel_codes", name=name, code=code.hash, registers=code.registers, static_shared=code.static_shared,
        local_per_thread=code.local, size=code.size, architecture=code.architecture, context=context,
    )  # fmt: skip


def capture(path: Path, codes: dict[str, list[KernelCode]], launches: list[tuple[str, int]], pid: int = 100) -> Path:
    """A process with these codes by mangled name, and a kernel for each launch. A launch is a name and its code."""
    with Capture(path, pid=pid) as c:
        for name, known in codes.items():
            for code in known:
                add_code(c, name, code)
        for at, (name, code) in enumerate(launches):
            c.kernel(c.launch(name, code=code), 1000 * at, 1000 * at + 500, correlation=at + 1)
    return path


def test_launches_with_a_hash_have_its_code(tmp_path):
    path = capture(tmp_path / "a.bin", {"_Z1kv": [ONE, TWO]}, [("_Z1kv", ONE.hash), ("_Z1kv", ONE.hash)])
    with cutrace.load(path) as trace:
        assert list(trace.codes.by_kernel) == ["k()"]
        kernel = trace.codes.by_kernel["k()"]
        assert kernel.codes == {ONE}
        assert not kernel.unknown
        assert kernel.text == "ffffffffffffffff"


def test_a_kernel_can_run_several_codes(tmp_path):
    path = capture(tmp_path / "a.bin", {"k": [ONE, TWO]}, [("k", ONE.hash), ("k", TWO.hash)])
    with cutrace.load(path) as trace:
        kernel = trace.codes.by_kernel["k"]
        assert kernel.codes == {ONE, TWO}
        assert kernel.text == "0000000000000002, ffffffffffffffff"


def test_a_launch_without_a_hash_is_ambiguous_or_unknown(tmp_path):
    codes = {"several": [ONE, TWO], "single": [ONE], "mixed": [ONE, TWO]}
    launches = [("several", 0), ("single", 0), ("never told", 0), ("mixed", 0), ("mixed", TWO.hash)]
    path = capture(tmp_path / "a.bin", codes, launches)
    with cutrace.load(path) as trace:
        texts = {name: kernel.text for name, kernel in trace.codes.by_kernel.items()}
        assert texts == {
            "several": "ambiguous", "single": "unknown", "never told": "unknown",
            "mixed": "0000000000000002, ambiguous",
        }  # fmt: skip
        assert trace.codes.by_kernel["mixed"].candidates == {ONE, TWO}
        assert trace.codes.by_kernel["several"].codes == frozenset()


def test_codes_of_one_process_say_nothing_about_another(tmp_path):
    first = capture(tmp_path / "1.bin", {"k": [ONE]}, [("k", ONE.hash)], pid=1)
    second = capture(tmp_path / "2.bin", {"other": [TWO]}, [("k", 0)], pid=2)
    with cutrace.load([first, second]) as trace:
        kernel = trace.codes.by_kernel["k"]
        assert kernel.codes == {ONE}
        assert kernel.unknown
        assert kernel.candidates == frozenset()
        assert trace.codes.text(0, "k", ONE.hash) == "ffffffffffffffff"
        assert trace.codes.text(1, "k", 0) == "unknown"


def test_a_capture_without_code_has_none(tmp_path):
    with cutrace.load(capture(tmp_path / "a.bin", {}, [("k", 0)])) as trace:
        assert trace.codes is None


def test_a_part_of_a_capture_keeps_its_codes(tmp_path):
    path = capture(tmp_path / "a.bin", {"k": [ONE], "other": [TWO]}, [("k", ONE.hash), ("other", TWO.hash)])
    cutrace.slice(path, tmp_path / "part.bin", cutrace.Conditions(kernel=["k"]))
    with cutrace.load(tmp_path / "part.bin") as part:
        assert part.codes.by_kernel["k"].codes == {ONE}
        assert "other" not in part.codes.by_kernel


def test_tables_have_the_hash_as_an_unsigned_number(tmp_path):
    path = capture(tmp_path / "a.bin", {"k": [ONE]}, [("k", ONE.hash)])
    with cutrace.load(path) as trace:
        assert trace.arrow("kernels")["code"].to_pylist() == [ONE.hash]
        assert trace.arrow("kernel_codes")["code"].to_pylist() == [ONE.hash]


def test_queries_join_kernels_with_their_code(tmp_path):
    pytest.importorskip("duckdb")
    path = capture(tmp_path / "a.bin", {"k": [ONE]}, [("k", ONE.hash)])
    rows = cutrace.sql(path, "select c.registers from kernels k join kernel_codes c on c.code = k.code")
    assert rows["registers"].to_pylist() == [32]


def test_a_recording_of_code_that_knows_none_says_so(tmp_path):
    with Capture(tmp_path / "a.bin", options={"code": "1"}) as c:
        c.kernel(c.launch("k"), 0, 500)
    with cutrace.load(tmp_path / "a.bin") as trace:
        assert trace.codes.by_kernel["k"].descriptions == ("unknown",)


def test_codes_of_some_kernels_have_descriptions(tmp_path):
    path = capture(tmp_path / "a.bin", {"k": [ONE, TWO], "other": [ONE]}, [("k", TWO.hash), ("other", 0), ("k", 0)])
    with cutrace.load(path) as trace:
        found = trace.codes.of_kernels(trace.kernels[:2], str.upper)
        assert {name: kernel.descriptions for name, kernel in found.items()} == {
            "K": ("0000000000000002 registers=40 shared=128 local=8 bytes=640",),
            "OTHER": ("unknown",),
        }
