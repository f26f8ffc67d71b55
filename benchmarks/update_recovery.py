"""Measure the losses of a killed update of golden files. Updates on the fake GPU are killed at random moments.

Each update has 200 tests, serial or with workers of pytest-xdist. A hook logs each finished test in the process that
ran it. When the log has a random number of tests, SIGKILL ends the whole process group. The next update runs one other
test, applies the journal and writes the golden file. A test is lost if it is in the log, but the golden file lacks it
or has another count. No test may be lost. Prints one JSON object. Needs a C++ compiler and the CUDA and CUPTI headers.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutrace.golden import read
from workloads import options
from workloads.machine import facts

TESTS = Path(__file__).parents[1] / "tests"
NUMBER = 200
WORKERS = (0, 2)

CONFTEST = """
import os
import pytest

@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish(nodeid):
    # The controller of pytest-xdist calls this hook, too.
    if "PYTEST_XDIST_WORKER" in os.environ or not os.environ.get("WORKERS"):
        with open("finished", "a") as file:
            file.write(nodeid + "\\n")
"""
SUITE = f"""
import time
import fakegpu
import pytest

@pytest.mark.parametrize("n", range(1, {NUMBER + 1}))
def test_many(n):
    for _ in range(n):
        fakegpu.launch("k", duration_ns=100)
    time.sleep(0.002)
"""
OTHER = "import fakegpu\n\ndef test_other():\n    fakegpu.launch('k')\n"


@dataclass(frozen=True)
class Kill:
    """A killed update: the number of its workers, the tests that had finished, and the finished tests that were
    lost."""

    workers: int
    finished: int
    lost: list[str]


def finished(folder: Path) -> list[str]:
    """The tests in the log, without an incomplete last line."""
    log = folder / "finished"
    if not log.exists():
        return []
    return [line.strip() for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def command(workers: int, *words: str) -> list[str]:
    plugins = ["-p", "cutrace", "-p", "no:cacheprovider"]
    if workers:
        plugins += ["-p", "xdist", "-n", str(workers)]
    return [sys.executable, "-m", "pytest", "-q", *plugins, "--cutrace-update", *words]


def kill_one(folder: Path, environment: dict[str, str], workers: int, after: int, delay: float) -> Kill:
    """Kill an update ``delay`` seconds after ``after`` tests have finished, and count the finished tests that the next
    update lacks."""
    for name, text in (("conftest.py", CONFTEST), ("test_many.py", SUITE), ("test_other.py", OTHER)):
        (folder / name).write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\n")
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command(workers, "test_many.py"),
            cwd=folder,
            env=environment | {"WORKERS": str(workers or "")},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        deadline = time.monotonic() + 120
        while len(finished(folder)) < after:
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the update did not get far enough:\n{(folder / 'output').read_text()}")
            time.sleep(0.0005)
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    before = finished(folder)
    if (folder / "golden").exists():
        raise SystemExit("the update had ended before it was killed")
    done = subprocess.run(command(0, "test_other.py"), cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the next update failed:\n{done.stdout}{done.stderr}")
    written = read(folder / "golden" / "test_many.toml").tests
    lost = []
    for nodeid in before:
        test = nodeid.partition("::")[2]
        launched = int(test.partition("[")[2].rstrip("]"))
        entry = written.get(test, {})
        values = [observed.values[""]["kernel_launches"] for observed in entry.values()]
        if values != [{"k": launched}]:
            lost.append(nodeid)
    return Kill(workers, len(before), lost)


def run(kills: int, seed: int, cache: Path) -> dict[str, Any]:
    """Kill ``kills`` updates, serial and with workers, and summarise them."""
    sys.path.insert(0, str(TESTS))
    from support.fakedriver import build

    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))}
    environment = build(cache).environment(inherited) | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    chosen = random.Random(seed)
    results: dict[str, Any] = {}
    for workers in WORKERS:
        done = []
        for _ in range(kills):
            after = chosen.randint(1, NUMBER - 20)
            delay = chosen.uniform(0, 0.02)
            with tempfile.TemporaryDirectory() as folder:
                done.append(kill_one(Path(folder), environment, workers, after, delay))
        name = f"{workers} workers" if workers else "serial"
        lost = [len(kill.lost) for kill in done]
        results[name] = {
            "finished": [kill.finished for kill in done],
            "lost": lost,
            "most_lost": max(lost),
        }
    return {
        "benchmark": "update_recovery",
        "tests": NUMBER,
        "kills": kills,
        "seed": seed,
        "results": results,
        "machine": facts(),
    }


def main() -> None:
    parser = options.parser(__doc__, out=None)
    parser.add_argument("--kills", type=int, default=40, help="killed updates, serial and with workers (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="a folder with the fake driver, or for it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = run(arguments.kills, arguments.seed, (arguments.cache or Path(folder)).resolve())
    text = json.dumps(result, indent=1) + "\n"
    if arguments.out:
        arguments.out.write_text(text)
    print(text, end="")
    for name, part in result["results"].items():
        if part["most_lost"]:
            raise SystemExit(f"{name}: an update lost {part['most_lost']} finished tests")


if __name__ == "__main__":
    main()
