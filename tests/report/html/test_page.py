"""The page: one file, no request, and nothing from outside is ever markup or code."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.measurement import Device, KernelTable, Launch
from pytest_gpuperf.model.result import (
    Attributed,
    Cause,
    CauseKind,
    LineChange,
    Outcome,
)
from pytest_gpuperf.report.html.page import page
from pytest_gpuperf.report.proof import Firing
from pytest_gpuperf.report.text import proof_lines
from tests.examples import kernels_changed, measurement, proof, run, trial, verdict
from tests.kernel_steps import NAMING, table
from tests.report.html.pages import COMMITTED, full, rendered
from tests.report.html.test_figures import KEYS

ATTACK = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&{{7*7}}"
_VOID = {"meta", "link", "img", "br", "col", "hr", "input"}


class Structure(HTMLParser):
    """The elements of a page, all of which are closed, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._open and self._open[-1] == "script":
            self.scripts[-1] += data

    def attributes(self, name: str) -> list[str]:
        return [value for _, said in self.elements if (value := said.get(name)) is not None]

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]


def test_every_figure_of_a_committed_run_has_its_place_and_asks_nothing_of_the_network() -> None:
    for name in COMMITTED:
        said = Structure(rendered(name))
        ids = said.attributes("id")
        assert {identity for identity in ids if identity in KEYS} == {*KEYS}, name
        # Those without data are lines at the end.
        shown = [one["id"] for _, one in said.elements if one.get("class") == "figure"]
        assert shown == [key for key in KEYS if key in shown], name
        assert len(set(ids)) == len(ids), name
        assert not {"iframe", "object", "embed", "form", "base", "audio", "video"} & set(said.tags)
        addresses = [*said.attributes("src"), *said.attributes("href")]
        assert all(address.startswith(("#", "data:")) for address in addresses), name


def test_only_the_page_s_own_script_and_style_may_run() -> None:
    text = rendered("h200-meddpm.json")
    (policy,) = re.findall('Content-Security-Policy" content="([^"]*)"', text)
    rules = dict(rule.strip().split(" ", 1) for rule in html.unescape(policy).split(";"))
    assert rules["default-src"] == "'none'"
    read = Structure(text)
    data, *scripts = read.scripts
    json.loads(data)
    assert rules["script-src"].split() == [_hash(script) for script in scripts]
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    assert rules["style-src"] == _hash(style)
    assert "unsafe" not in policy
    assert not [name for _, said in read.elements for name in said if name[:2] == "on"]
    assert not read.attributes("style")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_eight_configurations_take_less_than_3_mb() -> None:
    text = page(full(8), "run.json")
    assert len(text.encode()) < 3_000_000
    assert "more rows are left out" in text


def launched(name: int, duration: float, *values: float) -> Launch:
    """A launch of one block of one thread."""
    return Launch(name, "kernel", (1, 1, 1), (1, 1, 1), duration, values)


def hostile(text: str) -> str:
    """The page of a run in which everything that is text is `text`."""
    before = table(("conv", 900.0), ("silu", 600.0))
    said = attribute(before, table(("conv", 900.0)), NAMING)
    entries = tuple(replace(entry, short=text, formerly=text) for entry in said.entries)
    places: dict[str, Any] = {
        "cause": Cause(
            kind=CauseKind.LAUNCHES,
            line=text,
            function=text,
            modules=(text,),
            what=text,
            formerly=text,
            family=text,
            before=1,
            after=2,
            change=1e6,
            relative=0.1,
            traced=1e6,
        ),
        "lines": (LineChange(text, text, (text,), 1, 2, 1e6, 2e6, 1e6, ((text, 1, 2),)),),
    }
    kernels = KernelTable((text,), (), (launched(0, 1000.0),), 0.0, text)
    measured = measurement(
        {"cycles": [1.0], "ipc": [1.0], "step_time": [1.0]},
        test=text,
        name=text,
        suite=text,
        configuration=text,
        process=text,
        workload={text: text},
        phases={text: {"cycles": [1.0]}},
        unsupported={"dram_throughput": text},
        device=Device(text, text, text, text),
        software={text: text},
        settings={text: text},
        kernels=kernels,
    )
    made = run(
        [measured, replace(measured, configuration="baseline", test="other")],
        [
            verdict(test=text, name=text, detail=text, reason=text),
            verdict("dram_throughput", Outcome.UNSUPPORTED, test=text, name=text, detail=text),
            kernels_changed(text, test=text, name=text),
        ],
        [Attributed(text, text, replace(said, entries=entries, **places))],
    )
    proven = proof(
        trial(text, test=text, name=text, why=text),
        trial(text, Firing.PASSED, test=text, name=text, why=text, at=text, named=text),
        created=text,
        device=Device(text, text, text, text),
        doubts=(text,),
    )
    return page(replace(made, command=text, created=text), text, proof=proven)


def shape(text: str) -> list[str]:
    return Structure(text).tags


