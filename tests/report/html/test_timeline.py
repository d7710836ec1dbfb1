"""The figure of timelines: every point in the CSV file, few enough of them drawn, and a summary."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model.measurement import Measurement, Timeline, TimelinePhase, Unsupported
from pytest_gpuperf.report.html import chart
from pytest_gpuperf.report.html.chart import drawn_together
from pytest_gpuperf.report.html.figure import (
    Figure,
    Plot,
    Shape,
    cell_text,
    csv_text,
    quantity,
)
from pytest_gpuperf.report.html.figures.activity_figures import over_the_step
from pytest_gpuperf.report.html.subject import collectable, subjects
from pytest_gpuperf.storage.run_files import MOST_POINTS
from tests.examples import H200, measurement, run
from tests.report.html.pages import sampled

SAMPLED = Timeline(
    samples=10,
    sampling_interval=1e6,
    interval=1e6,
    begin=0.0,
    duration=10e6,
    series={
        "sm_active": (100.0, 100.0, 50.0, 0.5, 0.0, None, 80.0, 80.0, 80.0, 80.0),
        "tensor_active": (0.0, 10.0, 20.0, 0.0, 0.0, None, 40.0, 40.0, 40.0, 40.0),
        "dram_active": (1.0,) * 10,
        "fma_active": (2.0,) * 10,
    },
    phases=(TimelinePhase("forward", 0.0, 4e6), TimelinePhase("backward", 6e6, 9.4e6)),
)


def having(shown: Timeline | None, configuration: str = "tf32", **changes: Any) -> Measurement:
    """A measurement of this configuration, with this timeline."""
    measured = measurement(test=f"t[{configuration}]", configuration=configuration, **changes)
    return replace(measured, timeline=shown)


def figure(*measurements: Measurement) -> Figure:
    return over_the_step(subjects(run(measurements)))


def summary(shown: Figure) -> dict[tuple[str, ...], tuple[str, ...]]:
    """The table as it is read, by configuration and phase."""
    assert shown.summary is not None
    cells = [tuple(map(cell_text, row)) for row in shown.summary.rows]
    return {row[:2]: row[2:] for row in cells}


def panels(shown: Figure) -> list[dict[str, Any]]:
    drawing: Any = chart.drawing(shown)
    assert drawing is not None
    assert drawing["shape"] == "lines"
    return list(drawing["panels"])


def test_the_table_has_the_step_and_its_phases() -> None:
    shown = figure(having(SAMPLED))
    assert shown.summary is not None
    assert shown.summary.columns == (
        "configuration", "phase", "time", "tensor pipe", "FMA pipe", "DRAM", "SMs", "SMs idle",
    )  # fmt: skip
    assert summary(shown) == {
        ("tf32", "step"): ("10.000 ms", "21.11 %", "2.00 %", "1.00 %", "63.39 %", "22.22 %"),
        ("tf32", "forward"): ("4.0000 ms", "7.50 %", "2.00 %", "1.00 %", "62.62 %", "25.00 %"),
        ("tf32", "backward"): ("3.4000 ms", "40.00 %", "2.00 %", "1.00 %", "80.00 %", "0.00 %"),
    }


def test_the_csv_file_has_every_point_with_its_phase() -> None:
    shown = figure(having(SAMPLED), having(sampled(), "bf16"))
    heading, *lines = csv.reader(io.StringIO(csv_text(shown), newline=""))
    assert heading == [
        "configuration", "time [ms]", "phase", "tensor pipe [%]", "FMA pipe [%]", "DRAM [%]",
        "SMs [%]",
    ]  # fmt: skip
    assert len(lines) == 10 + MOST_POINTS
    assert lines[0] == ["tf32", "0.5", "forward", "0", "2", "1", "100"]
    assert lines[4] == ["tf32", "4.5", "", "0", "2", "1", "0"]
    # What was not sampled is empty, and no zero.
    assert lines[5] == ["tf32", "5.5", "", "", "2", "1", ""]
    assert lines[8][2] == "backward"
    assert lines[9] == ["tf32", "9.5", "", "40", "2", "1", "80"]


def test_each_configuration_has_a_chart_with_a_lane_per_unit() -> None:
    first, second = panels(figure(having(SAMPLED), having(SAMPLED, "bf16")))
    assert (first["title"], second["title"]) == ("tf32", "bf16")
    assert [line["name"] for line in first["series"]] == ["tensor pipe", "FMA pipe", "DRAM", "SMs"]
    assert len({line["colour"] for line in first["series"]}) == 4
    assert first["x"] == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5]
    assert first["series"][3]["means"] == [100, 100, 50, 0.5, 0, None, 80, 80, 80, 80]
    assert first["bands"] == second["bands"]
    assert first["bands"] == [
        {"name": "forward", "begin": 0.0, "end": 4.0},
        {"name": "backward", "begin": 6.0, "end": 9.4},
    ]


def test_long_series_are_drawn_as_few_points() -> None:
    for charts, most in ((1, 1000), (4, 1000), (8, 500), (16, 250)):
        assert -(-MOST_POINTS // drawn_together(MOST_POINTS, charts)) == most
        assert drawn_together(most, charts) == 1
    drawn = panels(figure(*(having(sampled(), f"c{number}") for number in range(2))))
    assert {len(panel["x"]) for panel in drawn} == {1000}
    assert {len(line["means"]) for panel in drawn for line in panel["series"]} == {1000}


def test_points_are_means_between_the_lowest_and_the_highest_of_theirs() -> None:
    rows = tuple(
        ("a", quantity(float(number), "ms"), quantity(float(number % 4), "%"))
        for number in range(4000)
    )
    gap = (("a", quantity(4000.0 + number, "ms"), None) for number in range(8))
    plot = Plot(Shape.LINES, "", ("x", "y"), panel="n", most=100.0)
    (panel,) = panels(Figure("k", "t", "c.", ("n", "x", "y"), (*rows, *gap), plot))
    (line,) = panel["series"]
    # 4,008 rows are 802 points of five.
    assert panel["x"][:2] == [2, 7]
    assert line["means"][:2] == [1.2, 1.4]
    assert (line["lowest"][0], line["highest"][0]) == (0, 3)
    assert line["means"][-2:] == line["lowest"][-2:] == line["highest"][-2:] == [None, None]


def test_the_caption_says_what_a_drawn_point_is() -> None:
    whole, thinned = figure(having(SAMPLED)).notes, figure(having(sampled())).notes
    assert whole == ("tf32: 10 samples of 1 ms.",)
    assert thinned[0] == (
        "tf32: 8,000 samples of 25 us (kept as means of 50 us, drawn as means of 200 us)."
    )
    assert "from the lowest to the highest" in thinned[1]
    slow = replace(having(SAMPLED), samples=measurement({"step_time": [8.0]}).samples)
    assert "the step took 10.000 ms while it was sampled (+25.00 %)" in figure(slow).notes[0]


def test_the_conclusion_names_how_busy_it_is() -> None:
    said = figure(having(SAMPLED), having(SAMPLED, "bf16")).conclusion
    assert said.startswith("On average: SMs 63 %, tensor pipe 21 % in tf32 and bf16. SMs far below")
    assert not figure().conclusion.startswith("On average")


ABSENT = timelines.absent("this user may not")
LACKING = replace(
    SAMPLED,
    series={"sm_active": SAMPLED.series["sm_active"]},
    unsupported=(Unsupported("fma_active", "it does not fit"),),
)
FLAG = "measure with --gpuperf-timeline always"


def test_what_is_missing_has_its_reason_or_the_flag() -> None:
    cases: tuple[tuple[Sequence[Timeline | None], str], ...] = (
        ([SAMPLED, SAMPLED], ""),
        ([None, None], f"This run has no timeline: {FLAG}"),
        ([], f"This run has no timeline: {FLAG}"),
        ([ABSENT, ABSENT], "Not sampled (this user may not)"),
        ([SAMPLED, ABSENT], "Not sampled (this user may not) in c1"),
        ([SAMPLED, None, None], f"This run has no timeline of c1, c2: {FLAG}"),
        ([LACKING], "No fma_active (it does not fit)"),
        (
            [LACKING, ABSENT, None],
            "No fma_active (it does not fit) in c0; not sampled (this user may not) in c1; this "
            f"run has no timeline of c2: {FLAG}",
        ),
    )
    for sides, says in cases:
        made = figure(*(having(one, f"c{number}") for number, one in enumerate(sides)))
        assert made.missing == says
        assert collectable(made.missing) == (FLAG in says)
        assert bool(made.rows) == any(one and one.series for one in sides)
    old = figure(having(None, device=replace(H200, arch="sm70")))
    assert old.missing == "Not available here: sm70 cannot be sampled"


def test_a_unit_that_was_not_sampled_has_no_lane_and_without_a_value_there_is_no_drawing() -> None:
    shown = figure(having(LACKING), having(SAMPLED, "bf16"))
    lacking, whole = panels(shown)
    assert [line["name"] for line in lacking["series"]] == ["SMs"]
    assert len(whole["series"]) == 4
    assert summary(shown)["tf32", "step"][1:4] == ("-", "-", "-")
    empty = figure(having(replace(SAMPLED, series={"sm_active": (None,) * 10})))
    assert (empty.rows, chart.drawing(empty)) == ((), None)


def test_of_several_processes_the_first_that_was_sampled_is_drawn() -> None:
    shown = [having(one, process=f"p{n}") for n, one in enumerate([None, ABSENT, SAMPLED])]
    assert len(figure(*shown).rows) == 10
    assert figure(*shown).missing == ""
    assert figure(*shown[:2]).missing == "Not sampled (this user may not)"


def test_many_phases_and_configurations_are_bounded() -> None:
    count = 5000
    phases = tuple(
        TimelinePhase(f"layer {number}", number * 2e3, number * 2e3 + 1e3 + number)
        for number in range(count)
    )
    shown = figure(*(having(replace(SAMPLED, phases=phases), f"c{n}") for n in range(20)))
    drawn = panels(shown)
    assert len(drawn) == 16
    assert [len(panel["bands"]) for panel in drawn] == [100] * 16
    # The longest, in their order.
    assert drawn[0]["bands"][0]["name"] == f"layer {count - 100}"
    assert len(summary(shown)) == 16 * 21
    assert shown.notes[0].endswith("; the 100 longest of 5,000 phases are marked.")
    assert shown.notes[-1] == "The timelines of 4 more configurations are in the run file."


def test_long_names_are_cut_and_stay_apart() -> None:
    named = replace(SAMPLED, phases=(TimelinePhase("p" * 10_000, 0.0, 4e6),))
    shown = figure(*(having(named, f"{'c' * 10_000}{number}") for number in range(2)))
    assert len(panels(shown)) == 2
    assert len(csv_text(shown)) < 10_000


def test_what_overflows_or_is_empty_is_not_drawn() -> None:
    for huge in (1.7e308, 5e-324):
        odd = replace(SAMPLED, begin=huge, interval=huge, duration=huge)
        drawing: Any = chart.drawing(figure(having(odd)))
        for panel in drawing["panels"] if drawing else ():
            assert all(-1e309 < x < 1e309 for x in panel["x"])
    empty = (TimelinePhase("nothing", 2e6, 2e6), *SAMPLED.phases)
    (panel,) = panels(figure(having(replace(SAMPLED, phases=empty))))
    assert [band["name"] for band in panel["bands"]] == ["forward", "backward"]
