"""Extras: each can be deleted, and another package can add the same features."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cutrace
from support import small_capture

EXTRAS = ("agents", "fleet", "hardware", "nsys", "pages")
#: Uses the core, without a test framework, because the tested package is a copy.
CORE = """
import sys
from pathlib import Path
import cutrace
from cutrace import plugins
from cutrace.analysis.reports import statistics, tables
from cutrace.cli import main

folder = Path(sys.argv[1])
with cutrace.load(folder / "a.bin") as trace:
    assert len(trace.kernels) == 2
    tables(trace, list(statistics()))
for name in ("a.pftrace", "a.json", "a.folded", "kernels.csv"):
    cutrace.convert(folder / "a.bin", folder / name)
assert len(cutrace.load(folder / "a.json").kernels) == 2
cutrace.slice(folder / "a.bin", folder / "part.bin", cutrace.Conditions(kernel=("*",)))
assert not cutrace.diff(folder / "a.bin", folder / "a.bin").failed
(folder / "not.trace").write_bytes(b"\\x00")
try:
    cutrace.load(folder / "not.trace")
except cutrace.CutraceError:
    pass
import pytest_cutrace.plugin, pytest_cutrace.capture
try:
    pytest_cutrace.capture.counters()
except cutrace.CutraceError as error:
    assert "lacks hardware metrics" in str(error)
print(*(Path(extra.__file__).parent.name for extra in plugins.extras()))
for arguments in (["--help"], ["info", str(folder / "a.bin")]):
    try:
        main(arguments)
    except SystemExit as end:
        assert not end.code, end.code
"""
VERBS = {
    "agents": (),
    "fleet": ("batch", "merge"),
    "hardware": ("metrics", "profile", "why"),
    "nsys": (),
    "pages": ("view",),
}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A copy of the installed packages."""
    folder = tmp_path_factory.mktemp("site")
    ignored = shutil.ignore_patterns("__pycache__", "native")
    package = Path(cutrace.__file__).parent
    shutil.copytree(package, folder / "cutrace", ignore=ignored)
    shutil.copytree(package.parent / "pytest_cutrace", folder / "pytest_cutrace", ignore=ignored)
    native = Path(sys.modules["cutrace._native"].__file__)
    shutil.copy(native, folder / "cutrace" / native.name)
    return folder


def run(site: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    # The copy has to come before the installed package, even before a package of an import hook.
    start = "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if isinstance(f, type)]\n"
    start += f"sys.path.insert(0, {str(site)!r})\n"
    command = [sys.executable, "-W", "error", "-c", start + CORE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ)


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_core_works_without_an_extra(site, tmp_path, extra):
    small_capture(tmp_path / "a.bin")
    folder = site / "cutrace" / "extras" / extra
    away = tmp_path / "away"
    shutil.move(folder, away)
    try:
        done = run(site, tmp_path)
    finally:
        shutil.move(away, folder)
    assert (done.returncode, done.stderr) == (0, "")
    first, _, rest = done.stdout.partition("\n")
    assert first.split() == [name for name in EXTRAS if name != extra]
    offered = {line.split()[0] for line in rest.partition("Commands:")[2].splitlines() if line.startswith("  ")}
    for name, verbs in VERBS.items():
        assert (set(verbs) <= offered) == (name != extra or not verbs)


def test_the_core_works_without_any_extra(site, tmp_path):
    small_capture(tmp_path / "a.bin")
    away = tmp_path / "away"
    shutil.move(site / "cutrace" / "extras", away)
    try:
        done = run(site, tmp_path)
    finally:
        shutil.move(away, site / "cutrace" / "extras")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\n")


THEIRS = '''
import click
from cutrace.analysis.collection import Grouping, Timed, fields
from cutrace.analysis.statistic import Statistic, count_column, text_column
from cutrace.analysis.statistics.kernels import KERNELS
from cutrace.exporters.base import Exporter
from cutrace.plugins import Verb, hookimpl


def write(trace, path, request):
    path.write_text(f"{len(trace.kernels)} kernels")


class Importer:
    name = "theirs"
    description = "a file of theirs"

    def recognizes(self, source):
        return source.head.startswith(b"THEIRS")

    def read(self, source, out):
        out.process(0, pid=77)


@click.command()
@click.argument("word")
def mylib(word):
    """Say a word."""
    click.echo(f"mylib says {word}")


@hookimpl
def cutrace_importers():
    return [Importer()]


@hookimpl
def cutrace_exporters():
    return [Exporter("count", "how many kernels", (".count",), write)]


@hookimpl
def cutrace_verbs():
    return [Verb("mylib", "Say a word of mylib.", "theirs:mylib"), Verb("gone", "Is not there.", "theirs:gone")]


@hookimpl
def cutrace_statistics():
    of_streams = Grouping(
        ("kernels",), key=fields("stream"), row=lambda context, key, time: Timed(f"stream {key[0]}", time)
    )
    stream = text_column("stream", "name")
    return [
        Statistic("their_sum", "Kernels, as they see them", KERNELS, (text_column("kernel", "name"),), spread="time"),
        Statistic("their_streams", "Kernels by stream", of_streams, (stream, count_column("kernels", "time.count"))),
    ]
'''


@pytest.fixture
def theirs(tmp_path):
    """An environment with a package that adds one feature of each kind."""
    folder = tmp_path / "packages"
    about = folder / "theirs-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[cutrace]\ntheirs = theirs\n")
    (folder / "theirs.py").write_text(THEIRS)
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))

    def cutrace_with_them(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cutrace", *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, cwd=tmp_path)

    return cutrace_with_them


def test_a_package_adds_a_verb(theirs):
    assert "Say a word of mylib." in theirs("--help").stdout
    done = theirs("mylib", "hello")
    assert (done.returncode, done.stdout, done.stderr) == (0, "mylib says hello\n", "")
    assert theirs("mylib").returncode == 2
    done = theirs("gone")
    assert done.returncode == 2
    assert done.stderr.startswith("cutrace: the verb gone cannot be loaded: ")


def test_a_package_adds_a_statistic(theirs, tmp_path):
    small_capture(tmp_path / "a.bin")
    assert "their_sum" in theirs("stats", "--list-reports").stdout
    done = theirs("stats", "--report", "their_sum", "--format", "csv", "a.bin")
    assert done.returncode == 0
    own = theirs("stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", "a.bin")
    assert done.stdout.splitlines()[1:] == own.stdout.splitlines()[1:]


def test_a_package_collects_what_the_core_does_not(theirs, tmp_path):
    small_capture(tmp_path / "a.bin")
    done = theirs("stats", "--report", "their_streams", "--format", "csv", "a.bin")
    assert done.stdout == "stream,kernels\nstream 7,2\n"
    assert "Kernels by stream" in theirs("stats", "a.bin").stdout


def test_a_package_adds_an_importer_and_an_exporter(theirs, tmp_path):
    small_capture(tmp_path / "a.bin")
    assert theirs("convert", "a.bin", "-o", "a.count").returncode == 0
    assert (tmp_path / "a.count").read_text() == "2 kernels"
    (tmp_path / "b.theirs").write_bytes(b"THEIRS")
    done = theirs("info", "b.theirs")
    assert done.returncode == 0
    assert "77" in done.stdout
