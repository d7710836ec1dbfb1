"""The page in a browser: every figure is drawn, nothing is loaded, nobody is locked out.

Needs Chromium (`script/browser` finds or installs one; GPUPERF_BROWSER names another), and axe-core
in the folder GPUPERF_AXE (`script/vendor --axe FOLDER`). Where there is none, these tests skip, but
not where GPUPERF_REQUIRE_BROWSER is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.storage.run_files import MOST_POINTS
from tests.report.html.pages import COMMITTED, committed, full
from tests.report.html.test_figures import KEYS
from tests.report.html.test_page import ATTACK, hostile

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESK = 390, 1440
SCHEMES = [(PHONE, "light"), (PHONE, "dark"), (DESK, "light"), (DESK, "dark")]


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

    def __init__(self, browser: Browser, file: Path, width: int, scheme: Any) -> None:
        self._context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme
        )
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-drawn=yes]", state="attached")

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()

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


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages to open, by name."""
    folder = tmp_path_factory.mktemp("pages")
    found = {name: page(committed(name), name) for name in COMMITTED}
    found |= {"full": page(full(4), "run.json"), "hostile": hostile(ATTACK)}
    made = {}
    for number, (name, text) in enumerate(found.items()):
        made[name] = folder / f"{number}.html"
        made[name].write_text(text, encoding="utf-8")
    return made


@pytest.mark.parametrize("name", [*COMMITTED, "full", "hostile"])
def test_every_figure_is_drawn_without_a_word_in_the_console(
    name: str, browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files[name], DESK, "light") as opened:
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
        assert all(opened.count(f"#{key} .missing") for key in missing)
        assert opened.complaints == []
        assert opened.requests == [files[name].as_uri()]


def test_a_full_run_leaves_no_figure_without_a_chart(
    browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["full"], DESK, "light") as opened:
        assert [key for key in KEYS if not opened.count(f"#{key} .plot svg")] == []


@pytest.mark.parametrize(("width", "scheme"), SCHEMES)
def test_nobody_is_locked_out(
    width: int, scheme: str, browser: Browser, files: dict[str, Path], axe: str
) -> None:
    with Opened(browser, files["h200-tf32-broken.json.xz"], width, scheme) as opened:
        opened.page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert serious_faults(opened, axe) == []


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_nobody_is_locked_out_of_any_figure(
    width: int, scheme: str, browser: Browser, files: dict[str, Path], axe: str
) -> None:
    with Opened(browser, files["full"], width, scheme) as opened:
        assert serious_faults(opened, axe) == []


