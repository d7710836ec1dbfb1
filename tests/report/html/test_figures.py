"""Figures: one set of rows for chart and table; nothing is silently missing."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from pytest_gpuperf.model.measurement import KernelTable, Launch
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.report.html import chart
from pytest_gpuperf.report.html.figure import (
    Figure,
    Plot,
    Quantity,
    quantity,
    ratio,
    told,
)
from pytest_gpuperf.report.html.figures import all_figures
from pytest_gpuperf.report.html.subject import subjects
from tests.examples import measurement, run
from tests.kernel_steps import table
from tests.report.html.pages import COMMITTED, committed, full

KEYS = [
    "work", "utilisation", "stalls", "phases", "transfers", "components", "kernel-mix", "kernels",
    "kernel-ipc", "instruction-mix", "roofline",
]  # fmt: skip


def figures(said: Run) -> dict[str, Figure]:
    return {figure.key: figure for figure in all_figures(subjects(said))}


@cache
def figures_of(name: str) -> dict[str, Figure]:
    """Of a committed run, or "full"."""
    return figures(full(2) if name == "full" else committed(name))


def column(figure: Figure, title: str) -> list[object]:
    return [row[figure.columns.index(title)] for row in figure.rows]


def values(figure: Figure, title: str) -> dict[tuple[str, str], float]:
    """The quantities of a column by the first two columns."""
    return {
        (str(row[0]), str(row[1])): cell.value
        for row in figure.rows
        if isinstance(cell := row[figure.columns.index(title)], Quantity)
    }


def drawn(figure: Figure) -> dict[str, Any]:
    """Its drawing as the script reads it; it has one."""
    drawing = chart.drawing(figure)
    assert drawing is not None
    return drawing


def items(drawing: dict[str, Any]) -> list[dict[str, Any]]:
    return [i for panel in drawing["panels"] for s in panel["series"] for i in s["items"]]


def test_every_figure_is_there_with_data_or_with_what_is_missing() -> None:
    for name in (*COMMITTED, "full"):
        assert list(figures_of(name)) == KEYS, name
        for figure in figures_of(name).values():
            is_drawn = chart.drawing(figure) is not None
            assert figure.rows or (figure.missing and not is_drawn), (name, figure.key)
            assert name != "full" or (is_drawn and not figure.missing), figure.key


def test_what_is_drawn_is_what_the_table_has() -> None:
    for name in (*COMMITTED, "full"):
        for figure in figures_of(name).values():
            plot, drawing = figure.plot, chart.drawing(figure)
            if drawing is None or plot is None:
                continue
            titles = plot.values[1:] if plot.shape == "points" else plot.values
            cells = [
                {(cell.text, cell.value) for cell in shown if isinstance(cell, Quantity)}
                for shown in (
                    [row[figure.columns.index(title)] for title in titles] for row in figure.rows
                )
            ]
            seen = set()
            for item in items(drawing):
                assert (item["text"], item["value"]) in cells[item["row"]]
                seen.add(item["row"])
            expected = {index for index, shown in enumerate(cells) if shown}
            assert plot.logarithmic != (False, False) or seen == expected, (name, figure.key)


def test_what_is_no_number_is_no_quantity() -> None:
    assert {quantity(value, "ns") for value in (math.nan, math.inf, -math.inf, None)} == {None}
    for made, expected in (
        (ratio(1.0, 4.0), Quantity(0.25, "ratio")),
        (ratio(1.0, 4.0, "%"), Quantity(25.0, "%")),
        *((none, None) for none in (ratio(None, 2.0), ratio(1.0, 0.0), ratio(1.0, None))),
    ):
        assert made == expected


def test_durations_that_overflow_draw_nothing() -> None:
    launches = tuple(Launch(0, "kernel", (1, 1, 1), (1, 1, 1), 1.7e308) for _ in range(3))
    huge = KernelTable(("conv",), (), launches, 0.0)
    said = figures(run([measurement(kernels=huge)]))
    assert "time" not in said["kernels"].columns
    assert chart.drawing(said["kernels"]) is None


def test_of_the_papers_values_those_of_the_same_architecture_are_drawn_hollow() -> None:
    work = figures_of("h200-paper.json.xz")["work"]
    assert work.plot is not None
    assert work.plot.published == ("paper, H100",)
    # A range stays a range: it is in the table, and no bar.
    assert "x0.01 to x0.02" in column(work, "paper, H100")


def test_configurations_are_relative_to_the_one_named_baseline_and_the_paper_to_its_suite() -> None:
    first, second = (
        measurement(
            {"cycles": [cycles]}, suite="convnext_ddpm", test=f"t[{name}]", configuration=name
        )
        for name, cycles in (("tf32", 50.0), ("baseline", 100.0))
    )
    work = figures(run([first, second]))["work"]
    assert values(work, "relative") == {("baseline", "cycles"): 1.0, ("tf32", "cycles"): 0.5}
    assert not any("paper" in title for title in work.columns)


def test_subjects_of_one_configuration_are_told_apart_by_their_tests() -> None:
    labels = {
        "a.py::test_step[tf32]": "test_step[tf32]",
        "a.py::test_sample[tf32]": "a.py::test_sample[tf32]",
        "b.py::test_sample[tf32]": "b.py::test_sample[tf32]",
        "b.py::test_step[bf16]": "bf16",
    }
    made = [measurement(test=test, configuration=test[-5:-1]) for test in labels]
    assert [subject.label for subject in subjects(run(made))] == list(labels.values())
    # A subject is of all processes.
    three = [measurement({"cycles": [c]}, process=f"p{c}") for c in (1.0, 3.0, 100.0)]
    assert [subject.value("cycles") for subject in subjects(run(three))] == [3.0]


def test_families_share_the_time_of_the_kernels_whose_longest_have_rows() -> None:
    step = table(("conv", 60.0), ("gemm", 25.0), ("gemm", 5.0), ("relu", 10.0))
    mix = figures(run([measurement(kernels=step)]))["kernel-mix"]
    assert values(mix, "share of kernel time")["tf32", "gemm"] == 30.0
    assert sum(values(mix, "share of kernel time").values()) == pytest.approx(100)
    step = table(*((f"kernel_{letter}", 10.0) for letter in "abcdefghijklmnopqrst"))
    said = figures(run([measurement(kernels=step)]))["kernels"]
    assert column(said, "kernel")[-1] == "5 others"
    assert column(said, "launches")[-1] == Quantity(5.0, "launches")


def test_bars_of_one_name_stand_beside_each_other_and_lone_ones_have_the_row() -> None:
    rows = (("a", "x", Quantity(1.0, "%")), ("a", "y", Quantity(2.0, "%")))
    figure = Figure("k", "t", "c.", ("name", "kind", "v"), rows, Plot("bars", "name", ("v",)))
    beside = replace(figure, plot=Plot("bars", "name", ("v",), series="kind"))
    assert [s["name"] for p in drawn(beside)["panels"] for s in p["series"]] == ["x", "y"]
    alone = replace(figure, plot=Plot("bars", "kind", ("v",), series="kind"))
    assert [len(s["items"]) for p in drawn(alone)["panels"] for s in p["series"]] == [2]
    colours = [i["colour"] for p in drawn(alone)["panels"] for s in p["series"] for i in s["items"]]
    assert colours == ["s0", "s1"]


def stacked(parts: dict[str, float]) -> tuple[list[tuple[str, str]], list[str]]:
    """The legend of a stack with its colours, and the series as they are drawn."""
    rows = tuple(("a", part, Quantity(value, "ms")) for part, value in parts.items())
    plot = Plot("stack", "name", ("v",), series="part")
    drawing = drawn(Figure("k", "t", "c.", ("name", "part", "v"), rows, plot))
    legend = [(entry["name"], entry["colour"]) for entry in drawing["legend"]]
    return legend, [s["name"] for p in drawing["panels"] for s in p["series"]]


def test_families_have_one_colour_and_order_and_of_many_series_the_smallest_are_grey() -> None:
    families = stacked({"layout": 9.0, "gemm": 1.0})
    assert families == ([("gemm", "f3"), ("layout", "f7")], ["gemm", "layout"])
    legend, _ = stacked({f"part{at}": float(at) for at in range(12)})
    assert legend == [(f"part{at}", f"s{min(11 - at, 7)}") for at in range(12)]


def test_charts_of_configurations_share_their_axes_and_those_of_metrics_do_not() -> None:
    shared = {
        key
        for key, figure in figures_of("full").items()
        if (drawing := chart.drawing(figure)) and drawing["shared"]
    }
    assert shared == {"kernels", "kernel-ipc", "instruction-mix", "roofline"}


def test_components_have_rows_and_what_is_outside_is_never_less_than_nothing() -> None:
    """A step whose graph hides its components has none."""
    inside = {"layer_norm": (2e6, 60.0), "conv2d": (5e6, 40.0), "extract": (0.0, 0.0)}

    def rows(time: float, launches: float, parts: dict[str, tuple[float, float]]) -> list[Any]:
        one = measurement(
            {"kernel_time": [time], "launches": [launches]},
            phases={n: {"kernel_time": [t], "launches": [c]} for n, (t, c) in parts.items()},
        )
        figure = figures(run([replace(one, components=tuple(parts))]))["components"]
        return [(row[1], getattr(row[2], "value", None)) for row in figure.rows]

    known = [("conv2d", 5e6), ("layer_norm", 2e6), ("extract", None)]
    assert rows(8e6, 110.0, inside) == [*known, ("(outside)", 1e6)]
    assert rows(7e6, 100.0, inside) == known
    # Of streams that overlap, the components may be longer than the step.
    assert rows(6e6, 110.0, inside) == [*known, ("(outside)", 0.0)]
    assert rows(4e6, 10.0, {"conv2d": (0.0, 0.0)}) == rows(4e6, 10.0, {}) == []


def test_zero_has_no_place_on_a_logarithmic_axis() -> None:
    rows = (("a", Quantity(0.0, "ns"), Quantity(1.0, "")), ("b", Quantity(1.0, "ns"), None))
    plot = Plot(
        "points",
        "n",
        ("x", "y"),
        logarithmic=(True, False),
        roofs=({"name": "r", "slope": 1, "top": 1},),
    )
    assert chart.drawing(Figure("k", "t", "c.", ("n", "x", "y"), rows, plot)) is None


def test_findings_are_a_sentence() -> None:
    said = [*(("gemm", label) for label in "acdef"), ("conv", "b")]
    assert told(said, "Most is ") == "Most is gemm in a, c, d and 2 others; conv in b. "
    assert told([], "Most is ") == ""
