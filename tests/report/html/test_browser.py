"""The page in a browser: every figure is drawn, nothing is loaded, nobody is locked out.

Needs Chromium (`script/browser` finds or installs one; GPUPERF_BROWSER names another), and axe-core
in the folder GPUPERF_AXE (`script/vendor --axe FOLDER`). Where there is none, these tests skip, but
not where GPUPERF_REQUIRE_BROWSER is set. Each report is opened once, whatever is asked of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.commands.history import looked_back
from pytest_gpuperf.history.nights import History
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.report.html.page import history_page, page
from pytest_gpuperf.report.proof import Firing, Proof
from tests.examples import measurement, proof, run, trial, verdict
from tests.report.html.pages import full, rendered
from tests.report.html.test_figures import KEYS
from tests.report.html.test_page import ATTACK, hostile
from tests.repository.test_night_issues import RED, of_tests
from tests.repository.test_year_of_nights import only

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, TABLET, DESK = 390, 760, 1440
MOST_BYTES = 3_000_000
MOST_PIXELS = 6000
"""The height of a page on which nothing failed, in a window 1,300 pixels wide."""
INKS = ("#16191d", "#545c66")
"""Of text in page.css, without the dark scheme."""
BROKEN = "h200-tf32-broken.json.xz"
REPORTS = ("full", "hostile", BROKEN, "many")
"""All that there is; the worst names and hardly any figure; a regression with its kernels; a table
of many tests, some gates of which cannot fire."""
CLIPPED = (
    "[...document.querySelectorAll('.tests td, .judged td, .expected td, .proof td')]"
    ".filter(cell => cell.scrollWidth > cell.clientWidth + 1).map(cell => cell.innerText)"
)
"""The cells of tables whose text is wider than they are."""
OUTCOMES = (*[Outcome.UNCHANGED] * 12, Outcome.REGRESSED, Outcome.IMPROVED, Outcome.REGRESSED)


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


def many() -> Run:
    """A run of a test per outcome, each slower than the one before it; one more was skipped."""
    names = [f"a.py::test_step[{number}]" for number in range(len(OUTCOMES))]
    made = run(
        [measurement({"step_time": [100.0 + at]}, test=name) for at, name in enumerate(names)],
        [
            replace(verdict("step_time", outcome, test=name), baseline=100.0, measured=100.0 + at)
            for at, (name, outcome) in enumerate(zip(names, OUTCOMES, strict=True))
        ],
    )
    return replace(made, skipped={"a.py::test_other": "needs a GPU"})


def proven() -> Proof:
    """A proof with a gate that is dead, one whose verdict stayed open, and long names."""
    passed = trial("wait", Firing.PASSED, why="step_time +0.31 % (tolerance 2.4 %)")
    unjudged = trial("copies", Firing.UNJUDGED, test="a.py::test_noisy", why="too noisy")
    name = f"a.py::test_step[{'long_' * 30}]"
    return proof(trial(), passed, unjudged, trial(test=name), doubts=(f"{name} is not proven",))


class Opened:
    """A page of a report in the browser, and what it did that it should not."""

    def __init__(self, browser: Browser, file: Path) -> None:
        self.page: Page = browser.new_context().new_page()
        self.complaints: list[str] = []
        self.requests: set[str] = set()
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.add(request.url))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog {dialog.message}"))
        self.show()
        self.page.goto(file.as_uri(), wait_until="commit")

    def show(self, width: int = DESK, scheme: Any = "light", media: Any = "screen") -> None:
        """Shows it as on a screen, or on paper, of this width; charts are drawn anew."""
        self.page.emulate_media(media=media, color_scheme=scheme)
        self.page.set_viewport_size({"width": width, "height": 900})
        # A chart follows the width of its box 0.1 s after that has changed.
        self.until(
            "[...document.querySelectorAll('details[open] > .charts .plot')].every(plot => "
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
def past(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Nights of the test of `many` that is worst; one of them changed its level."""
    from tests.history import test_nights as test_history

    folder = tmp_path_factory.mktemp("nights")
    for night in range(test_history.NIGHTS):
        if night != 3:
            test = "a.py::test_step[14]"
            test_history.save(folder, night, test_history.cycles(night), test=test)
    return looked_back([str(folder)])


