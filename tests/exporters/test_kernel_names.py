"""The short names of kernels in a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutrace
from captures import Capture
from cutrace.exporters.perfetto.kernel_names import LONGEST, ShortNames
from pftrace import decode

GELU = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}, "
    "std::array<char*, 2ul> >(int, float)"
)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("row_max_kernel", "row_max_kernel"),
        ("void scale<float, 4>(float*, int)", "scale<float, 4>"),
        ("(anonymous namespace)::join(float const*, int)", "join"),
        ("void ns::call<int (*)(int)>(int (*)(int), int)", "call<int (*)(int)>"),
        (GELU, "vectorized_elementwise_kernel<4, GeluCUDAKernelImpl, array<char…"),
        ("", ""),
        ("(", "("),
        (")", ")"),
        ("(a)", "(a)"),
    ],
)
def test_a_short_name_is_the_function_and_its_template(name: str, short: str) -> None:
    assert ShortNames().of(name) == short


def test_names_stay_different() -> None:
    names = ShortNames()
    lambdas = [GELU, GELU.replace("{lambda()#2}", "{lambda()#4}"), GELU.replace("2ul", "3ul")]
    spaces = ["a::f(int)", "b::f(int)", "f(int)", "f", "void f(int)"]
    shown = [names.of(name) for name in (*lambdas, *spaces)]
    assert len(set(shown)) == len(shown)
    assert len(shown[0]) == LONGEST
    assert shown[2].endswith("array<char*, 3ul> >")


def test_the_whole_name_is_an_argument(tmp_path: Path) -> None:
    with Capture(tmp_path / "c.bin") as c:
        c.kernel(c.launch("_Z4axpyPf"), 10, 20)
        c.kernel(c.launch("_ZN2ns5scaleIfLi4EEEvPT_i"), 30, 40)
    cutrace.convert(c.path, tmp_path / "out.pftrace")
    events = decode(tmp_path / "out.pftrace").gpu
    assert [event.name for event in events] == ["axpy", "scale<float, 4>"]
    whole = ["axpy(float*)", "void ns::scale<float, 4>(float*, int)"]
    assert [event.kernel.demangled_name for event in events] == whole


def test_streams_and_processes_say_what_they_are(tmp_path: Path) -> None:
    with Capture(tmp_path / "c.bin", command=["python3", "train.py"], environment={"RANK": "3"}) as c:
        c.kernel(c.launch("k"), 10, 20, stream=7)
        c.kernel(c.launch("k"), 30, 40, stream=14)
        c.add("streams", stream=14, context=1, priority=-5)
    cutrace.convert(c.path, tmp_path / "out.pftrace")
    decoded = decode(tmp_path / "out.pftrace")
    assert {event.queue for event in decoded.gpu} == {"stream 7", "stream 14 (high priority)"}
    (process,) = [track.process for track in decoded.tracks.values() if track.HasField("process")]
    assert process.process_name == "rank 3: train.py"
