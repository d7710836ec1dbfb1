"""The figures of transfers and components."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.measure.device.nvml import portable_device
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.report.html.chart import drawing
from pytest_gpuperf.report.html.figure import Figure, cell_text
from pytest_gpuperf.report.html.figures.activity_figures import components, transfers
from pytest_gpuperf.report.html.subject import subjects
from tests.examples import measurement, run
from tests.report.html.pages import full

SYNC = {
    "kernel_time": [4e6], "gpu_span": [1e7], "gpu_idle": [30.0], "copy_time_h2d": [2e6],
    "copy_time_d2h": [1e6], "copy_time_d2d": [0.0], "copy_overlap": [0.0], "launches": [10.0],
    "copy_bytes_h2d_pinned": [0.0], "copy_bytes_h2d_pageable": [4096.0],
    "copy_bytes_d2h_pinned": [1024.0], "copy_bytes_d2h_pageable": [1024.0],
}  # fmt: skip
RESIDENT = {
    **SYNC, "gpu_span": [5e6], "gpu_idle": [20.0], "copy_time_h2d": [0.0], "copy_time_d2h": [0.0],
}  # fmt: skip


def named(name: str, series: dict[str, list[float]]) -> Measurement:
    return measurement(series, test=f"test_a.py::test_step[{name}]", configuration=name)


def cells(figure: Figure) -> list[list[str]]:
    return [[cell_text(cell) for cell in row] for row in figure.rows]


def test_transfers_have_a_chart_for_each_kind_that_occurs() -> None:
    figure = transfers(subjects(run([named("sync", SYNC), named("resident", RESIDENT)])))
    assert cells(figure) == [
        ["kernels", "sync", "4.0000 ms", "40.00 %", "-", "-"],
        ["kernels", "resident", "4.0000 ms", "80.00 %", "-", "-"],
        ["copies to the device", "sync", "2.0000 ms", "20.00 %", "4096 B", "pageable"],
        ["copies to the device", "resident", "0 ms", "0.00 %", "4096 B", "pageable"],
        ["copies to the host", "sync", "1.0000 ms", "10.00 %", "2048 B", "pinned and pageable"],
        ["copies to the host", "resident", "0 ms", "0.00 %", "2048 B", "pinned and pageable"],
        ["idle", "sync", "30.00 %", "-", "-", "-"],
        ["idle", "resident", "20.00 %", "-", "-", "-"],
        ["copies under kernels", "sync", "0.00 %", "-", "-", "-"],
        ["copies under kernels", "resident", "0.00 %", "-", "-", "-"],
    ]
    assert figure.conclusion.startswith(
        "Of sync, the GPU does nothing in 30.00 % of its span, of resident in 20.00 %"
    )
    assert figure.missing == ""


def test_without_a_trace_it_says_why_or_what_takes_one() -> None:
    refused = "another profiler watches"
    for measured, said in (
        (measurement(), "This run has no trace of the step: --gpuperf-metrics activity takes one"),
        (measurement(unsupported={"kernel_time": refused}), f"Not available here: {refused}"),
        (
            measurement(device=portable_device()),
            "Not available here: without a GPU there is nothing to trace",
        ),
    ):
        figure = transfers(subjects(run([measured])))
        assert (figure.rows, drawing(figure), figure.missing) == ((), None, said)


def test_components_are_stacked_by_configuration_the_longest_first() -> None:
    figure = components(subjects(full(2)))
    assert cells(figure)[:4] == [
        ["baseline", "conv2d", "5.0000 ms", "62.50 %", "40", "0 ms"],
        ["baseline", "layer_norm", "2.0000 ms", "25.00 %", "60", "0 ms"],
        ["baseline", "extract", "-", "-", "0", "0 ms"],
        ["baseline", "(outside)", "1.0000 ms", "12.50 %", "200", "0.70000 ms"],
    ]
    assert figure.plot is not None
    assert (figure.plot.name, figure.plot.series) == ("configuration", "component")
    assert figure.conclusion == (
        "conv2d takes 5.0000 ms of baseline, 62 % of it: what is saved there counts most."
    )
    (note,) = figure.notes
    assert note.startswith("baseline, tf32: 1 of the launches is a CUDA graph")


def with_components(name: str, launched: dict[str, float]) -> Measurement:
    """A step of ten launches and 4 ms, of which each component has so many of both."""
    series = {"kernel_time": [4e6], "launches": [10.0], "graph_launches": [0.0]}
    parts = {
        part: {"kernel_time": [4e5 * count], "launches": [count], "graph_launches": [0.0]}
        for part, count in launched.items()
    }
    made = named(name, series)
    samples = [
        replace(sample, phase=part, values=tuple(values[sample.metric]))
        for part, values in parts.items()
        for sample in made.samples
    ]
    return replace(made, samples=(*made.samples, *samples), components=tuple(launched))


def test_a_step_that_launches_nothing_in_a_component_is_left_out_beside_one_that_does() -> None:
    eager, graph = (with_components(n, {"conv2d": c}) for n, c in (("eager", 4), ("graph", 0)))
    figure = components(subjects(run([eager, graph])))
    assert {row[0] for row in cells(figure)} == {"eager"}
    assert figure.notes == ("graph: left out here, since nothing was launched in a component",)
    figure = components(subjects(run([graph])))
    assert [row[:2] for row in cells(figure)] == [["graph", "conv2d"], ["graph", "(outside)"]]
    assert (figure.notes, figure.missing) == ((), "")


def test_of_many_components_the_largest_have_a_colour() -> None:
    shares = {f"part{number}": number / 10 for number in range(12)}
    drawn = drawing(components(subjects(run([with_components("eager", shares)]))))
    assert drawn is not None
    legend = [(entry["name"], entry["colour"]) for entry in drawn["legend"]]  # type: ignore[attr-defined]
    names = ["part11", "part10", "part9", "part8", "part7", "part6", "(outside)"]
    assert legend == [*((name, f"s{at}") for at, name in enumerate(names)), ("others", "s7")]


def test_without_components_it_says_how_to_name_them() -> None:
    without = components(subjects(run([measurement()])))
    assert without.missing == (
        "This run has no components: a step names them by `with gpuperf.component(...)`, and is "
        "measured with --gpuperf-metrics activity"
    )
    traced = named("sync", SYNC)
    missing = components(subjects(run([traced]))).missing
    assert missing.endswith("`with gpuperf.component(...)`")
    # A component without samples is left out.
    assert components(subjects(run([replace(traced, components=("conv2d",))]))).rows == ()