def test_nothing_from_outside_is_markup_or_code() -> None:
    plain, attacked = hostile("x"), hostile(ATTACK)
    assert "alert(1)" in attacked
    assert "img" not in shape(attacked)
    assert "<script>alert" not in attacked
    assert "{{7*7}}" in attacked
    assert "49" not in "".join(re.findall(r"alert\(2\)[^<]{0,40}", attacked))
    # A command is shown word by word, and this one has blanks.
    extra = ATTACK.count(" ")
    assert shape(attacked).count("script") == shape(plain).count("script") == 3
    assert len(shape(attacked)) - len(shape(plain)) <= 20 * extra


@settings(max_examples=8)
@given(st.text(st.characters(), min_size=1, max_size=30))
def test_no_name_changes_the_layout(name: str) -> None:
    tags = [tag for tag in shape(hostile(name)) if tag != "span"]
    assert tags == [tag for tag in shape(hostile("x")) if tag != "span"]


def test_odd_runs_are_shown() -> None:
    hostile("conv\ud800").encode("utf-8")  # half a surrogate pair can be written
    numbers: dict[str, Any] = {"cycles": [1.7e308], "ipc": [5e-324], "step_time": [0.0]}
    launches = (launched(0, 1.7e308),) * 3
    text = page(run([measurement(numbers, kernels=KernelTable(("a",), (), launches, 0.0))]))
    json.loads(Structure(text).scripts[0])
    assert "The run has no measurements" in page(run([]))


def test_a_run_of_ten_thousand_hostile_kernels_stays_small() -> None:
    count = 10_000
    names = tuple(f"{ATTACK} {number}" for number in range(count))
    launches = tuple(launched(number, 100.0, 1.0, 2.0) for number in range(count))
    kernels = KernelTable(names, ("active_cycles", "instructions"), launches, 0.0)
    text = page(run([measurement(kernels=kernels)]))
    assert len(text) < 1_000_000
    assert shape(text).count("script") == 3


def test_how_it_was_measured_is_short_whatever_the_number_of_processes() -> None:
    said = [
        measurement(process=f"p{n}", settings={"loss": 0.1 + n, "rounds": 5, "cost_s": 1.0})
        for n in range(20)
    ]
    text = page(run(said))
    assert "<dd>0.1, 1.1, 2.1, 3.1, 4.1, 5.1 and 14 others</dd>" in text
    assert "<dd>5</dd>" in text
    assert "cost_s" not in text


def test_figures_without_data_are_a_line_each() -> None:
    text = rendered("cpu-meddpm.json")
    lines = re.findall(r'<div id="([a-z-]+)"><dt>[^<]*</dt><dd>([^<]*)</dd>', text)
    assert len(lines) == len(KEYS) - 2
    assert {line for _, line in lines} == {"needs a GPU"}


def test_on_a_cpu_the_page_has_no_time() -> None:
    text = re.sub(
        "<(script|style).*?</(script|style)>", "", rendered("cpu-meddpm.json"), flags=re.S
    )
    assert not re.findall(r"step_time|wall_time|\d ms\b", text)


def test_rows_that_hold_are_one_line_and_those_that_failed_are_open() -> None:
    text = rendered("h200-tf32-broken.json.xz")
    assert 'details class="passes"' not in text
    assert '<details class="verdict bad" open>' in text
    made = [measurement(test=f"a.py::t[{n}]") for n in range(13)]
    outcomes = [Outcome.REGRESSED, *[Outcome.UNCHANGED] * 12]
    said = [verdict(outcome=o, test=m.test) for o, m in zip(outcomes, made, strict=True)]
    text = page(run(made, said))
    folded = text.partition('<details class="passes">')[2]
    assert folded.strip().startswith("<summary>12 unchanged</summary>")
    assert text.count("<tr data-status") == 13
    assert folded.count("<tr data-status") == 12


def test_dead_gates_are_open_and_those_that_fired_are_folded() -> None:
    passed = trial("wait", Firing.PASSED, why="step_time +0.31 % (tolerance 2.4 %)")
    unjudged = trial("copies", Firing.UNJUDGED, test="a.py::test_noisy", why="too noisy")
    proven = proof(
        *(trial(), passed, trial(test="a.py::test_good"), unjudged),
        doubts=("test_bad is not proven: the test fails",),
    )
    text = page(run([measurement()]), proof=proven)
    said = text.partition(">Can these gates fire?</h2>")[2].partition("</section>")[0]
    assert re.findall("<dd>(.*?)</dd>", said) == ["2026-03-01T12:00:00Z", "NVIDIA H200 (sm90)"]
    assert re.findall('<p class="says">(.*?)</p>', said) == [proof_lines.total(proven)]
    assert re.findall('<p class="bad">(.*?)</p>', said) == [*proven.doubts]
    dead, good, noisy = said.split("<details ")[1:]
    assert dead.startswith('class="verdict bad" open>')
    assert '<span class="badge bad">1 dead gate</span> test_training_step[tf32]</h3>' in dead
    assert (
        '<tr><th scope="row">wait 1 %</th><td class="bad">passed</td><td data-label="line">-</td>'
        '<td class="why">step_time +0.31 % (tolerance 2.4 %)</td></tr>'
    ) in dead
    assert good.startswith('class="verdict good">')
    assert noisy.startswith('class="verdict doubtful">')
    assert "Can these gates fire?" not in page(run([measurement()]))
