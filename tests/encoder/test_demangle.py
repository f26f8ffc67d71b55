"""Names as the C++ ABI mangles them, and names that it does not."""

from __future__ import annotations

import pytest

from cutrace._native import demangle


def test_a_mangled_name_becomes_its_signature() -> None:
    assert demangle("_Z4axpyPffi") == "axpy(float*, float, int)"


@pytest.mark.parametrize("name", ["f", "i", "Pf", "triton_poi_fused_0", "ampere_sgemm_128x64_tn", "", "_Zzzz"])
def test_any_other_name_comes_back_even_where_the_abi_would_read_a_type(name: str) -> None:
    assert demangle(name) == name
