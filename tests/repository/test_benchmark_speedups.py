"""The table of step times and speed-ups."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.speedups import table
from pytest_gpuperf.model.measurement import Measurement, Scalar
from tests.examples import measurement, run


def named(name: str, time: float, process: str = "p1", **settings: Scalar) -> Measurement:
    made = measurement({"step_time": [time], "peak_memory": [2.0**30]}, process=process)
    fingerprint = replace(made.fingerprint, settings={**made.fingerprint.settings, **settings})
    return replace(made, configuration=name, fingerprint=fingerprint)


def test_a_configuration_is_so_many_times_as_fast_in_training_and_in_sampling() -> None:
    made = run(
        [
            named("baseline", 1000.0),
            named("baseline_sampling", 400.0),
            named("best", 50.0, first_call_s=61.25),
            named("best", 54.0, "p2", first_call_s=9.5),
            named("best_sampling", 20.0),
            named("tf32", 200.0),
        ]
    )
    head, _, *rows = table(made, ["baseline", "tf32", "best", "another"]).splitlines()
    assert head.split(" | ")[1:4] == ["training step", "faster", "peak memory"]
    assert rows == [
        "| `baseline` | 1000.0 ms | 1.0x | 1.0000 GiB | - | 400.00 ms | 1.0x |",
        "| `tf32` | 200.00 ms | 5.0x | 1.0000 GiB | - | - | - |",
        "| `best` | 52.000 ms | 19.2x | 1.0000 GiB | 61.2 s | 20.000 ms | 20.0x |",
    ]


def test_without_a_baseline_nothing_is_faster() -> None:
    (row,) = table(run([named("best", 50.0)]), ["best"]).splitlines()[2:]
    assert row == "| `best` | 50.000 ms | - | 1.0000 GiB | - | - | - |"