@pytest.fixture(scope="module")
def reports(
    browser: Browser, past: History, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Opened]:
    """The pages by name, each opened once."""
    folder = tmp_path_factory.mktemp("pages")
    texts = {
        "full": page(full(3), "run.json"),
        "hostile": hostile(ATTACK),
        BROKEN: rendered(BROKEN),
        "many": page(many(), "run.json", past=past, proof=proven()),
    }
    opened = {}
    for number, name in enumerate(REPORTS):
        file = folder / f"{number}.html"
        file.write_text(texts[name], encoding="utf-8")
        opened[name] = Opened(browser, file)
    for one in opened.values():
        one.page.wait_for_selector("html[data-drawn=yes]", state="attached")
        one.page.evaluate("document.querySelectorAll('.figure').forEach(d => d.open = true)")
        one.show()
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
    assert expected or name == "many"
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
    # One point is no chart; its figure has a table.
    assert all(opened.count(f"#{key} dd, dl #{key}, #{key} td") for key in missing)
    assert opened.complaints == []
    assert opened.requests == {opened.page.url.partition("#")[0]}


SCREENS = {
    BROKEN: ((DESK, "dark", ()), (PHONE, "light", ())),
    "full": ((PHONE, "dark", ()), (DESK, "light", ("color-contrast", "link-in-text-block"))),
    "hostile": (),
    "many": ((DESK, "dark", ()), (PHONE, "light", ())),
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


def test_a_history_is_for_everybody_and_says_and_asks_nothing(
    browser: Browser, past: History, axe: str, tmp_path: Path
) -> None:
    file = tmp_path / "history.html"
    file.write_text(history_page(past), encoding="utf-8")
    assert file.stat().st_size < MOST_BYTES
    opened = Opened(browser, file)
    opened.page.wait_for_load_state()
    for width, scheme in ((PHONE, "dark"), (1300, "light")):
        opened.show(width, scheme)
        assert opened.page.evaluate("document.documentElement.scrollWidth") == width
        assert serious_faults(opened, axe, ()) == [], (width, scheme)
    assert opened.count("svg.wide .mark.bad") == 1
    assert (opened.complaints, len(opened.requests)) == ([], 1)


def test_hovering_gives_the_kernel_and_its_value(report: Opened) -> None:
    rows = report.page.locator("#kernels .data tbody tr").first.locator("td")
    _, kernel, family, time, *_ = rows.all_text_contents()
    # The first bar lies under its name on a phone, and beside it where there is room.
    for width, scheme, right, below in ((PHONE, "dark", 0.1, 26), (TABLET, "light", 0.6, 16)):
        report.show(width, scheme)
        said = report.tip("kernels", right, below)
        assert all(text in said for text in (kernel, time, family))


def shown(opened: Opened) -> list[str]:
    """The tests that the table shows, as they stand."""
    links = opened.page.locator(".tests tbody tr:visible th a")
    return [name.removeprefix("test_step[").removesuffix("]") for name in links.all_inner_texts()]


@pytest.fixture
def table(reports: dict[str, Opened]) -> Iterator[Opened]:
    """The report of many tests on a desk, as it was opened."""
    opened = reports["many"]
    opened.show()
    opened.page.reload()
    opened.page.wait_for_selector("html[data-drawn=yes]", state="attached")
    yield opened
    assert opened.complaints == []


def test_where_there_is_a_history_a_test_has_its_nights_beside_it(table: Opened) -> None:
    assert "2026-03-16 NVIDIA H200: 1 test changed, 1 worse" in table.page.inner_text(
        "section[aria-labelledby=since] h3"
    )
    row = table.page.locator(".tests tbody tr", has=table.page.locator("svg.spark"))
    assert "test_step[14]" in row.first.inner_text()
    assert (row.count(), row.locator(".mark.bad").count()) == (1, 1)


def test_the_table_has_what_failed_first_and_folds_what_passed(table: Opened) -> None:
    # By what it costs: the last is the slowest.
    assert shown(table) == ["14", "12", "13"]
    table.page.click(".passes summary")
    assert shown(table)[3:] == [str(number) for number in range(12)]


def test_a_name_in_the_table_leads_to_its_numbers_and_a_button_copies_its_node_id(
    table: Opened,
) -> None:
    table.page.click(".passes summary")
    table.page.click(".tests a >> text=test_step[7]")
    # It opens when the page has followed the link, which is after the click.
    table.page.locator(".verdict[open] h3", has_text="test_step[7]").wait_for()
    table.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    code = table.page.locator(".copied", has_text="test_step[7]")
    code.locator("xpath=following-sibling::button").click()
    table.until("[...document.querySelectorAll('.copy')].some(b => b.innerText === 'copied')")
    assert table.page.evaluate("navigator.clipboard.readText()") == "a.py::test_step[7]"


def test_without_a_script_the_table_and_every_number_are_there(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(many(), "run.json"), encoding="utf-8")
    plain = browser.new_context(java_script_enabled=False).new_page()
    plain.goto(file.as_uri())
    assert plain.locator(".tests tbody tr:visible").count() == 3
    plain.click(".passes summary")
    assert plain.locator(".tests tbody tr:visible").count() == len(OUTCOMES)
    assert plain.locator("button").count() == 0


def test_nothing_is_clipped_and_no_chart_stands_alone_in_its_row(report: Opened) -> None:
    for width in (PHONE, 1300, DESK):
        report.show(width)
        assert report.page.evaluate(CLIPPED) == [], width
    for columns, count in report.page.evaluate(
        "[...document.querySelectorAll('.panels')].map(row => "
        "[getComputedStyle(row).gridTemplateColumns.split(' ').length, row.children.length])"
    ):
        assert columns >= count or count % columns != 1


def test_a_hostile_name_is_text_in_the_tooltip_too(reports: dict[str, Opened]) -> None:
    opened = reports["hostile"]
    opened.show()
    assert "</script>" in opened.tip("kernels", 200 / DESK, 18)
    assert opened.count("img") == 0
    assert opened.complaints == []


@pytest.mark.parametrize("name", [BROKEN, "h200-meddpm.json", "cpu-meddpm.json"])
def test_the_first_screen_has_the_worst_its_cause_and_the_tests(
    name: str, browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(rendered(name), encoding="utf-8")
    for width, height in ((1300, 800), (PHONE, 844)):
        shown = browser.new_page(viewport={"width": width, "height": height})
        shown.goto(file.as_uri())
        shown.wait_for_selector("html[data-drawn=yes]", state="attached")
        wanted = ["h1", ".lead", ".tests tbody td.why"] if name == BROKEN else ["h1", ".passes"]
        for selector in wanted:
            box = shown.locator(selector).first.bounding_box()
            assert box is not None
            assert box["y"] + box["height"] <= height, (width, selector)
        if name != BROKEN and width == 1300:
            tall = shown.evaluate("document.documentElement.scrollHeight")
            assert tall <= MOST_PIXELS
        shown.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert shown.evaluate(CLIPPED) == [], width
        shown.close()


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


@pytest.mark.parametrize(("width", "height"), [(1300, 800), (PHONE, 844)])
def test_the_causes_of_a_night_are_on_its_first_screen(
    width: int, height: int, browser: Browser, tmp_path: Path
) -> None:
    """Sixty tests, three of them slower by two causes: which, since when, and what to type."""
    cause = RED.attributions[0].attribution.cause
    assert cause
    names = [f"tests/perf/test_step.py::test_training_step[{number}]" for number in range(60)]
    night = only(of_tests(*names), *names[:3])
    other = replace(cause, line="tests/perf/test_step.py:20", function="decode")
    first, second, third, *_ = night.attributions
    third = replace(third, attribution=replace(third.attribution, cause=other))
    night = replace(night, attributions=(first, second, third))
    file = tmp_path / "night.html"
    file.write_text(page(night, "night.json"), encoding="utf-8")
    view = browser.new_page(viewport={"width": width, "height": height})
    view.goto(file.as_uri())
    causes = view.locator(".causes li")
    assert view.locator("h1").inner_text() == "3 regressed, 57 unchanged"
    assert [text.split(",")[0].split(":")[0] for text in causes.all_inner_texts()] == [
        "2 tests",
        "test_training_step[2]",
    ]
    for shown in causes.all():
        assert "since the baseline of 2026-11-27, 819cde9800b3..68a04f1e8090" in shown.inner_text()
        assert "pytest tests/perf" in shown.inner_text().replace("'", "")
    box = view.locator(".causes").bounding_box()
    assert box
    assert box["y"] + box["height"] < height
    view.close()
