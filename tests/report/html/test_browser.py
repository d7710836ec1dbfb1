"""The page in a browser: every figure is drawn, nothing is loaded, nobody is locked out.

Needs Chromium (`script/browser` finds or installs one; GPUPERF_BROWSER names another), and axe-core
in the folder GPUPERF_AXE (`script/vendor --axe FOLDER`). Where there is none, these tests skip, but
not where GPUPERF_REQUIRE_BROWSER is set. Each report is opened once, whatever is asked of it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.storage.run_files import MOST_POINTS
from tests.report.html.pages import full, rendered
from tests.report.html.test_figures import KEYS
from tests.report.html.test_page import ATTACK, hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESK = 390, 1440
INKS = ("#16191d", "#545c66")
"""Of text in page.css, without the dark scheme."""
BROKEN = "h200-tf32-broken.json.xz"
REPORTS = ("full", "hostile", BROKEN)
"""All that there is; the worst names and hardly any figure; a regression with its kernels."""


def lacking(what: str) -> None:
    """Skips, or fails where a browser is required."""
    if os.environ.get("GPUPERF_REQUIRE_BROWSER"):
        pytest.fail(f"{what}, and GPUPERF_REQUIRE_BROWSER is set")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    wanted = [os.environ["GPUPERF_BROWSER"]] if "GPUPERF_BROWSER" in os.environ else NAMES
    program = next(filter(None, map(shutil.which, wanted)), None)
    if program is None:
        lacking(f"no {' or '.join(wanted)} here: script/browser installs one")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacking("playwright is not installed: pip install playwright")
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox.
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def axe() -> str:
    """The script that looks for faults of accessibility."""
    folder = os.environ.get("GPUPERF_AXE", "")
    file = Path(folder) / "axe.min.js"
    if not folder or not file.is_file():
        lacking("no axe-core: script/vendor --axe FOLDER fetches it, GPUPERF_AXE names the folder")
    return file.read_text(encoding="utf-8")


class Opened:
    """A page of a report in the browser, and what it did that it should not."""

    def __init__(self, browser: Browser, file: Path) -> None:
        self.page: Page = browser.new_context().new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.show()
        self.page.goto(file.as_uri(), wait_until="commit")

    def show(self, width: int = DESK, scheme: Any = "light", media: Any = "screen") -> None:
        """Shows it as on a screen, or on paper, of this width; charts are drawn anew."""
        self.page.emulate_media(media=media, color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": 900})
        # A chart follows the width of its box 0.1 s after that has changed.
        self.until(
            "[...document.querySelectorAll('.plot')].every(plot => "
            "Math.abs(plot.clientWidth - plot.querySelector('svg').clientWidth) <= 1)"
        )

    def until(self, condition: str) -> None:
        """Waits for a condition. The page's policy lets no condition be made of a string in it."""
        for _ in range(100):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"not so after 5 s: {condition}")

    def count(self, selector: str) -> int:
        """How many elements there are."""
        return self.page.locator(selector).count()

    def tip(self, figure: str, right: float, below: int) -> str:
        """What is said of a place of the first chart of a figure; `right` is a share of it."""
        plot = self.page.locator(f"#{figure} .plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + right * box["width"], box["y"] + below)
        self.page.wait_for_selector(f"#{figure} .tip", state="visible")
        return self.page.inner_text(f"#{figure} .tip")


@pytest.fixture(scope="module")
def reports(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    """The pages by name, each opened once."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "full": page(full(2), "run.json"),
        "hostile": hostile(ATTACK),
        BROKEN: rendered(BROKEN),
    }
    opened = {}
    for number, name in enumerate(REPORTS):
        file = folder / f"{number}.html"
        file.write_text(texts[name], encoding="utf-8")
        opened[name] = Opened(browser, file)
    for one in opened.values():
        one.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    return opened


@pytest.fixture
def report(reports: dict[str, Opened]) -> Iterator[Opened]:
    """The report with everything, light, on a desk; it may not complain."""
    reports["full"].show()
    yield reports["full"]
    assert reports["full"].complaints == []


@pytest.mark.parametrize("name", REPORTS)
def test_every_figure_is_drawn_without_a_word_in_the_console(
    name: str, reports: dict[str, Opened]
) -> None:
    opened = reports[name]
    expected = json.loads(opened.page.inner_text("#drawings"))
    assert expected
    for drawing in expected:
        assert opened.count(f"#{drawing['key']} .plot svg") == len(drawing["panels"])
        drawn = opened.count(f"#{drawing['key']} .plot svg path")
        assert drawn >= sum(
            len(series.get("items", [series]))
            for panel in drawing["panels"]
            for series in panel["series"]
        )
    missing = [key for key in KEYS if not opened.count(f"#{key} svg")]
    assert name != "full" or missing == []
    assert all(opened.count(f"#{key} .missing") for key in missing)
    assert opened.complaints == []
    assert len(opened.requests) == 1


SCREENS = {
    BROKEN: ((DESK, "dark", ()), (PHONE, "light", ())),
    "full": ((PHONE, "dark", ()), (DESK, "light", ("color-contrast", "link-in-text-block"))),
    "hostile": (),
}
"""Where faults are looked for, in every width and scheme, and which rules, if not all: in its other
scheme only the colours of a report differ."""


@pytest.mark.parametrize("name", SCREENS)
def test_nobody_is_locked_out_on_any_screen(
    name: str, reports: dict[str, Opened], axe: str
) -> None:
    opened = reports[name]
    if name != "full":
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (PHONE, 768):
        opened.show(width)
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
    for width, scheme, rules in SCREENS[name]:
        opened.show(width, scheme)
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert serious_faults(opened, axe, rules) == [], (width, scheme)


def serious_faults(opened: Opened, axe: str, rules: Sequence[str]) -> list[tuple[str, str]]:
    """What axe finds serious or critical: the rule, and the first element."""
    opened.page.evaluate(axe)
    # Selectors of what is in order take most of its time, and nobody reads them.
    options: dict[str, Any] = {"resultTypes": ["violations"], "selectors": False}
    options |= {"runOnly": list(rules)} if rules else {}
    result = opened.page.evaluate("options => axe.run(document, options)", options)
    assert len(result["passes"]) > (0 if rules else 20)
    return [
        (fault["id"], fault["nodes"][0]["html"])
        for fault in result["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


def test_hovering_gives_the_kernel_and_its_value_and_the_moment_in_every_lane(
    report: Opened,
) -> None:
    rows = report.page.locator("#kernels .data tbody tr").first.locator("td")
    _, kernel, family, time, *_ = rows.all_text_contents()
    for width, scheme in ((PHONE, "dark"), (DESK, "light")):
        report.show(width, scheme)
        # The first bar lies under its name, which stands above it.
        said = report.tip("kernels", 30 / width, 26)
        assert all(text in said for text in (kernel, time, family))
        for share, phase in ((0.3, "forward"), (0.7, "backward")):
            report.tip("timeline", share, 70)
            report.until(
                f"[...document.querySelectorAll('.tip')].some(t => t.innerText.includes('{phase}'))"
            )
            lines = report.page.inner_text("#timeline .tip").split("\n")
            assert lines[::2] == ["time", "phase", "tensor pipe", "FMA pipe", "DRAM", "SMs"]
            assert lines[1].endswith(" ms")
            assert re.fullmatch(r"[\d.]+ % \([\d.]+ to [\d.]+\)", lines[-1])


def test_a_timeline_has_its_phases_named_and_its_gap_left_open(report: Opened) -> None:
    plot = report.page.locator("#timeline .plot").first
    texts = plot.locator("svg text").all_text_contents()
    assert [text for text in texts if "ward" in text] == ["forward", "backward"]
    # Too short a phase for its name has it beside itself, with an arrow to it.
    assert "optimizer \u25b8" in texts
    assert {"tensor pipe", "FMA pipe", "DRAM", "SMs"} <= set(texts)
    shapes = report.page.evaluate(
        "[...document.querySelector('#timeline .plot').querySelectorAll('path[fill=none]')]"
        ".map(path => path.getAttribute('d')).filter(shape => shape.length > 1000)"
    )
    assert {len(shape.split("M")) - 1 for shape in shapes} == {2}


def test_a_hostile_name_is_text_in_the_tooltip_too(reports: dict[str, Opened]) -> None:
    opened = reports["hostile"]
    opened.show()
    for figure, below in (("kernels", 18), ("timeline", 70)):
        assert "<img src=x" in opened.tip(figure, 200 / DESK, below)
    assert opened.count("img") == 0
    assert opened.complaints == []


def test_the_csv_files_have_every_row_and_are_saved_unpacked(report: Opened) -> None:
    lines = {}
    for figure in ("work", "timeline"):
        with report.page.expect_download() as started:
            report.page.click(f"#{figure} .links a[download]")
        assert started.value.suggested_filename == f"{figure}.csv"
        lines[figure] = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines["work"]) == 1 + report.count("#work .data tbody tr")
    assert lines["timeline"][0].startswith("configuration,time [ms],phase,tensor pipe [%]")
    assert len(lines["timeline"]) == 1 + 2 * MOST_POINTS


def test_charts_follow_the_scheme_and_on_paper_are_light_and_as_wide_as_the_sheet(
    report: Opened,
) -> None:
    script = "document.querySelector('#work svg text').getAttribute('fill')"
    light = report.page.evaluate(script)
    assert light in INKS
    report.page.emulate_media(color_scheme="dark")
    report.until(f"{script} !== {json.dumps(light)}")
    report.show(718, "dark", "print")
    report.until("[...document.querySelectorAll('.plot svg')].every(svg => svg.clientWidth <= 718)")
    assert report.page.evaluate(script) in INKS
    assert report.page.evaluate("document.documentElement.scrollWidth") <= 718
    assert len(report.page.pdf()) > 10_000
