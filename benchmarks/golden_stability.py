"""Measure the stability of golden files: tests that fail without a change, and changes that no test finds.

    python benchmarks/golden_stability.py --tests DIR [--files PATTERN...] [--out RESULT.json]
        [--stages plain,update,check,sensitivity] [--golden DIR] [--check-only] [--limit-seconds N] [--fake]

DIR has the test suite of another project. By default these are CuPy's tests of v14.2.0 (the folder ``tests`` of its
sources), with CuPy installed. Golden files are written to a separate folder, never into DIR. The stages:

``plain``        the suite without cutrace. It fills compilation caches, and shows which tests fail by themselves.
``update``       two sessions that write golden files. The second confirms tests that the first could not run twice.
``check``        three unchanged sessions: eight workers, three workers, one process in a shuffled order.
``sensitivity``  200 passing gated tests get an additional kernel, copy, synchronisation or allocation, or one kernel
                 less. For the latter, golden files are recorded with an additional kernel. Counts the tests that fail,
                 or are shown as better, and the failures that name the line of Python from which the work came.

``--check-only`` compares with golden files of another machine, the folder ``--golden``. ``--fake`` uses the fake GPU of
this project's tests, and a suite for it. Exit status 1 when a target is missed or a session did not end.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from random import Random
from typing import Any

from workloads import options

sys.path.insert(0, str(Path(__file__).parent / "stability"))

import pytest
from stability_plugin import KERNEL, PLANTED, planted_line

from workloads.machine import facts

#: Files of CuPy's tests that launch kernels of many kinds, and files with false failures under golden format 1.
FILES = (
    *("core_tests/test_scan.py", "core_tests/test_userkernel.py", "sorting_tests/test_sort.py"),
    *("sorting_tests/test_search.py", "linalg_tests/test_product.py", "random_tests/test_generator.py"),
    *("cuda_tests/test_stream.py", "cuda_tests/test_graph.py", "cuda_tests/test_memory.py"),
)
#: Whether a failure names the line that added the work. ``once`` means that the test cannot be run again to find the
#: line.
LINES = ("right", "missing", "wrong", "once")
STAGES = ("plain", "update", "check", "sensitivity")
#: Targets in %: the largest share of false failures of gated tests, and of unstable or unconfirmed tests among tests
#: with GPU work. The smallest share of changes that are found, and the smallest share of right lines among failures of
#: tests that can run again.
MOST_FALSE, MOST_LOOSE, LEAST_FOUND, LEAST_LINES = 0.2, 5.0, 99.0, 95.0
#: Metrics above 0 in tests with GPU work.
WORK = ("kernel_launches", "graph_launches", "memcpy_count", "memset_count")
#: For each kind of change, the metric that shows it and the name in the metric's detail.
SHOWN_BY = {
    "kernel": ("kernel_launches", KERNEL),
    "copy": ("memcpy_count", "d2d"),
    "synchronisation": ("sync_calls", "cudaDeviceSynchronize"),
    "allocation": ("allocations", "cudaMalloc"),
    "kernel taken away": ("kernel_launches", KERNEL),
}
_UNCONFIRMED = re.compile("^unconfirmed = ", re.MULTILINE)
_WITH_ALLOCATIONS = "--cutrace-gate=work,counter,allocations"


class Stopped(Exception):
    """A session did not end in time, or could not run."""


@dataclass(frozen=True)
class Session:
    """One session of pytest. ``cases`` are the cases of report.json by node id, empty without cutrace. ``outcomes`` are
    [outcome, seconds, error] by node id. The error is the start of cutrace's message, or the end of another error."""

    seconds: float
    status: int
    cases: dict[str, dict[str, Any]]
    outcomes: dict[str, list[Any]]

    @property
    def failed(self) -> set[str]:
        return {test for test, (outcome, *_) in self.outcomes.items() if outcome == "failed"}

    @property
    def false(self) -> set[str]:
        """Return the tests that failed because of cutrace."""
        return {test for test in self.failed if self.outcomes[test][2].startswith("cutrace:")} | {
            test for test in self.failed if any(row["failed"] for row in self.cases.get(test, {}).get("rows", ()))
        }

    def tests(self, *states: str) -> set[str]:
        return {test for test, case in self.cases.items() if case["state"] in states}

    @property
    def with_work(self) -> set[str]:
        return {test for test, case in self.cases.items() if any(case["values"].get(name) for name in WORK)}

    @property
    def unstable(self) -> set[str]:
        """Return the tests with metrics that are not compared because they differed between runs."""
        return {test for test, case in self.cases.items() if any(row["verdict"] == "UNSTABLE" for row in case["rows"])}


