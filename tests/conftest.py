"""Fixtures of all tests."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from support.fakedriver import FakeDriver, MissingTools, build

# A shell that starts the tests in the background makes them ignore Ctrl-C, and nohup makes them ignore SIGHUP.
# What they start inherits that. Tests that interrupt programs need the default actions.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Tests start many programs that import NumPy. In each, OpenBLAS starts threads: a tenth of a second of processor time.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# How long an example takes depends on what else the machine does.
with contextlib.suppress(ImportError):  # tests of a GPU do without
    import hypothesis

    hypothesis.settings.register_profile("cutrace", deadline=None)
    hypothesis.settings.load_profile("cutrace")


@pytest.fixture(scope="session")
def fake_driver(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> FakeDriver:
    """A GPU for programs in processes of their own: see ``support.fakedriver`` and ``support.fakegpu``.

    Kept in pytest's cache. Where it cannot be built its tests are skipped, or fail if ``CUTRACE_FAKE_DRIVER=require``.
    """
    cache = getattr(pytestconfig, "cache", None)  # none with -p no:cacheprovider
    try:
        return build(cache.mkdir("fake-driver") if cache is not None else tmp_path_factory.mktemp("fake-driver"))
    except MissingTools as missing:
        if os.environ.get("CUTRACE_FAKE_DRIVER") == "require":
            raise
        pytest.skip(f"the fake driver {missing}")


@pytest.fixture(scope="session")
def fake_cupti(fake_driver: FakeDriver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake libcupti under another name, to load into this process: no other test finds it there."""
    library = (fake_driver.libraries / "libcupti.so.13").read_bytes()
    path = tmp_path_factory.mktemp("fake-cupti") / "libfakes.so.13"
    path.write_bytes(library.replace(b"libcupti.so.13\0", b"libfakes.so.13\0"))
    return path


@pytest.fixture(scope="session")
def real_cupti() -> Path:
    """A libcupti 13.0, whose host interface needs no GPU and no driver: ``CUTRACE_TEST_CUPTI`` names it."""
    path = os.environ.get("CUTRACE_TEST_CUPTI")
    if not path:
        pytest.skip("CUTRACE_TEST_CUPTI does not name the libcupti of nvidia-cuda-cupti==13.0.85")
    return Path(path)
