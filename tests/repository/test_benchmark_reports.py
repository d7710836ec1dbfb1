"""Tables of a run's medians, and of the two reports' findings beside them."""

from __future__ import annotations

from dataclasses import replace

from benchmarks import medians, recorded, reports
from pytest_gpuperf.model.measurement import Measurement
from suites.convnext_ddpm.configurations import CHAIN, CONFIGURATIONS, LOADINGS
from tests.examples import measurement, run


def named(name: str, process: str, **series: list[float]) -> Measurement:
    return replace(measurement(series, process=process), configuration=name)


def test_a_table_has_the_median_over_processes_of_medians_over_rounds() -> None:
    made = run(
        [
            named("a", "p1", wall_time=[1.0, 2.0, 9.0]),
            named("a", "p2", wall_time=[4.0]),
            named("a", "p3", wall_time=[8.0]),
            named("b", "p1", instructions=[5e6]),
        ]
    )
    assert medians.table(made, ["wall_time", "instructions"], ["a", "b", "c"]).splitlines() == [
        "| configuration | `wall_time` | `instructions` |",
        "| --- | ---: | ---: |",
        "| `a` | 4.0000 ms | - |",
        "| `b` | - | 5.0000 M |",
        "| `c` | - | - |",
    ]


def test_every_finding_is_of_configurations_that_were_measured() -> None:
    measured = recorded.run("docs/runs/h200-convnext.json.xz")
    for finding in reports.FINDINGS:
        for side in (finding.numerator, finding.denominator):
            name = side.configuration
            known = CHAIN if name.endswith("_chain") else (*CONFIGURATIONS, *LOADINGS)
            assert name.removesuffix("_chain") in known, finding.what
            assert len(side.values(measured)) >= 3, finding.what


def test_a_finding_has_the_range_of_the_processes_own_ratios() -> None:
    sides = reports.Side("over", ("kernel_time",)), reports.Side("under", ("kernel_time",))
    made = run(
        [
            named("over", "p1", kernel_time=[1e6]),
            named("over", "p2", kernel_time=[3e6]),
            named("over", "p3", kernel_time=[3e6]),
            named("under", "p1", kernel_time=[2e6]),
            named("under", "p2", kernel_time=[4e6]),
        ]
    )
    finding = reports.Finding("a ratio", "A: 1 s / 4 s", 0.25, *sides)
    assert reports.row(finding, made) == "| a ratio | A: 0.25 | 0.62 (0.5 to 0.75) |"
    other = replace(finding, theirs=None, denominator=reports.Side("none"))
    assert reports.row(other, made) == "| a ratio | A: 1 s / 4 s | - |"


def test_copies_in_both_directions_add_up() -> None:
    side = reports.Side("a", ("copy_time_h2d", "copy_time_d2h"))
    made = run([named("a", "p1", copy_time_h2d=[2.0], copy_time_d2h=[3.0])])
    assert side.values(made) == {"p1": 5.0}
    assert side.values(run([named("a", "p1", copy_time_h2d=[2.0])])) == {}
