"""The quickstart and the tutorials of docs/tutorials. Each command runs, in order, and prints what the page shows.

A ``sh`` block is run line by line, a ``python`` block with a title is a file with that name, and a ``text`` block is a
part of the output of the last ``sh`` block. Commands that need a GPU run on the fake one, with replacements for PyTorch
and ``train.py``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.fakedriver import FakeDriver

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'^```(sh|text|python)(?: title="([^"\n]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
TRAIN = "import fakegpu\nfakegpu.launch()\nfakegpu.synchronize()\n"
TORCH = '''
"""A stand-in for PyTorch: each operation launches a kernel of the fake GPU."""
import fakegpu


class Tensor:
    def __init__(self, *shape, device="cuda"):
        self.shape = shape

    def _launch(self, kernel):
        fakegpu.launch(kernel)
        return Tensor(*self.shape)

    def __sub__(self, other):
        return self._launch("elementwise_sub")

    def __truediv__(self, other):
        return self._launch("elementwise_div")

    def mean(self):
        return self._launch("reduce_mean")

    def std(self):
        return self._launch("reduce_std")

    def isnan(self):
        return self._launch("elementwise_isnan")

    def any(self):
        return self._launch("reduce_any")

    def __bool__(self):
        fakegpu.copy("DtoH", 1)
        fakegpu.synchronize("cudaStreamSynchronize", stream=7)
        return False


def ones(*shape, device):
    return Tensor(*shape)._launch("elementwise_fill")
'''


class Reader:
    """Someone who follows a page in ``folder``."""

    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        self.folder = folder
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))
        }
        for program in ("python", "cutrace"):
            command = f'#!/bin/sh\nexec "{sys.executable}" {"-m cutrace " if program == "cutrace" else ""}"$@"\n'
            self.write(f"bin/{program}", command).chmod(0o755)
        self.write("site/torch.py", TORCH)
        self.environment = driver.environment(environment) | {
            "PATH": f"{folder / 'bin'}{os.pathsep}{environment['PATH']}",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **{f"GIT_{who}_{what}": "reader@example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self.environment["PYTHONPATH"] += os.pathsep + str(folder / "site")

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def run(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            command,
            shell=True,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert "Traceback" not in done.stdout, done.stdout
        return done.returncode, done.stdout

    def follow(self, page: str) -> dict[str, int]:
        """Run the commands of a page and compare their outputs. Returns the exit statuses that are not 0."""
        failed, output = {}, ""
        for kind, title, text in BLOCK.findall((ROOT / "docs" / "tutorials" / page).read_text()):
            if kind == "python" and title:
                self.write(title, text)
            elif kind == "text":
                assert text in output, output
            elif kind == "sh":
                output = ""
                for command in text.splitlines():
                    status, printed = self.run(command)
                    output += printed
                    if status:
                        failed[command] = status
                    if command.startswith("cutrace record"):
                        shutil.copy(ROOT / "tests" / "data" / "torch_step.bin", self.folder / "run.bin")
        return failed


@pytest.fixture
def reader(fake_driver: FakeDriver, tmp_path: Path) -> Reader:
    return Reader(tmp_path, fake_driver)


def test_from_a_slow_step_to_its_cause(reader: Reader) -> None:
    reader.write("train.py", TRAIN)
    assert reader.follow("step.md") == {"cutrace diff slow.bin fast.bin": 1}


def test_quickstart(reader: Reader) -> None:
    reader.write("train.py", TRAIN)
    assert reader.follow("../quickstart.md") == {}


def test_goldens_in_ci(reader: Reader) -> None:
    reader.write("pytest.ini", "[pytest]\naddopts = -p no:cacheprovider -p cutrace\n")
    reader.write(".gitignore", "/.cutrace/\n/bin/\n/site/\n")
    reader.run("git init -q")
    shutil.copy(ROOT / "tests" / "data" / "torch_step.bin", reader.folder / "run.bin")
    assert reader.follow("ci.md") == {"python -m pytest -q --cutrace": 1, "cutrace diff golden.toml slow.bin": 1}
    assert (reader.folder / "golden" / "tests" / "test_ops.toml").read_text().count("isnan") == 1


def test_reading_a_trace_of_64_ranks(reader: Reader) -> None:
    pytest.importorskip("pyarrow")
    (reader.folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    assert reader.follow("ranks.md") == {}
    assert "<figure data-chart>" in (reader.folder / "out" / "collectives.html").read_text()


def test_the_recipes_of_a_page_are_the_files_that_run_on_a_gpu() -> None:
    page = (ROOT / "docs" / "howto" / "ci.md").read_text()
    shown = {title: text for _, title, text in BLOCK.findall(page)}
    files = {path.name: path.read_text() for path in (ROOT / "tests" / "gpu" / "recipes").glob("*.py")}
    assert shown.items() <= files.items()
    for name, text in files.items():
        compile(text, name, "exec")