def serious_faults(opened: Opened, axe: str) -> list[tuple[str, str]]:
    """What axe finds serious or critical: the rule, and the first element."""
    opened.page.evaluate(axe)
    found = opened.page.evaluate("axe.run(document)")
    assert len(found["passes"]) > 20
    return [
        (fault["id"], fault["nodes"][0]["html"])
        for fault in found["violations"]
        if fault["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("width", [PHONE, 768, DESK])
@pytest.mark.parametrize("name", ["h200-tf32-broken.json.xz", "full", "hostile"])
def test_the_page_is_never_wider_than_the_screen(
    name: str, width: int, browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files[name], width, "light") as opened:
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_hovering_gives_the_kernel_and_its_value(
    width: int, scheme: str, browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["collectors/cupti.json.xz"], width, scheme) as opened:
        plot = opened.page.locator("#kernels .plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        # The first bar lies under its name, which stands above it.
        opened.page.mouse.move(box["x"] + 30, box["y"] + 26)
        opened.page.wait_for_selector(".tip", state="visible")
        said = opened.page.inner_text(".tip")
        assert "RowwiseMomentsCUDAKernel" in said
        assert "34.307 ms" in said
        assert "normalization" in said


@pytest.mark.parametrize(("width", "scheme"), SCHEMES)
def test_hovering_over_a_timeline_gives_the_moment_in_every_lane(
    width: int, scheme: str, browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["full"], width, scheme) as opened:
        plot = opened.page.locator("#timeline .plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        for share, phase in ((0.3, "forward"), (0.7, "backward")):
            opened.page.mouse.move(box["x"] + share * box["width"], box["y"] + 70)
            opened.page.wait_for_selector(".tip", state="visible")
            opened.until(
                f"[...document.querySelectorAll('.tip')].some(t => t.innerText.includes('{phase}'))"
            )
            said = opened.page.inner_text("#timeline .tip").split("\n")
            assert said[::2] == ["time", "phase", "tensor pipe", "FMA pipe", "DRAM", "SMs"]
            assert said[1].endswith(" ms")
            assert re.fullmatch(r"[\d.]+ % \([\d.]+ to [\d.]+\)", said[-1])
        assert opened.complaints == []


def test_the_phases_of_a_timeline_are_named_over_its_first_lane(
    browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["full"], DESK, "light") as opened:
        texts = opened.page.locator("#timeline .plot").first.locator("svg text").all_text_contents()
        assert [text for text in texts if "ward" in text] == ["forward", "backward"]
        # Too short a phase for its name has it beside itself, with an arrow to it.
        assert "optimizer \u25b8" in texts
        assert {"tensor pipe", "FMA pipe", "DRAM", "SMs"} <= set(texts)


def test_a_gap_in_a_timeline_is_not_drawn_over(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["full"], DESK, "light") as opened:
        shapes = opened.page.evaluate(
            "[...document.querySelector('#timeline .plot').querySelectorAll('path[fill=none]')]"
            ".map(path => path.getAttribute('d')).filter(shape => shape.length > 1000)"
        )
        assert {len(shape.split("M")) - 1 for shape in shapes} == {2}


@pytest.mark.parametrize(("figure", "below"), [("kernels", 18), ("timeline", 70)])
def test_a_hostile_name_is_text_in_the_tooltip_too(
    figure: str, below: int, browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["hostile"], DESK, "light") as opened:
        plot = opened.page.locator(f"#{figure} .plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        opened.page.mouse.move(box["x"] + 200, box["y"] + below)
        opened.page.wait_for_selector(".tip", state="visible")
        assert "<img src=x" in opened.page.inner_text(".tip")
        assert opened.count("img") == 0
        assert opened.complaints == []


def test_the_table_has_what_the_csv_file_has(browser: Browser, files: dict[str, Path]) -> None:
    with Opened(browser, files["full"], DESK, "light") as opened:
        with opened.page.expect_download() as started:
            opened.page.click("#work .links a[download]")
        download = started.value
        assert download.suggested_filename == "work.csv"
        text = Path(download.path()).read_text(encoding="utf-8")
        assert len(text.splitlines()) == 1 + opened.count("#work .data tbody tr")


def test_a_packed_csv_file_is_unpacked_when_it_is_saved(
    browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["full"], DESK, "light") as opened:
        with opened.page.expect_download() as started:
            opened.page.click("#timeline .links a[download]")
        assert started.value.suggested_filename == "timeline.csv"
        lines = Path(started.value.path()).read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("configuration,time [ms],phase,tensor pipe [%]")
        assert len(lines) == 1 + 4 * MOST_POINTS
        assert opened.complaints == []


def test_on_paper_charts_are_light_and_as_wide_as_the_sheet(
    browser: Browser, files: dict[str, Path]
) -> None:
    with Opened(browser, files["full"], DESK, "dark") as opened:
        opened.page.emulate_media(media="print", color_scheme="dark")
        opened.page.set_viewport_size({"width": 718, "height": 1000})
        opened.until(
            "[...document.querySelectorAll('.plot svg')].every(svg => svg.clientWidth <= 718)"
        )
        ink = opened.page.evaluate("document.querySelector('#work svg text').getAttribute('fill')")
        assert ink in ("#16191d", "#545c66")  # of page.css, without the dark scheme
        assert opened.page.evaluate("document.documentElement.scrollWidth") <= 718
        assert len(opened.page.pdf()) > 10_000


def test_charts_follow_the_scheme_that_is_switched_on(
    browser: Browser, files: dict[str, Path]
) -> None:
    script = "document.querySelector('#work svg text').getAttribute('fill')"
    with Opened(browser, files["full"], DESK, "light") as opened:
        light = opened.page.evaluate(script)
        opened.page.emulate_media(color_scheme="dark")
        opened.until(f"{script} !== {json.dumps(light)}")
        assert opened.complaints == []
