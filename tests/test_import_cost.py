"""Modules that importing cutrace must not import. The tests check structure, not time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {
    "numpy",
    "perfetto",
    "google.protobuf",
    "rich",
    "zstandard",
    "cuda",
    "ctypes",
    "click",
    "asyncio",
    "importlib.metadata",
}


def imported_by(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("code", "there"), [("import cutrace", "pass"), ("import pytest_cutrace.plugin", "import pytest")]
)
def test_a_bare_import_brings_nothing_heavy(code, there):
    assert not (imported_by(code) - imported_by(there)) & HEAVY


def test_help_imports_no_verb_and_nothing_but_click():
    code = "import cutrace.cli\ntry: cutrace.cli.main(['--help'])\nexcept SystemExit: pass"
    modules = imported_by(code) - imported_by("pass")
    # Entry points of other packages may add verbs.
    assert not modules & (HEAVY - {"click", "importlib.metadata"})
    assert {m for m in modules if m.startswith("cutrace.cli.")} <= {"cutrace.cli.options"}
    assert not {m for m in modules if ".verbs" in m}


def test_recording_needs_no_numpy_until_there_is_a_capture_to_read():
    modules = imported_by("import cutrace.cli.record")
    assert not modules & {"numpy", "perfetto", "rich"}


def test_a_traced_session_loads_nothing_before_a_test_needs_it():
    modules = imported_by("import pytest_cutrace.session") - imported_by("import pytest")
    # A session needs NumPy for its first capture, and the other modules for counters, processes, workers and ini files.
    later = {"numpy", "pickle", "configparser", "cutrace.collect.join", "cutrace.collect.capture"}
    assert not modules & (later | {"cutrace.collect.standby", "cutrace.collect.sampling"})
    assert not {module for module in modules if module.startswith("cutrace.extras")}


def test_verbs_of_one_trace_do_not_load_those_of_many():
    modules = imported_by("import cutrace.api")
    assert not {
        module for module in modules if module.startswith("cutrace.extras.fleet") or module == "multiprocessing"
    }


def test_every_public_name_is_there_and_known_to_dir():
    import cutrace

    for name in cutrace.__all__:
        assert getattr(cutrace, name) is not None
        assert name in dir(cutrace)
    assert cutrace.__version__


def test_an_unknown_name_is_an_attribute_error():
    import cutrace

    with pytest.raises(AttributeError, match="no attribute 'tracer'"):
        cutrace.tracer  # noqa: B018


def test_a_conversion_does_without_masked_arrays(tmp_path):
    capture = Path(__file__).parent / "data" / "torch_step.bin"
    code = f"import cutrace; cutrace.convert({str(capture)!r}, {str(tmp_path / 'out.pftrace')!r})"
    assert "numpy.ma" not in imported_by(code)
