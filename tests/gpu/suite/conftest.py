"""Lets tests/gpu/test_plugin.py run this suite backwards (``SUITE_REVERSED``) and change one test of it.

``SUITE_ADD=<what>:<end of a node id>`` adds a kernel, a copy, a synchronisation or an allocation to the test, after its
body but inside its window. It uses only the driver API.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

SOURCE = 'extern "C" __global__ void added_kernel() {}'


def add_kernel() -> None:
    from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch

    device = Device()
    device.set_current()
    options = ProgramOptions(std="c++17", arch=f"sm_{device.arch}")
    kernel = Program(SOURCE, code_type="c++", options=options).compile("cubin").get_kernel("added_kernel")
    launch(device.default_stream, LaunchConfig(grid=1, block=32), kernel)


def add_copy() -> None:
    from cuda.bindings import driver

    # The memory is allocated in an existing context. A copy from the device to itself needs two places in it.
    (error, place) = driver.cuMemAlloc(64)
    assert not int(error)
    driver.cuMemcpyDtoDAsync(int(place) + 32, place, 32, 0)
    driver.cuMemFree(place)


def add_synchronisation() -> None:
    from cuda.bindings import driver

    driver.cuStreamSynchronize(0)


def add_allocation() -> None:
    from cuda.bindings import driver

    (error, place) = driver.cuMemAlloc(1 << 20)
    assert not int(error)
    driver.cuMemFree(place)


ADDITIONS: dict[str, Callable[[], None]] = {
    "kernel": add_kernel,
    "copy": add_copy,
    "synchronisation": add_synchronisation,
    "allocation": add_allocation,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("SUITE_REVERSED"):
        items.reverse()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    result = yield
    what, _, where = os.environ.get("SUITE_ADD", "").partition(":")
    if what and pyfuncitem.nodeid.endswith(where):
        ADDITIONS[what]()
    return result
