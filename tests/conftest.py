"""Fixtures that all tests use."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from support.fakedriver import FakeDriver, MissingTools, build

# Tests ignore Ctrl-C if a shell starts them in the background, and SIGHUP if nohup starts them. Programs of tests
# inherit this. Tests that interrupt programs need the default actions.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests start many programs that import NumPy. In each of them OpenBLAS would start threads, which takes 0.1 s of
# processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# The time of an example depends on other work on the machine.
with contextlib.suppress(ImportError):  # GPU tests need no hypothesis
    import hypothesis

    hypothesis.settings.register_profile("cutrace", deadline=None)
    hypothesis.settings.load_profile("cutrace")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collections. They take a quarter of the processor time, and find nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()  # collections during the tests need not look at the collected tests


@pytest.fixture(scope="session")
def fake_driver(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """A GPU for programs in separate processes: see ``support.fakedriver`` and ``support.fakegpu``.

    It is kept in pytest's cache. If it cannot be built, its tests are skipped, or fail with
    ``CUTRACE_FAKE_DRIVER=require``.
    """
    cache = getattr(pytestconfig, "cache", None)  # None with -p no:cacheprovider
    try:
        return build(cache.mkdir("fake-driver") if cache is not None else tmp_path_factory.mktemp("fake-driver"))
    except MissingTools as missing:
        if os.environ.get("CUTRACE_FAKE_DRIVER") == "require":
            raise
        pytest.skip(f"the fake driver {missing}")


@pytest.fixture(scope="session")
def fake_cupti(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libcupti, loaded into this process under another name, so that other tests do not find it."""
    library = (fake_driver.libraries / "libcupti.so.13").read_bytes()
    path = tmp_path_factory.mktemp("fake-cupti") / "libfakes.so.13"
    path.write_bytes(library.replace(b"libcupti.so.13\0", b"libfakes.so.13\0"))
    return path


@pytest.fixture(scope="session")
def real_cupti() -> Path:
    """The libcupti 13.0 that ``CUTRACE_TEST_CUPTI`` names. Its host interface needs no GPU and no driver."""
    path = os.environ.get("CUTRACE_TEST_CUPTI")
    if not path:
        pytest.skip("CUTRACE_TEST_CUPTI does not name the libcupti of nvidia-cuda-cupti==13.0.85")
    return Path(path)