class Suite:
    """Runs the files of a suite, each time in a new process, until the time limit."""

    def __init__(
        self, chosen: argparse.Namespace, scratch: Path, environment: dict[str, str], files: list[str]
    ) -> None:
        self._chosen = chosen
        self._scratch = scratch
        self._files = files
        self._environment = environment
        self._sessions = 0
        self._end = time.monotonic() + chosen.limit_seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def run(
        self,
        *options: str,
        workers: int = 1,
        golden: Path | None = None,
        only: Iterable[str] | None = None,
        shuffle: int | None = None,
        add: str = "",
    ) -> Session:
        """Run a session. ``golden`` is the folder of golden files, None for a session without cutrace. ``add`` is the
        kind of work that is added to all tests in ``only``. Raises :class:`Stopped`."""
        self._sessions += 1
        folder = self._scratch / f"session{self._sessions}"
        folder.mkdir()
        tests = None if only is None else sorted(only)
        plan = {
            "library": "cupy" if self._chosen.fake is None else "fakegpu", "only": tests, "shuffle": shuffle,
            "add": add, "to": tests if add else [], "outcomes": str(folder / "outcomes.json"),
        }  # fmt: skip
        (folder / "plan.json").write_text(json.dumps(plan))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "stability_plugin"]
        for plugin in self._chosen.plugins:
            command += ["-p", plugin]
        if workers > 1:
            command += ["-p", "xdist", "-n", str(workers)]
        if golden is not None:
            command += ["-p", "cutrace", "--cutrace", f"--cutrace-dir={folder / 'cutrace'}", "--cutrace-keep=none"]
            command += [f"--cutrace-report=json:{folder / 'report.json'}", "-o", f"cutrace_golden_dir={golden}"]
        begin = time.perf_counter()
        status = self._pytest([*command, *options, *self._files], folder)
        seconds = round(time.perf_counter() - begin, 2)
        outcomes, report = folder / "outcomes.json", folder / "report.json"
        if not outcomes.exists() or (golden is not None and not report.exists()):
            raise Stopped(f"by pytest's status {status}:\n{(folder / 'output.txt').read_text()[-4000:]}")
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            text = (folder / "output.txt").read_text()
            # Pytest prints the cause of an internal error first, then a long traceback.
            at = max(text.find("INTERNALERROR"), 0)
            print(text[at : at + 8000] if at else text[-2000:], file=sys.stderr)
        cases = json.loads(report.read_text())["cases"] if golden is not None else ()
        return Session(seconds, status, {c["nodeid"]: c for c in cases}, json.loads(outcomes.read_text()))

    def _pytest(self, command: list[str], folder: Path) -> int:
        variables = {"GOLDEN_STABILITY_PLAN": str(folder / "plan.json")}
        with (folder / "output.txt").open("w") as output:
            process = subprocess.Popen(
                command, cwd=self._chosen.tests, env=self._environment | variables, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            try:
                return process.wait(timeout=max(self.left, 0.01))
            except subprocess.TimeoutExpired:
                raise Stopped(f"after {self._chosen.limit_seconds:g} s, in session {self._sessions}") from None
            finally:
                if process.poll() is None:  # with its workers
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


class Benchmark:
    """The stages, and their results so far."""

    def __init__(self, suite: Suite, chosen: argparse.Namespace, golden: Path, scratch: Path) -> None:
        self.suite = suite
        self.chosen = chosen
        self.golden = golden
        self._scratch = scratch
        #: Tests that were gated and passed in all unchanged sessions, and tests that fail without cutrace.
        self._passing: set[str] | None = None
        self._own_failures: set[str] | None = None
        self.result: dict[str, Any] = {
            "machine": facts(), "fake": chosen.fake is not None, "versions": versions(), "files": chosen.selected,
            "stages": chosen.stages, "workers": chosen.workers, "seed": chosen.seed, "finished": False,
        }  # fmt: skip

    def plain(self) -> None:
        session = self.suite.run(workers=self.chosen.workers[0])
        self._own_failures = session.failed
        self.result["plain"] = {
            "workers": self.chosen.workers[0],
            "seconds": session.seconds,
            "tests": len(session.outcomes),
            "failed": {test: session.outcomes[test][2].strip()[-200:] for test in sorted(session.failed)},
        }
        self._say(f"without cutrace: {len(session.outcomes)} tests, {len(session.failed)} failed", session)

    def update(self) -> None:
        rows = self.result["updates"] = []
        for number in (1, 2):
            session = self.suite.run("--cutrace-update", workers=self.chosen.workers[0], golden=self.golden)
            self._count(rows, session, f"update {number}")
            rows[-1]["written_unconfirmed"] = self._unconfirmed()
        self.result["golden"] = written = self._written()
        if not written["files"]:
            raise Stopped("since no golden file was written")

    def check(self) -> None:
        rows = self.result["checks"] = []
        first, second = self.chosen.workers
        for workers, shuffle in ((first, None), (second, None), (1, self.chosen.seed)):
            how = f"{workers} workers" if workers > 1 else "1 process"
            self._check(rows, workers, shuffle, f"check, {how}{', shuffled' if shuffle is not None else ''}")
        gated, loose = [], []
        for row in rows:
            gated.append(_percent(row["false"], row["gated"]))
            loose.append(_percent(row["loose"], row["with_gpu_work"]))
        self._target("gated tests that failed for nothing, % (the worst check)", max(gated), "at most", MOST_FALSE)
        self._target("tests with GPU work unstable or unconfirmed, %", max(loose), "at most", MOST_LOOSE)

    def _check(self, rows: list[dict[str, Any]], workers: int, shuffle: int | None, title: str) -> None:
        session = self.suite.run(workers=workers, golden=self.golden, shuffle=shuffle)
        self._count(rows, session, title)
        passing = session.tests("gated") - session.failed
        self._passing = passing if self._passing is None else self._passing & passing

    def sensitivity(self) -> None:
        workers = self.chosen.workers[0]
        if self._passing is None:
            self._check([], workers, None, "check before changes")
        assert self._passing is not None
        drawn = sorted(self._passing)
        if not drawn:
            raise Stopped("since no gated test passed that could be changed")
        drawn = sorted(Random(self.chosen.seed).sample(drawn, min(self.chosen.draw, len(drawn))))
        rows = self.result["sensitivity"] = []
        for kind in ("kernel", "copy", "synchronisation"):
            session = self.suite.run(workers=workers, golden=self.golden, only=drawn, add=kind)
            self._seen(rows, kind, session, drawn)
        more = self._copy("allocations")
        for _ in range(2):
            self.suite.run("--cutrace-update", _WITH_ALLOCATIONS, workers=workers, golden=more, only=drawn)
        session = self.suite.run(_WITH_ALLOCATIONS, workers=workers, golden=more, only=drawn, add="allocation")
        self._seen(rows, "allocation", session, drawn)
        more = self._copy("kernels")
        for _ in range(2):
            self.suite.run("--cutrace-update", workers=workers, golden=more, only=drawn, add="kernel")
        session = self.suite.run(workers=workers, golden=more, only=drawn)
        self._seen(rows, "kernel taken away", session, drawn)
        for row in rows:
            self._target(f"{row['kind']}: found and named, %", row["percent"], "at least", LEAST_FOUND)
            if row["kind"] == "kernel taken away":
                continue
            right = _percent(row["lines"]["right"], row["found"] - row["lines"]["once"])
            self._target(f"{row['kind']}: right lines, %", right, "at least", LEAST_LINES)
            self._target(f"{row['kind']}: wrong lines", row["lines"]["wrong"], "at most", 0)

    def _copy(self, name: str) -> Path:
        return Path(shutil.copytree(self.golden, self._scratch / f"golden-{name}"))

    def _seen(self, rows: list[dict[str, Any]], kind: str, session: Session, drawn: Sequence[str]) -> None:
        """Append the number of tests that noticed a change. A test counts if the metric of the change is gated, stable
        and confirmed."""
        metric, name = SHOWN_BY[kind]
        less = kind == "kernel taken away"
        gated, found, named, missed = 0, 0, 0, []
        lines: dict[str, list[str]] = {answer: [] for answer in LINES}
        for test in drawn:
            case = session.cases.get(test)
            if case is None:
                missed.append({"test": test, "why": "it did not run"})
                gated += 1
                continue
            row = next((r for r in case["rows"] if r["metric"] == metric and not r["region"]), None)
            if case["state"] != "gated" or (row is not None and (row["verdict"] == "UNSTABLE" or not row["gated"])):
                continue
            gated += 1
            if row is not None and (row["verdict"] == "BETTER" if less else row["failed"] and test in session.failed):
                found += 1
                if not less:
                    lines[_line_named(case, test, metric, name)].append(test)
                # Allocations without a golden breakdown are named by the metric itself.
                named += name in row["detail"] or (metric == "allocations" and not row["detail"])
            else:
                missed.append({"test": test, "row": row, "outcome": session.outcomes[test][0]})
        counts = {"drawn": len(drawn), "gated": gated, "found": found, "named": named}
        percent = round(100 * min(found, named) / gated, 2) if gated else 0.0
        found_here = {"kind": kind, "metric": metric, **counts, "percent": percent}
        named_lines = {answer: len(tests) for answer, tests in lines.items()}
        rows.append({**found_here, "seconds": session.seconds, "lines": named_lines, "missed": missed})
        rows[-1]["without_right_line"] = lines["missing"] + lines["wrong"]
        self._say(f"{kind}: {', '.join(f'{name} {count}' for name, count in counts.items())}", session)

    def _count(self, rows: list[dict[str, Any]], session: Session, title: str) -> None:
        """Append the states of the tests of an unchanged session."""
        states = Counter(case["state"] for case in session.cases.values())
        gated, work, false = session.tests("gated"), session.with_work, session.false
        loose = work & (session.unstable | session.tests("unconfirmed"))
        own = session.failed - false
        counts: dict[str, Any] = {
            "session": title, "seconds": session.seconds, "status": session.status, "tests": len(session.outcomes),
            "with_gpu_work": len(work), "states": dict(states), "gated": len(gated), "failed": len(session.failed),
            "false": len(false), "unverified": states["unverified"], "unstable": len(work & session.unstable),
            "unconfirmed": states["unconfirmed"], "loose": len(loose),
            # Tests with GPU work that have no golden value and are not counted as loose.
            "not_held": sorted(work & session.tests("traced", "missing", "untraced") - session.failed),
            "failed_by_themselves": len(own),
            "failed_under_cutrace_alone": sorted(own - self._own_failures) if self._own_failures is not None else None,
            "false_failures": [failure for test in sorted(false) for failure in _failures(session, test)],
            "reasons_unverified": _reasons(session, "unverified"),
            "unstable_metrics": dict(
                Counter(
                    row["metric"] for c in session.cases.values() for row in c["rows"] if row["verdict"] == "UNSTABLE"
                ).most_common()
            ),
        }  # fmt: skip
        rows.append(counts)
        self._say(
            f"{title}: {len(gated)} gated, {len(false)} false failures, {counts['unverified']} unverified, "
            f"{counts['unstable']} unstable, {counts['unconfirmed']} unconfirmed", session,
        )  # fmt: skip

    def _written(self) -> dict[str, int]:
        files = sorted(self.golden.rglob("*.toml"))
        return {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}

    def _unconfirmed(self) -> int:
        """Return the number of tests in the golden files that no second session has confirmed."""
        return sum(len(_UNCONFIRMED.findall(path.read_text())) for path in self.golden.rglob("*.toml"))

    def _target(self, what: str, value: float, side: str, limit: float) -> None:
        met = value <= limit if side == "at most" else value >= limit
        self.result.setdefault("targets", []).append({"what": what, side: limit, "value": value, "met": met})

    def _say(self, sentence: str, session: Session) -> None:
        print(f"{sentence} ({session.seconds:.1f} s; {self.suite.left:.0f} s are left)", file=sys.stderr, flush=True)
        if self.chosen.out is not None:
            write(self.chosen.out, self.result)


def _line_named(case: dict[str, Any], test: str, metric: str, name: str) -> str:
    """Classify by :data:`LINES` whether a failure names the line that added the work."""
    line = f"{PLANTED}:{planted_line(test)} in planted"
    for work in case["added"]:
        if (work["metric"], work["region"]) != (metric, "") or work["name"] not in (name, ""):
            continue
        places = [site["place"] for site in work["sites"]]
        if work["change"].startswith("+ "):
            # For new work, a failure may name only the line that was added.
            others = [place for place in places if place and place != line]
            return "wrong" if others else "right" if line in places else "missing"
        if line in places:
            return "right"
        return "missing" if work["others"] or "" in places else "wrong"
    runs_once = any(note.startswith(("it is not run again", "another run did not pass")) for note in case["notes"])
    return "once" if runs_once else "missing"


def _failures(session: Session, test: str) -> list[dict[str, Any]]:
    """Return the rows for which cutrace failed a test, or the message of the test if there are no rows."""
    case = session.cases.get(test, {})
    rows = [row for row in case.get("rows", ()) if row["failed"]]
    kept = ("metric", "region", "golden", "now", "verdict", "detail")
    if rows and not case.get("problems"):
        return [{"test": test, **{name: row[name] for name in kept}} for row in rows]
    return [{"test": test, "message": "; ".join(case.get("problems", ())) or session.outcomes[test][2]}]


def _reasons(session: Session, state: str) -> dict[str, int]:
    return dict(Counter(c["reason"] for c in session.cases.values() if c["state"] == state).most_common(5))


def _percent(part: int, whole: int) -> float:
    # Without a gated metric, no change was missed.
    return round(100 * part / whole, 3) if whole else 100.0


def versions() -> dict[str, str]:
    """Return the versions of packages that decide which kernels run, and of the test tools."""
    wanted = ("cutrace", "numpy", "pytest", "pytest-xdist", "torch", "triton")
    installed = {d.metadata["Name"].lower(): d.version for d in distributions() if d.metadata["Name"]}
    return {name: installed[name] for name in sorted(installed) if name in wanted or name.startswith("cupy")}


def table(result: dict[str, Any]) -> str:
    """Return the result in Markdown."""
    lines = []
    if sessions := [*result.get("updates", ()), *result.get("checks", ())]:
        columns = ("seconds", "tests", "with_gpu_work", "gated", "false", "unverified", "unstable", "unconfirmed")
        heads = ("session", "s", "tests", "with GPU work", "gated", "failed for nothing", *columns[5:])
        lines += ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * len(columns)]
        lines += [f"| {row['session']} | " + " | ".join(str(row[name]) for name in columns) + " |" for row in sessions]
    if plain := result.get("plain"):
        lines += ["", f"Without cutrace: {plain['seconds']} s, {len(plain['failed'])} tests fail by themselves."]
    if golden := result.get("golden"):
        lines += ["", f"{golden['files']} golden files, {golden['bytes']:,} bytes."]
    if changes := result.get("sensitivity"):
        columns = ("drawn", "gated", "found", "named", "percent")
        heads = ("change", "drawn", "in gated metrics", "found", "named", "%", *(f"line {answer}" for answer in LINES))
        lines += ["", "| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(columns) + len(LINES))]
        for row in changes:
            cells = [row[name] for name in columns] + [row["lines"][answer] for answer in LINES]
            lines.append(f"| {row['kind']} | " + " | ".join(map(str, cells)) + " |")
    false = [(row["session"], failure) for row in result.get("checks", ()) for failure in row["false_failures"]]
    if false:
        lines += ["", "Failed for nothing:"]
    for session, failure in false:
        region = f"{failure['region']}/" if failure.get("region") else ""
        what = failure.get("message") or (
            f"{region}{failure['metric']} {failure['golden']} -> {failure['now']} {failure['detail']}"
        )
        lines.append(f"* {failure['test']} ({session}): {what}")
    if result.get("targets"):
        lines += ["", "| target | value | |", "|---|---:|---|"]
    for target in result.get("targets", ()):
        side = "at most" if "at most" in target else "at least"
        met = "met" if target["met"] else "MISSED"
        lines.append(f"| {target['what']}, {side} {target[side]} | {target['value']} | {met} |")
    return "\n".join(lines).strip()


def write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")


def arguments() -> argparse.Namespace:
    parser = options.parser(__doc__, out=None)
    parser.add_argument("--tests", type=Path, required=True, metavar="DIR", help="the suite")
    parser.add_argument("--files", nargs="+", metavar="PATTERN", help="files of DIR (default: nine of CuPy's)")
    parser.add_argument("--stages", type=options.words, default=list(STAGES), help=",".join(STAGES))
    parser.add_argument("--golden", type=Path, metavar="DIR", help="golden files (default: a temporary folder)")
    parser.add_argument("--check-only", action="store_true", help="the same as --stages check")
    parser.add_argument(
        "--limit-seconds",
        type=float,
        default=3600,
        metavar="N",
        help="time limit of all stages together (default: 3600)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs=2,
        default=[8, 3],
        metavar="N",
        help="workers of the first two checks (default: 8 3)",
    )
    parser.add_argument("--draw", type=int, default=200, metavar="N", help="tests that are changed (default: 200)")
    parser.add_argument("--seed", type=int, default=11, help="seed of the order of tests and of the draw")
    parser.add_argument("--plugins", nargs="+", default=[], metavar="NAME", help="pytest plugins that the suite needs")
    parser.add_argument(
        "--fake", nargs="?", const="", metavar="CACHE", help="take the fake GPU of this project's tests, built in CACHE"
    )
    chosen = parser.parse_args()
    if chosen.check_only:
        chosen.stages = ["check"]
    if unknown := set(chosen.stages) - set(STAGES):
        parser.error(f"unknown stage {', '.join(sorted(unknown))}: {', '.join(STAGES)}")
    written = chosen.golden is not None and any(chosen.golden.rglob("*.toml"))
    if "update" in chosen.stages and written:
        parser.error(f"{chosen.golden} has golden files: name an empty folder, or leave out the stage update")
    if {"check", "sensitivity"} & set(chosen.stages) and "update" not in chosen.stages and not written:
        parser.error("without the stage update, --golden has to name a folder with golden files")
    chosen.tests = chosen.tests.resolve()
    chosen.selected = files(chosen.tests, chosen.files or (FILES if chosen.fake is None else ("test_*.py",)))
    if not chosen.selected:
        parser.error(f"{chosen.tests} has none of the files")
    return chosen


def files(tests: Path, patterns: Iterable[str]) -> list[str]:
    """Return the files below ``tests`` that match the patterns in any folder, in the order of the patterns."""
    paths = (path for pattern in patterns for path in sorted(tests.glob(f"**/{pattern}")))
    return list(dict.fromkeys(str(path.relative_to(tests)) for path in paths))


def environment(scratch: Path, fake: str | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CUTRACE_"))}
    own.pop("CI", None)
    if fake is not None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from support.fakedriver import build

        own = build(Path(fake or scratch / "driver")).environment(own)
    path = os.pathsep.join([str(Path(__file__).parent / "stability"), *filter(None, [own.get("PYTHONPATH")])])
    return {
        **own, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }  # fmt: skip


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        golden = (chosen.golden or scratch / "golden").resolve()
        golden.mkdir(parents=True, exist_ok=True)
        suite = Suite(chosen, scratch, environment(scratch, chosen.fake), chosen.selected)
        benchmark = Benchmark(suite, chosen, golden, scratch)
        result = benchmark.result
        try:
            for stage in STAGES:
                if stage in chosen.stages:
                    getattr(benchmark, stage)()
            result["finished"] = True
        except Stopped as error:
            result["stopped"] = str(error)
            print(f"stopped {error}", file=sys.stderr)
    if chosen.out is not None:
        write(chosen.out, result)
    print(table(result))
    return 0 if result["finished"] and all(target["met"] for target in result.get("targets", ())) else 1


if __name__ == "__main__":
    sys.exit(main())
