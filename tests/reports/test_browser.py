"""Pages in Chromium. Needs the playwright package and a browser, which CHROMIUM may name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import cutrace
from cutrace.analysis.tables import Column, Table
from cutrace.analysis.windows import whole
from cutrace.extras.fleet.model import HeatMap, Result
from cutrace.extras.fleet.page import html as batch_html
from cutrace.extras.hardware.roofline import DRAM, Ceiling, GpuLimits, Point, Roofline
from cutrace.extras.hardware.why import Why
from cutrace.extras.hardware.why_page import html as why_html
from cutrace.reports.html import html
from cutrace.reports.model import Case, SessionReport
from cutrace.reports.timeline import pictured
from cutrace.reports.trend import trend

playwright = pytest.importorskip("playwright.sync_api")

DATA = Path(__file__).parents[1] / "data"
BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
KINETO = DATA / "kineto-torch2.11-h200-transformer.json.gz"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        program = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield program
        program.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    cutrace.view(KINETO, folder / "one.html")
    cutrace.view(DATA / "torch_step.bin", folder / "two.html", before=DATA / "triton.bin")
    with cutrace.load(DATA / "triton.bin") as trace:
        case = pictured(Case("t.py::first", values={"kernel_launches": 3}), trace, whole(trace))
    report = SessionReport((case, Case("t.py::second", values={"kernel_launches": 5})))
    (folder / "tests.html").write_text(html(report))
    (folder / "trend.html").write_text(trend([("a", report), ("b", report)]))
    heat = HeatMap("busy", "1", ["rank 0", "rank 1"], 10**18, 1 << 20, np.array([[0.0, np.nan], [1.0, 0.5]]))
    columns = (Column("rank", "text"), Column("time", "ns"))
    ranks = Table("t", "Ranks", columns, [(f"rank {number}", number) for number in range(300)])
    (folder / "batch.html").write_text(batch_html(Result([ranks], [], [heat]), "2 files"))
    ceilings = (Ceiling(DRAM, 4e12, False, ""), Ceiling("fp32", 6e13, False, ""), Ceiling("fp32", 5e13, True, ""))
    points = tuple(Point(f"kernel {at}", "fp32", 1, 1_000, 10.0 ** (at + 6), 1e6) for at in range(3))
    roof = Roofline(GpuLimits("H200"), ceilings, points, ())
    (folder / "why.html").write_text(why_html(Why(rooflines=(roof,)), "a.bin"))
    return folder


@pytest.fixture
def opened(browser, pages):
    """Opens a page offline. The test fails if the script of the page reports an error."""
    contexts, problems = [], []

    def open(name: str, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
        contexts.append(context)
        tab = context.new_page()
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        tab.goto((pages / name).as_uri())
        drawn(tab)
        assert tab.query_selector("canvas") is None or height(tab) > 20
        return tab

    yield open
    for context in contexts:
        context.close()
    assert problems == []


def drawn(tab) -> None:
    """Wait until the page is drawn again."""
    tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def height(tab) -> int:
    drawn(tab)
    return tab.evaluate("(document.querySelector('#flame canvas') || document.querySelector('canvas')).clientHeight")


def about(tab) -> str:
    return tab.inner_text("p#about")


def pixel(tab, x: int, y: int) -> list[int]:
    script = "([x, y]) => [...document.querySelector('#flame canvas').getContext('2d').getImageData(x, y, 1, 1).data]"
    return tab.evaluate(script, [x, y])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 480, 360])
def test_it_fits_the_window(opened, width, scheme):
    tab = opened("one.html", width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    dark = tab.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(18, 21, 26)"
    assert dark == (scheme == "dark")
    tab.click("#theme")
    assert (tab.evaluate("document.documentElement.dataset.theme") == "light") == dark


def test_a_click_fills_the_width_and_escape_goes_back(opened):
    tab = opened("one.html")
    whole = height(tab)
    canvas = tab.locator("#flame canvas")
    canvas.click(position={"x": 100, "y": 49})
    assert about(tab).split("\n")[0].endswith("autograd::engine::evaluate_function: AddmmBackward0")
    assert height(tab) != whole
    for above in ("backward", "all"):
        tab.keyboard.press("Escape")
        assert about(tab).startswith(f"{above}\n")
    assert height(tab) == whole


@pytest.mark.parametrize("name", ["tests.html", "trend.html", "batch.html", "one.html"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_button_changes_between_light_and_dark(opened, name, scheme):
    tab = opened(name, scheme=scheme)
    colours = []
    for _ in range(3):
        drawn(tab)
        colours.append(tab.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        tab.click("#theme")
    both = ["rgb(246, 247, 249)", "rgb(18, 21, 26)"]
    assert colours == [*(both if scheme == "light" else both[::-1]), colours[0]]


@pytest.mark.parametrize("name", ["tests.html", "trend.html"])
def test_a_search_keeps_the_tests_that_it_finds(opened, name):
    tab = opened(name)
    tab.keyboard.press("/")
    tab.keyboard.type("second t.py")
    assert tab.locator("#tests :is(li, tbody tr):visible").count() == 1
    tab.fill("#search", "no such test")
    assert tab.locator("#tests :is(li, tbody tr):visible").count() == 0


def test_a_heat_map_has_the_colours_of_its_scale(opened):
    tab = opened("batch.html")
    middle = [[68, 1, 84, 255], [0] * 4, [253, 231, 37, 255], [33, 145, 140, 255]]
    script = """([row, column]) => {
      const [u] = plots, ratio = uPlot.pxRatio, context = u.ctx;
      const x = u.valToPos((column + 0.5) * 2 ** 20, "x", true), y = u.valToPos(row, "y", true);
      return [...context.getImageData(x, y, 1, 1).data];
    }"""
    for _ in range(2):
        drawn(tab)
        assert [tab.evaluate(script, [row, column]) for row in (0, 1) for column in (0, 1)] == middle
        tab.click("#theme")


def test_times_after_the_first_day_have_their_date(opened):
    tab = opened("batch.html")

    def clock(hours: int, step: str) -> str:
        return tab.evaluate(f"clockText({{day: '2026-11-30', at: 0}}, {hours} * 3600 * SECOND, {step})")

    assert clock(23, "SECOND") == "23:00:00"
    assert clock(25, "SECOND") == "12-01 01:00:00"
    assert [clock(days * 24, "DAY") for days in (0, 1)] == ["11-30", "12-01"]


def test_a_drag_zooms_into_a_heat_map_and_a_button_goes_back(opened):
    tab = opened("batch.html")
    box = tab.locator(".u-over").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 10)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 11, steps=4)
    tab.mouse.up()
    drawn(tab)
    scale = "() => [...plots].map((u) => u.scales.x.min / 2 ** 21)[0]"
    assert tab.evaluate(scale) == pytest.approx(0.6, abs=0.01)
    tab.click(".back")
    drawn(tab)
    assert tab.evaluate(scale) == 0


def test_a_click_on_a_head_sorts_all_rows_of_a_table(opened):
    tab = opened("batch.html")
    first = "() => document.querySelector('.figures tbody tr').innerText"
    assert tab.evaluate(first).split() == ["rank", "0", "0ns"]
    tab.click("text=time")
    assert tab.evaluate(first).split() == ["rank", "299", "299ns"]
    tab.fill(".figures input", "rank 17")
    assert tab.locator(".figures tbody tr").count() == 13


def test_a_drag_zooms_into_the_timeline(opened):
    tab = opened("one.html")
    box = tab.locator(".u-over").first.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10)
    tab.mouse.down()
    tab.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 10, steps=4)
    tab.mouse.up()
    drawn(tab)
    script = "() => [...plots].map((u) => (u.scales.x.max - u.scales.x.min) / u.data[0][1])[0]"
    assert tab.evaluate(script) == pytest.approx(0.25, abs=0.01)


def test_arrows_go_from_frame_to_frame(opened):
    tab = opened("one.html")
    tab.focus("#flame canvas")
    told = []
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowLeft", "ArrowUp", "ArrowUp"):
        tab.keyboard.press(key)
        told.append(about(tab).split("\n")[0].count("\u203a"))
    assert told == [0, 0, 1, 0, 0, 0, 0]
    tab.keyboard.press("ArrowDown")
    first = about(tab)
    tab.keyboard.press("Enter")
    tab.keyboard.press("0")
    assert about(tab) != first
    assert about(tab).startswith("all\n")


def test_a_search_says_the_share_of_what_it_finds(opened):
    tab = opened("one.html")
    tab.keyboard.press("/")
    tab.keyboard.type("addmmbackward")
    flame = cutrace.flame(KINETO).root
    ns = 0
    for *above, frame in flame.walk():
        found = [one for one in (*above, frame) if "addmmbackward" in one.name.lower()]
        if found == [frame]:
            ns += frame.gpu_ns
    assert tab.inner_text("#found").endswith(f"{ns / flame.gpu_ns:.1%}")
    tab.fill("#find", "no such frame")
    assert tab.inner_text("#found") == "0ns, 0.0%"


def test_a_frame_under_the_pointer_gets_a_tooltip(opened):
    tab = opened("one.html")
    tab.locator("#flame canvas").hover(position={"x": 700, "y": 30})
    assert "of GPU time" in tab.inner_text("#flame .tip")
    tab.locator("h1").hover()
    assert tab.is_hidden("#flame .tip")


def test_the_width_may_be_that_of_cpu_time(opened):
    tab = opened("one.html")
    tab.focus("#flame canvas")
    tab.click("text=CPU time")
    assert tab.get_attribute("[data-width=cpu]", "aria-pressed") == "true"
    tab.locator("#flame canvas").click(position={"x": 5, "y": 30})
    assert "of CPU time" in about(tab)


def test_more_time_than_before_is_red_and_less_is_blue(opened):
    tab = opened("two.html")
    red, green, blue, _ = pixel(tab, 1000, 30)
    assert red > max(green, blue) + 60
    tab.click("text=GPU time before")
    tab.locator("#flame canvas").click(position={"x": 5, "y": 30})
    assert "before: " in about(tab)
    drawn(tab)
    red, _, blue, _ = pixel(tab, 300, 30)
    assert blue > red + 60


def test_the_pointer_shows_the_points_and_ceilings_of_a_roofline(opened):
    tab = opened("why.html")
    place = "([x, y]) => { const [u] = plots; return [u.valToPos(x, 'x'), u.valToPos(y, 'y')]; }"
    box = tab.locator(".u-over").bounding_box()

    def told(x: float, y: float) -> str:
        left, top = tab.evaluate(place, [x, y])
        tab.mouse.move(box["x"] + left, box["y"] + top)
        drawn(tab)
        return tab.inner_text(".tip")

    assert told(10, 1e13).startswith("kernel 1")
    assert told(2, 8e12) == "DRAM 4 TB/s"
    assert told(50, 6e13) == "fp32 60 TFLOP/s"
    # A ceiling of operations starts at the slope.
    told(1, 6e13)
    assert tab.is_hidden(".tip")
