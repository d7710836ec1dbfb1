"""What speaks against a baseline, in numbers; and creep over whole chains of acceptances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_gpuperf.baselines import objections
from pytest_gpuperf.baselines.reference import other_work
from pytest_gpuperf.model.entry import Entry
from pytest_gpuperf.model.measurement import Conditions, Measurement, Reading
from pytest_gpuperf.storage import baseline_files
from tests.examples import H200, OTHER_H200, measurement

QUIET = Reading()
HOT = Reading(sm_clock_mhz=1200, throttle_reasons=("hardware thermal slowdown",))
CAPPED = Reading(throttle_reasons=("software power cap",))
SHARED = Reading(other_processes=(41, 42))


def several(count: int, **changes: object) -> list[Measurement]:
    """One measurement in each of so many processes."""
    made = [measurement(process=f"p{number}") for number in range(count)]
    return [changed(one, **changes) for one in made]


def changed(one: Measurement, **changes: object) -> Measurement:
    """A measurement with another fingerprint."""
    return replace(one, fingerprint=replace(one.fingerprint, **changes))  # type: ignore[arg-type]


def texts(measurements: Sequence[Measurement]) -> list[str]:
    return [objection.text for objection in objections.about_measurements(measurements)]


# The measurements


def test_one_process_of_three_that_is_apart_from_two_that_agree() -> None:
    """The tolerance would be wide; five outvote it, and of three noisy ones nobody is odd."""
    for factors, odd in (
        ((1.0, 1.001, 1.02), ["one odd process"]),
        ((1.0, 1.001, 1.004), []),
        ((1.0, 1.02, 1.04), []),
        ((1.0, 1.001, 1.02, 1.0, 1.001), []),
    ):
        made = [
            measurement({"cycles": [4e8 * by]}, process=f"p{number}")
            for number, by in enumerate(factors)
        ]
        found = objections.about_measurements(made)
        assert [one.short for one in found] == odd, factors
        assert all(one.more_processes for one in found)


def test_too_few_processes() -> None:
    for measured, short in (
        (several(1), "1 process of 3"),
        (several(2), "2 processes of 3"),
        ([measurement()] * 5, "1 process of 3"),  # it measured five times
    ):
        (objection,) = objections.about_measurements(measured)
        assert objection.short == short
        assert objection.text.startswith(f"{short}, too few to estimate")
        assert objection.more_processes
    for conditions in (None, Conditions(QUIET, QUIET)):
        assert texts(several(3, conditions=conditions, revision="")) == []


def test_an_unfit_device_is_quoted_once_with_the_processes_it_is_about() -> None:
    hot, shared = Conditions(HOT, HOT), Conditions(SHARED, QUIET)
    measured = several(5, conditions=Conditions(QUIET, QUIET))
    for place, conditions in ((1, hot), (3, hot), (4, shared)):
        measured[place] = changed(measured[place], conditions=conditions)
    (objection,) = objections.about_measurements(measured)
    assert objection.short == "unfit device in 3 of 5"
    assert objection.text == (
        "in 3 of 5 processes the device was throttled at the beginning and the end: "
        "hardware thermal slowdown (SM clock 1200 -> 1200 MHz); shared with 2 other processes "
        "(pids 41, 42). Record again when the GPU is cool and no other process uses it"
    )
    # Many complaints are counted.
    measured = [
        changed(one, conditions=Conditions(QUIET, Reading(other_processes=(pid,))))
        for pid, one in enumerate(several(5), 40)
    ]
    (text,) = texts(measured)
    assert "(pid 42); and 2 more. Record" in text
    assert "(pid 43)" not in text


def test_code_that_is_in_no_commit() -> None:
    measured = several(5)
    measured[0] = changed(measured[0], revision="0123456789ab+dirty")
    (objection,) = objections.about_measurements(measured)
    assert objection.short == "dirty tree"
    assert objection.text.startswith("measured at 0123456789ab+dirty, with uncommitted code")


# Notes


def notes(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    return objections.limitations(measurements, baseline_files.entry_of(measurements, "2026-03-01"))


def counting(*rounds: float, tolerance: str = "", process: str = "p0") -> Measurement:
    """A step whose rounds call so many operators."""
    allowed = {"operators": tolerance} if tolerance else {}
    measured = measurement({"operators": list(rounds)}, process=process)
    return replace(measured, tolerance=allowed)


def test_counts_that_vary_between_executions_of_one_code_are_refused_unless_tolerated() -> None:
    apart = [counting(10, 10), counting(12, 12, process="p1")]
    for varying in ([counting(10, 12)], apart):
        (*_, objection) = objections.about_measurements(varying)
        assert objection.short == "other work each time"
        assert "operators 10 to 12. Give measure a reset" in objection.text
    named = changed(counting(10, 12), settings={"unequal": "aten.mm 4 and 6 calls"})
    assert "operators 10 to 12 (aten.mm 4 and 6 calls)." in other_work([named])
    fine = (
        [counting(10, 10), counting(10, 10, process="p1")],
        [counting(10, 12, tolerance="25%")],
        [counting(10, 12, tolerance="any")],
        # Of two revisions, which are accepted together, that is no proof.
        [apart[0], changed(apart[1], revision="abc")],
        # Instructions vary with atomics, and waits for events with NCCL's watchdog.
        [measurement({"instructions": [10, 11], "event_synchronizations": [0, 8]})],
    )
    assert [other_work(one) for one in fine] == [""] * len(fine)
    on_gpu = measurement({"launches": [7, 9], "device_synchronizations": [1, 1]})
    assert "each time: launches 7 to 9." in other_work([on_gpu])


def test_processes_of_one_allocation_are_noted_and_not_refused() -> None:
    (note,) = notes(several(5, measured="2026-02-28T10:00:00Z"))
    assert note.startswith("all 5 processes are from one GPU and one day (2026-02-28)")
    # Two GPUs or two days are not, nor is one process or an unknown GPU.
    for change in ({"device": OTHER_H200}, {"measured": "2026-03-02T00:00:00Z"}):
        measured = several(5, measured="2026-03-01T23:59:59Z")
        measured[4] = changed(measured[4], **change)
        assert notes(measured) == ()
    assert notes(several(1)) == ()
    assert notes(several(5, device=replace(H200, identity=""))) == ()
    # What a CPU is judged by is the same on all of them.
    assert notes(several(5, device=replace(H200, arch="cpu"))) == ()


def test_a_power_cap_and_different_code_are_noted_and_not_refused() -> None:
    capped = several(5, device=replace(H200, identity=""))
    capped[2] = changed(capped[2], conditions=Conditions(QUIET, CAPPED))
    assert texts(capped) == []
    assert notes(capped) == (
        "in 1 of 5 processes the device was throttled at the end: software power cap",
    )
    unknown = several(5, device=replace(H200, identity=""))
    unknown[0] = changed(unknown[0], revision="")
    assert notes(unknown) == (
        "the processes are from 2 revisions of the code: unknown, 0123456789ab",
    )


# Creep


def entry(cycles: Sequence[float], day: str = "2026-03-01", **others: float) -> Entry:
    """An entry with one process per value of cycles, and the same value of other metrics."""
    made = [
        measurement(
            {"cycles": [value], **{name: [other] for name, other in others.items()}},
            process=f"p{number}",
        )
        for number, value in enumerate(cycles)
    ]
    return baseline_files.entry_of(made, day)


def creep(new: Entry, old: Entry) -> objections.Creep:
    """What `new` in the place of `old` has lost since the origin."""
    return objections.creep_since(new, old, {}, None, new_origin=False)


def after(old: Entry, new: Entry) -> Entry:
    """The new entry, accepted in the place of the old one."""
    return replace(new, origin=baseline_files.origin_of(old))


def test_creep_says_since_when_how_much_and_what_to_do() -> None:
    old = after(entry([1e9] * 5), entry([1.004e9] * 5, "2026-04-01"))
    shown = creep(entry([1.007e9] * 5), old)
    (objection,) = shown.objections
    assert objection.short == "creep: cycles +0.70 %"
    assert objection.text == (
        "creep, many small slowdowns since the first accepted samples (origin) of 2026-03-01: "
        "cycles +0.70 % (tolerance 0.5 %). "
        "This change alone shows cycles +0.30 %; the log `accepted` lists earlier ones. If all are "
        "intended, --new-origin starts over from these samples"
    )
    assert shown.notes == ("since the first accepted samples (2026-03-01): cycles +0.70 %",)


def test_an_entry_is_compared_gpu_by_gpu_where_all_of_them_are_known() -> None:
    known = entry([1e9] * 3, "2026-03-01")
    told = objections.recorded(known)
    assert (told.samples, told.gpus, told.days) == (known.step, known.gpus, known.days)
    assert told.gpus == (measurement().fingerprint.device.identity,) * 3
    origin = baseline_files.origin_of(known)
    assert objections.recorded(origin).samples == origin.step
    assert objections.recorded(origin).gpus == origin.gpus
    # A process on a GPU that nobody knows could be on any of the others.
    assert objections.recorded(replace(known, where=("a -", "- -", "b -"))).gpus == ()
    assert objections.recorded(replace(known, metrics={}, zero=())).samples == {}


def test_a_metric_that_the_origin_lacks_is_noted() -> None:
    shown = creep(entry([1e9] * 5, step_time=100.0, ipc=2.0), entry([1e9] * 5))
    assert shown.notes == (
        "the first accepted samples (origin) of 2026-03-01 have no step_time, so gpuperf cannot "
        "see creep of it. "
        "--new-origin starts over from these samples",
    )
