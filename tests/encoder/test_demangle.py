"""Names mangled by the C++ ABI, and other names.

``names.tsv.xz`` has mangled names and the output of ``c++filt -i -r -s gnu-v3`` of binutils 2.40. They are names of
kernels in captures, of symbols in libraries, and of deep templates, lambdas and expressions by g++ 12 and clang++ 14.
"""

from __future__ import annotations

import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from cutrace._native import demangle


def names() -> list[tuple[str, str]]:
    lines = lzma.decompress((Path(__file__).parent / "names.tsv.xz").read_bytes()).decode().splitlines()
    return [(mangled, plain) for mangled, plain in (line.split("\t") for line in lines)]


def test_a_mangled_name_becomes_its_signature() -> None:
    assert demangle("_Z4axpyPffi") == "axpy(float*, float, int)"


@pytest.mark.parametrize(
    "name", ["f", "i", "Pf", "triton_poi_fused_0", "ampere_sgemm_128x64_tn", "", "_Z", "_Zzzz", "_Z1fv."]
)
def test_any_other_name_comes_back_even_where_the_abi_would_read_a_type(name: str) -> None:
    assert demangle(name) == name


def test_names_are_written_as_gnu_writes_them() -> None:
    corpus = names()
    assert len(corpus) >= 5000
    assert sum(len(mangled) > 1024 for mangled, _ in corpus) >= 200
    assert max(len(mangled) for mangled, _ in corpus) > 7000
    assert [(mangled, demangle(mangled)) for mangled, _ in corpus] == corpus


def test_the_corpus_is_what_gnu_writes() -> None:
    tool = shutil.which("c++filt")
    if tool is None or " 2.40" not in subprocess.run([tool, "--version"], capture_output=True, text=True).stdout:
        pytest.skip("needs c++filt of binutils 2.40: others write some expressions otherwise")
    mangled, plain = zip(*names(), strict=True)
    run = subprocess.run(
        [tool, "-i", "-r", "-s", "gnu-v3"], input="\n".join(mangled), capture_output=True, text=True, check=True
    )
    assert tuple(run.stdout.splitlines()) == plain


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_Z1f1AIS_IiEE", "f(A<A<int> >)"),
        ("_Z1fILm3EL1E0ELb1ELc97ELDn0EEvv", "void f<3ul, (E)0, true, (char)97, (decltype(nullptr))0>()"),
        ("_ZN12_GLOBAL__N_11fEv", "(anonymous namespace)::f()"),
        ("_ZZ1fvENKUlT_E0_clIiEEDaS_", "auto f()::{lambda(auto:1)#2}::operator()<int>(int) const"),
        ("_ZZ1fvENKUt_1gEv", "f()::{unnamed type#1}::g() const"),
        ("_Z1fv.constprop.0.cold", "f() [clone .constprop.0] [clone .cold]"),
        ("_Z1fIiEDTplfp_Li1EET_", "decltype ({parm#1}+(1)) f<int>(int)"),
        ("_Z1fIJidEEvDpRKT_", "void f<int, double>(int const&, double const&)"),
        ("_Z1fPFiM1AKFvvEE", "f(int (*)(void (A::*)() const))"),
        # g++ shares template parameters between functions: S2_ is T_, which belongs to g there and to f here.
        (
            "_Z1fIPiZ1gIdEvT_EUliE_EvS2_T0_",
            "void f<int*, g<double>(double)::{lambda(int)#1}>(int*, g<double>(double)::{lambda(int)#1})",
        ),
        # Names by compilers newer than binutils 2.40.
        ("_Z1fITnDaLi3EEvv", "void f<3>()"),
    ],
)
def test_how_names_are_written(name: str, plain: str) -> None:
    assert demangle(name) == plain


@pytest.mark.parametrize(
    "name",
    [
        "_Z1f" + "P" * 10_000 + "i",
        "_Z1f" + "1AI" * 3000 + "i" + "E" * 3000,
        "_Z1fI" + "Tp" * 5000,
        "_Z1fI" + "Tt" * 5000,
        "_Z1f" + "u1aI" * 4000 + "i",
        "_Z1fIX" + "ng" * 5000,
        "_Z" + "GTt" * 5000 + "1fv",
        "_ZN" + "1a" * 8000 + "Ev",
        "_Z1fIX" + "sr1AIX" * 2000,
        "_Z1f" + "1a" * 9000,
    ],
)
def test_names_beyond_the_bounds_come_back(name: str) -> None:
    assert demangle(name) == name


def test_names_of_eight_kilobytes_have_room() -> None:
    inner = "i"
    for _ in range(400):
        inner = f"18some_template_nameI{inner}E"
    plain = demangle(f"_Z1f{inner}")
    assert plain == "f(" + "some_template_name<" * 400 + "int" + "> " * 399 + ">)"
