"""Measure the HTML report of a suite: its size, the time to make it, and the time to open it in a browser.

    python benchmarks/report_page.py [--tests 500] [--page page.html] [--browser /usr/bin/chromium] [--rounds 5]

The tests use real captures: each test is a whole committed capture, compared with a golden file of itself. One test in
fifty has one kernel, one copy and one wait too many. ``build_seconds`` is the time of making the page from measured
cases, and ``case_seconds`` the time of measuring and drawing one case. With ``--browser`` (which needs the playwright
package), a fresh browser context opens the page from disk in each round. ``dom_ms`` is the time of DOMContentLoaded,
``paint_ms`` of the first contentful paint, and ``ready_ms`` of the first drawn test. All are medians over the rounds
and count from the start of navigation. Prints JSON.
"""

from __future__ import annotations

import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cutrace
from cutrace.analysis.definitions import Metrics
from cutrace.analysis.metrics import measure
from cutrace.analysis.windows import whole
from cutrace.golden import Observed, compare, environment, observed
from cutrace.golden.model import Values
from cutrace.reports.html import html
from cutrace.reports.jsonfile import write
from cutrace.reports.model import Case, SessionReport, State
from cutrace.reports.timeline import timeline, top_kernels
from workloads import options

ROOT = Path(__file__).resolve().parent.parent
#: One test in this many has changed.
EVERY = 50


def golden_of(run: Metrics) -> Values:
    """Return the golden values of a run."""
    return observed([run, run]).values[""]


def changed(values: Values) -> Values:
    """Return golden values with one kernel, one copy and one wait less."""
    totals = ("kernel_launches", "memcpy_count", "sync_calls")
    less = {name: dict(list(parts.items())[1:]) for name in totals if isinstance(parts := values.get(name), dict)}
    return {**values, **less}


def case_of(capture: Path, number: int) -> Case:
    nodeid = f"tests/test_{capture.stem}.py::TestSuite::test_{capture.stem}[{number}-float16-{number % 7}x4096]"
    with cutrace.load(capture) as trace:
        window = whole(trace)
        run = measure(trace, window)
        golden = golden_of(run)
        if drifted := number % EVERY == EVERY // 2:
            golden = changed(golden)
        here = environment(run)
        state = (State.GATED, State.GATED, State.GATED, State.TRACED)[number % 4] if not drifted else State.GATED
        return Case(
            nodeid,
            "failed" if drifted else "passed",
            state,
            gpu=run.gpus[0] if run.gpus else "",
            rows=compare({here: Observed({"": golden})}, [run], environment=here).rows if state is State.GATED else (),
            environment=here,
            values=run.values,
            regions=run.regions,
            user={"tokens": number},
            artifacts={name: f"tests/{number}/{name}" for name in ("trace.pftrace", "run.bin", "metrics.json")},
            duration_s=(window.end - window.start) / 1e9,
            golden=f"golden/tests/test_{capture.stem}.toml",
            kernels=top_kernels(trace, window),
            timeline=timeline(trace, window),
        )


def suite(count: int) -> SessionReport:
    """Return a session of ``count`` tests. Most of them are gated, and some have no GPU work."""
    captures = sorted((ROOT / "tests" / "data").glob("*.bin"))
    cases = [
        Case(f"tests/test_host.py::test_parse[{n}]", state=State.UNTRACED, reason="no GPU work", duration_s=0.001)
        if n % 10 == 9
        else case_of(captures[n % len(captures)], n)
        for n in range(count)
    ]
    return SessionReport(tuple(cases), f"pytest --cutrace, {count} tests", versions={"cutrace": cutrace.__version__})


def opened(page: Path, browser: str, rounds: int) -> dict[str, Any]:
    """Return times of opening the page, in ms."""
    from playwright.sync_api import sync_playwright

    script = """() => new Promise((done) => {
        const read = () => {
            const [navigation] = performance.getEntriesByType("navigation");
            const paint = performance.getEntriesByName("first-contentful-paint")[0];
            if (!paint || !navigation.loadEventEnd || !document.querySelector("canvas")) return setTimeout(read, 5);
            done({dom_ms: navigation.domContentLoadedEventEnd, load_ms: navigation.loadEventEnd,
                  paint_ms: paint.startTime, heap_mib: performance.memory.usedJSHeapSize / 2**20});
        };
        read();
    })"""
    openings: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        for _ in range(rounds):
            context = program.new_context(viewport={"width": 1280, "height": 800})
            tab = context.new_page()
            begin = time.perf_counter()
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector("canvas")
            ready = (time.perf_counter() - begin) * 1e3
            openings.append({**tab.evaluate(script), "ready_ms": ready})
            context.close()
        version = program.version
        program.close()
    medians = {name: round(statistics.median(one[name] for one in openings), 1) for name in openings[0]}
    return {"browser": version, "rounds": rounds, **medians}


def main() -> None:
    parser = options.parser(__doc__, rounds=5)
    parser.add_argument("--tests", type=int, default=500)
    parser.add_argument("--page", type=Path, help="keep the page here")
    parser.add_argument("--browser", help="Chromium to open it with")
    args = parser.parse_args()
    begin = time.perf_counter()
    report = suite(args.tests)
    measured = time.perf_counter()
    text = html(report)
    built = time.perf_counter()
    slices = sum(len(lane.slices) for case in report.cases if case.timeline for lane in case.timeline.lanes)
    result: dict[str, Any] = {
        "tests": args.tests,
        "slices": slices,
        "page_mib": round(len(text.encode("utf-8", "backslashreplace")) / 2**20, 2),
        "build_seconds": round(built - measured, 3),
        "case_seconds": round((measured - begin) / max(args.tests, 1), 4),
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    with tempfile.TemporaryDirectory() as folder:
        page = args.page or Path(folder) / "page.html"
        write(page, text)
        if args.browser:
            result |= opened(page, args.browser, args.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
