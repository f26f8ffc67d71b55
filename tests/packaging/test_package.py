"""The sdist, the wheel and the workflows. `tox -e package` runs these tests with the wheel that it built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHEEL = Path(os.environ.get("TOX_PACKAGE", ""))
IN_PACKAGE = os.environ.get("TOX_ENV_NAME") == "package"
WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))
pytestmark = pytest.mark.skipif(not IN_PACKAGE, reason="tox -e package installs the tools")


def run(*command: object) -> str:
    """Run a Python module or program. If it fails, its output is shown."""
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--skip-dependency-check", "--outdir", folder)
    return next(folder.glob("*.tar.gz"))


def test_the_sdist_has_every_file_of_the_repository(sdist: Path) -> None:
    """`tox -e converter` builds its wheel from the sdist, but without the collector. So only this test checks the
    collector."""
    with tarfile.open(sdist) as archive:
        members = {name.partition("/")[2] for name in archive.getnames()}
    tracked = {name for name in run("git", "ls-files").splitlines() if (ROOT / name).exists()}
    assert tracked - members == set()
    assert {name for name in members if name.endswith((".so", ".pyc", ".pftrace"))} == set()


def test_the_metadata_render(sdist: Path) -> None:
    assert "FAILED" not in run(sys.executable, "-m", "twine", "check", "--strict", sdist, WHEEL)


def test_the_wheel_has_what_it_needs_and_no_sources() -> None:
    names = set(zipfile.ZipFile(WHEEL).namelist())
    for name in ("libcutrace_collector.so", "libcutrace_profiler.so", "py.typed", "reports/page.html", "_native.pyi"):
        assert f"cutrace/{name}" in names
    assert not [name for name in names if name.endswith((".cpp", ".h")) or name.startswith("tests/")]


def test_the_wheel_needs_no_library_that_a_system_lacks(tmp_path: Path) -> None:
    """`repair` copies libraries that the platform does not guarantee into the wheel. There must be no such library."""
    output = run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", tmp_path, WHEEL)
    repaired = next(tmp_path.glob("*.whl"))
    print(repaired.name)
    assert "manylinux" in repaired.name, output
    assert not [name for name in zipfile.ZipFile(repaired).namelist() if ".libs/" in name]


def test_installing_needs_no_compiler() -> None:
    print(run(sys.executable, "benchmarks/install.py", WHEEL))


def test_the_wheels_to_build() -> None:
    """cibuildwheel reads its section of pyproject.toml, and builds Python 3.10 to 3.14 for each system."""
    for platform in ("linux", "macos", "windows"):
        command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", platform]
        architectures = {"linux": "x86_64,aarch64", "macos": "x86_64,arm64", "windows": "AMD64"}[platform]
        built = run(*command, "--archs", architectures).split()
        assert {name.split("-")[0] for name in built} == {f"cp3{minor}" for minor in range(10, 15)}
        assert len(built) == 5 * (architectures.count(",") + 1)


def test_one_version() -> None:
    version = WHEEL.name.split("-")[1]
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.citation-file-format", "CITATION.cff")


@pytest.mark.parametrize(
    ("page", "file", "schema"),
    [
        ("howto/ci.md", ".github", "vendor.github-workflows"),
        ("howto/ci.md", ".gitlab-ci", "vendor.gitlab-ci"),
        ("tutorials/ci.md", ".github", "vendor.github-workflows"),
    ],
)
def test_jobs_in_the_documentation_are_valid(page: str, file: str, schema: str, tmp_path: Path) -> None:
    shown = []
    blocks = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    for text in blocks:
        if text.startswith(f"# {file}"):
            if "under jobs" in text.partition("\n")[0]:
                text = f"on: push\njobs:\n{text}"
            shown.append(tmp_path / f"{len(shown)}.yml")
            shown[-1].write_text(text)
    assert shown
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *shown)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_to_commits(workflow: Path) -> None:
    uses = re.findall(r"uses: (.*)", workflow.read_text())
    assert uses
    for action in uses:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)
