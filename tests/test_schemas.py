"""The JSON of every command matches its schema. Also runs the commands of the skill file."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

import schemas
from captures import Capture, training_steps
from cutrace.cli import cli
from cutrace.extras.hardware.roofline import KINDS
from cutrace.extras.hardware.rules import COMPUTE, DRAM, L1, L2, MEMORY
from cutrace.golden import digest, propose, read
from cutrace.golden.compare import Row
from cutrace.golden.model import Interval, Span, Verdict
from cutrace.reports.jsonfile import case_text, report_text
from cutrace.reports.model import Case, Kernel, SessionReport, State
from profiled import BYTES, profiled_capture
from support import cutrace, small_capture
from support.fakedriver import FakeDriver
from support.measured import change as changed
from support.suites import Suite

jsonschema = pytest.importorskip("jsonschema")

ROOT = Path(__file__).parents[1]
DATA = ROOT / "tests" / "data"
DOCS = (ROOT / "docs" / "agents.md").read_text()
SKILL = (ROOT / "src" / "cutrace" / "extras" / "agents" / "SKILL.md").read_text()
PROFILED = "import fakegpu; fakegpu.launch('_Z4axpyPfi'); fakegpu.synchronize()"


def case(launches: int, **about) -> Case:
    rows = (
        Row("kernels", "", {"gemm": (1, 2)}, {"gemm": launches}, "equal", Verdict.CHANGED, True, "+ gemm", True),
        Row("kernel_time_ns", "r", Interval(1, 2, 3, 4, (1, 2)), None, "slower", Verdict.SLOW, False),
        Row("peak_memory_bytes", "", Span(1, 2), 1.5, "state", Verdict.SAME, False),
    )
    values = {"kernel_launches": launches, "kernels": {"gemm": launches}, "share": float("nan")}
    kernels = (Kernel("gemm", launches, 5, 1, 2),)
    return Case("t.py::a", rows=rows, values=values, regions={"r": values}, kernels=kernels, **about)


def reports(folder: Path) -> tuple[Path, Path]:
    """Two reports of sessions with different work. One has a test in each state."""
    before, after = folder / "before.json", folder / "report.json"
    states = tuple(Case(f"t.py::{state.value}", state=state, user={"x": [1]}) for state in State)
    before.write_text(report_text(SessionReport((case(1), Case("t.py::gone")), "header", versions={"cutrace": "1"})))
    after.write_text(report_text(SessionReport((case(2), *states), notes=("a note",), commit="abc", job="gpu")))
    return before, after


def json_options(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the verbs that have an option for JSON."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            verb = command.get_command(context, name)
            assert verb is not None
            yield from json_options(verb, (*path, name))
    for option in command.params:
        if isinstance(option.type, click.Choice) and "json" in option.type.choices:
            yield " ".join(path)


def printed(*arguments: object, status: int = 0, **options) -> str:
    done = cutrace(*arguments, **options)
    assert done.returncode == status, done.stderr
    return str(done.stdout)


def of_metrics(verb: str, *arguments: str) -> Callable[..., str]:
    def run(folder: Path, driver: FakeDriver) -> str:
        library = driver.libraries / "libcupti.so.13"
        return printed(
            "metrics", verb, *arguments, "--format", "json", "--chip", "GH100", "--cupti", library, env=os.environ
        )

    return run


def of_profile(folder: Path, driver: FakeDriver) -> str:
    command = [sys.executable, "-m", "cutrace", "profile", "--format", "json", "--", sys.executable, "-c", PROFILED]
    done = subprocess.run(command, cwd=folder, env=driver.environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def of_doctor(folder: Path, driver: FakeDriver) -> str:
    return cutrace("doctor", "--format", "json").stdout


def of_ps(folder: Path, driver: FakeDriver) -> str:
    env = driver.environment() | {"XDG_RUNTIME_DIR": str(folder)}
    program = "import fakegpu; fakegpu.init(); print(flush=True); input()"
    command = [sys.executable, "-m", "cutrace", "arm", "--", sys.executable, "-c", program]
    armed = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert armed.stdout is not None
    armed.stdout.readline()
    out = printed("ps", "--format", "json", env=env)
    armed.communicate(b"\n", timeout=60)
    return out


def of_sql(folder: Path, driver: FakeDriver) -> str:
    pytest.importorskip("duckdb")
    query = "select kernels.name, duration, uuid, true as t, null as n from kernels cross join devices"
    return printed("sql", "--format", "json", small_capture(folder / "a.bin"), query)


def of_diff(folder: Path, driver: FakeDriver) -> str:
    captures = [training_steps(folder / f"{steps}.bin", steps=steps) for steps in (1, 2)]
    return printed("diff", "--format", "json", *captures, status=1)


def of_comparison(folder: Path, driver: FakeDriver) -> str:
    return printed("report", "compare", "--format", "json", *reports(folder), status=1)


def golden_capture(path: Path, launches: int) -> Path:
    with Capture(path) as c:
        c.device(compute_major=9, compute_minor=0)
        c.context()
        for at in range(1, launches + 1):
            c.api("cudaLaunchKernel", at * 1_000, at * 1_000 + 200, correlation=at)
            c.kernel(c.launch("k"), at * 1_000 + 300, at * 1_000 + 900, correlation=at)
    return path


def golden_files(folder: Path) -> tuple[Path, Path]:
    """Two golden files of a test: one with one kernel, and one with two."""
    files = []
    for launches in (1, 2):
        root = folder / f"golden-{launches}"
        capture = golden_capture(folder / f"{launches}.bin", launches)
        printed("golden", "create", capture, capture, "--test", "t.py::a", "--golden-dir", root)
        files += [path for path in root.rglob("*") if path.is_file()]
    return files[0], files[1]


def test_json_of_golden_files_fits_their_schema(tmp_path: Path) -> None:
    golden, after = golden_files(tmp_path)
    changes = json.loads(printed("diff", "--format", "json", golden, after, status=1))
    schemas.check(changes)
    assert len(changes["tests"]) == 1
    out = printed("diff", "--format", "json", golden, tmp_path / "2.bin", status=1)
    schemas.check(json.loads(out))
    (test,) = json.loads(out)["tests"]
    assert (test["nodeid"], test["verdict"]) == ("t.py::a", "failed")
    assert any(row["failed"] and row["metric"] == "kernel_launches" for row in test["rows"])


def of_golden(verb: str) -> Callable[..., str]:
    def run(folder: Path, driver: FakeDriver) -> str:
        before, _ = golden_files(folder)
        stale = ("--golden-dir", folder / "golden-1", "--rootdir", folder, "--format", "json")
        root = folder / "golden-1"
        known = digest(read(before).tests["a"], "sm_90")
        more = changed(root, "t.py::a", before=known, syncs={"cudaStreamSynchronize": 2})
        propose([more], folder / "proposed", root)
        words = {
            "create": ["create", folder / "2.bin", "--test", "t.py::a", "-o", before, "--format", "json"],
            "accept": ["accept", folder / "proposed", "--golden-dir", folder / "golden-1", "--format", "json"],
            "check": ["check", *stale],
        }[verb]
        out = printed("golden", *words, status=int(verb == "check"))
        found = json.loads(out)
        assert len(found["stale" if verb == "check" else "tests"]) == 1
        return out

    return run


def of_why(folder: Path, driver: FakeDriver) -> str:
    metrics = {
        BYTES: 7.0,
        **dict.fromkeys(KINDS["fp32"], 5.0),
        COMPUTE: 10.0,
        MEMORY: 90.0,
        DRAM: 90.0,
        L2: 5.0,
        L1: 5.0,
    }
    path = profiled_capture(folder / "a.bin", ("_Z3sumPf", 10, metrics))
    out = printed("why", "--format", "json", path)
    found = json.loads(out)
    (point,) = found["rooflines"][0]["points"]
    assert (point["kind"], point["time_ns"], point["bytes"]) == ("fp32", 10, 7.0)
    (kernel,) = found["kernels"]
    assert (kernel["limiter"], kernel["launch"]["block"], kernel["values"][MEMORY]) == ("DRAM-bound", [32, 1, 1], 90.0)
    other = profiled_capture(folder / "b.bin", ("_Z3sumPf", 5, metrics | {MEMORY: 50.0}))
    compared = json.loads(printed("why", "--format", "json", path, other))
    schemas.check(compared)
    (change,) = compared["changes"]
    assert (change["time_change"], change["after"]["limiter"]) == (-0.5, "small grid")
    return out


def of_batch(folder: Path, driver: FakeDriver) -> str:
    pytest.importorskip("pyarrow")
    return printed(
        "batch", "kernels", DATA / "ranks.bin", "-o", folder / "out", "--mode", "sequential", "--format", "json"
    )


#: For each verb, a function that returns its JSON.
OUTPUTS: dict[str, Callable[[Path, FakeDriver], str]] = {
    "batch": of_batch,
    "diff": of_diff,
    "doctor": of_doctor,
    "golden accept": of_golden("accept"),
    "golden check": of_golden("check"),
    "golden create": of_golden("create"),
    "info": lambda folder, driver: printed("info", "--format", "json", DATA / "ranks.bin"),
    "metrics describe": of_metrics("describe", "sm__inst_executed"),
    "metrics list": of_metrics("list"),
    "metrics sets": of_metrics("sets"),
    "profile": of_profile,
    "ps": of_ps,
    "report compare": of_comparison,
    "sql": of_sql,
    "why": of_why,
    "stats": lambda folder, driver: printed("stats", "--format", "json", DATA / "torch_step.bin"),
}


def test_every_option_for_json_is_tested_here():
    assert set(json_options(cli)) == OUTPUTS.keys()


@pytest.mark.parametrize("verb", OUTPUTS)
def test_the_output_fits_the_schema_of_its_kind(verb, tmp_path, request):
    driver = request.getfixturevalue("fake_driver") if verb.startswith(("metrics", "profile", "ps")) else None
    found = json.loads(OUTPUTS[verb](tmp_path, driver))
    assert found["kind"].startswith(f"cutrace {verb.split()[0]}")
    schemas.check(found)


@pytest.mark.parametrize("source", ["nsys-2024.4-unified-memory.sqlite", "damaged", "sampled"])
def test_info_fits_for_imports_damage_and_sampling(source, tmp_path):
    path = DATA / source
    if source == "damaged":
        path = training_steps(tmp_path / "a.bin")
        path.write_bytes(path.read_bytes()[:-100])
    elif source == "sampled":
        path = small_capture(tmp_path / "a.bin", sampled={"dram": "bytes"}, sample_interval=1000)
    found = json.loads(printed("info", "--format", "json", path))
    schemas.check(found)
    assert found[{"damaged": "losses", "sampled": "gpus"}.get(source, "imports")]


def test_the_manifest_of_a_batch_fits(tmp_path):
    pytest.importorskip("pyarrow")
    good, bad = small_capture(tmp_path / "a.bin"), tmp_path / "b.bin"
    bad.write_bytes(small_capture(bad, pid=101, instance=2).read_bytes()[:-50])
    for states in (["done", "damaged"], ["skipped", "skipped"]):
        printed("batch", "kernels", good, bad, "-o", tmp_path / "out", "--mode", "sequential", status=1)
        manifest = json.loads((tmp_path / "out" / "kernels.manifest.json").read_text())
        schemas.check(manifest)
        assert [file["state"] for file in manifest["files"]] == states
    printed("batch", "all", good, "-o", tmp_path / "all", "--mode", "sequential")
    schemas.check(json.loads((tmp_path / "all" / "all.manifest.json").read_text()))


def test_reports_of_tests_fit(tmp_path):
    before, after = reports(tmp_path)
    printed("report", "merge", before, after, "-o", tmp_path / "all.json")
    for path in (before, after, tmp_path / "all.json"):
        schemas.check(json.loads(path.read_text()))
    schemas.check(json.loads(case_text(case(3, state=State.GATED))))


def test_reports_of_the_plugin_fit(tmp_path, fake_driver):
    suite = Suite(tmp_path, fake_driver)
    suite.write(
        "test_a.py",
        """
        def test_work(gpu_trace):
            with gpu_trace.region("r"):
                for _ in range(int(os.environ["LAUNCHES"])):
                    fakegpu.launch("gemm")
            fakegpu.synchronize()
        """,
    )
    suite.run("--cutrace-update", LAUNCHES="2")
    assert suite.run("--cutrace", LAUNCHES="3").failed == {"test_work"}
    (metrics,) = tmp_path.rglob("metrics.json")
    for path in (tmp_path / "report.json", metrics):
        schemas.check(json.loads(path.read_text()))


def test_reports_with_machine_code_fit(tmp_path, fake_driver):
    suite = Suite(tmp_path, fake_driver)
    suite.write(
        "test_a.py",
        """
        def test_work():
            with open(os.environ["CUBIN"], "rb") as file:
                fakegpu.load_module(file.read())
            fakegpu.launch("scale")
            fakegpu.launch("elsewhere")
        """,
    )
    suite.run("--cutrace-update=code", CUBIN=str(DATA / "cubins" / "sm_100.cubin"))
    keep = ("--cutrace", "--cutrace-keep=all")
    assert suite.run(*keep, CUBIN=str(DATA / "cubins" / "sm_80.cubin")).case("test_work").code == "other"
    (capture,) = tmp_path.rglob("run.bin")
    check = ("diff", tmp_path / "golden" / "test_a.toml", capture, "--format", "json")
    for found in ((tmp_path / "report.json").read_text(), printed(*check)):
        assert "codes" in found
        schemas.check(json.loads(found))


def test_what_does_not_fit_is_found(tmp_path):
    for change in ({"span_ns": "1"}, {"new": 1}, {"format": 2}):
        found = json.loads(printed("info", "--format", "json", small_capture(tmp_path / "a.bin")))
        schemas.check(found)
        with pytest.raises(jsonschema.ValidationError):
            schemas.check(found | change)
    del found["gpus"]
    with pytest.raises(jsonschema.ValidationError):
        schemas.check(found)


def test_schemas_are_valid_and_the_page_lists_them_with_their_kinds_and_versions():
    table = re.findall(r"^\| \[(\w+\.json)\]\(\.\./src/cutrace/schemas/\1\) \| (.*) \| (\d+) \|$", DOCS, re.MULTILINE)
    assert {name for name, _, _ in table} == schemas.FILES.keys()
    for name, kinds, version in table:
        jsonschema.Draft202012Validator.check_schema(schemas.FILES[name])
        assert schemas.FILES[name]["$id"] == f"urn:cutrace:{name.removesuffix('.json')}:{version}"
        assert set(re.findall("`(.*?)`", kinds)) == {kind for kind, file in schemas.KINDS.items() if file == name}
    _, example = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    names: dict[str, str] = {}
    exec(example, names)
    assert json.loads(names["schema"]) == schemas.FILES["tables.json"]


def test_the_commands_of_the_skill_give_the_keys_that_it_names(tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    training_steps(Path("run.bin"), steps=3)
    training_steps(Path("before.bin"), steps=2)
    for rank in range(2):
        small_capture(Path(f"rank{rank}.bin"), pid=rank + 1, instance=rank + 1)
    reports(tmp_path)
    Path("train.py").touch()
    rows = re.findall(r"^\| .* \| `(cutrace .*?)` \| (.*) \|$", SKILL, re.MULTILINE)
    assert len(rows) == SKILL.count("\n| ") - 1  # the head of the table
    for command, answer in rows:
        done = cutrace(*shlex.split(command)[1:])
        if "json" not in command.split():
            assert done.returncode == 0, (command, done.stderr)
            continue
        found = json.loads(done.stdout)
        schemas.check(found)
        assert done.returncode == int(found.get("failed", not found.get("can_record", True))), (command, done.stderr)
        for key in re.findall("`(.*?)`", answer):
            assert f'"{key}"' in done.stdout, (command, key)
    assert Path("step.bin").exists()
    assert Path("run.pftrace").exists()
