"""How fast and how right `gpuperf history` is, over synthetic nights whose causes are known.

    python -m benchmarks.nights [--nights N] [--seeds K] [--folder FOLDER] [--json FILE]

Written are run files as a nightly job leaves them: 365 nights, 3 devices, 10 files a night and
device of 4 tests with 12 metrics each. The code is another one every night. On each device the
driver changes three times, and once a GPU of another kind takes the place of the one before. Code
that is slower by 1 to 5 % lands 12 times, in one to three tests, on all devices; a driver or a GPU
of another kind moves cycles and times of half of all tests, a driver by 1 to 3 % and a GPU by 0.6
to 3 %, in either direction.

The noise is assumed: between nights 0.1 % of cycles and times, half of it shared by the metrics of
a test, a third of the tests with heavy tails, and 1 % of nights slow as a whole by 0.5 to 3 %;
counts are exact but for one in 200. 2 % of measurements are not there.

Nights that are not white noise are years in memory in which nothing happens (`restless`): noise of
0.3 % that lasts, seasons, drifts, and counts that flicker.

Times are those of this machine and of what else it does, which `load` says. Exits with 1 where a
bar is missed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.history.levels import NightlyValues, trends
from pytest_gpuperf.history.nights import History, history
from pytest_gpuperf.history.reading import recollect, run_files_of
from pytest_gpuperf.history.suspects import SuspectKind

NIGHTS, TESTS, FILES = 365, 40, 10
DEVICES = (
    ("sm80", "NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"),
    ("sm90", "NVIDIA H100 80GB HBM3", "nvidia-h100-80gb-hbm3"),
    ("sm90", "NVIDIA H200", "nvidia-h200"),
)
METRICS: dict[str, tuple[float, str]] = {
    "cycles": (4.4e8, "cycle"),
    "active_cycles": (5.1e10, "cycle"),
    "duration": (2.4e8, "cycle"),
    "kernel_time": (2.3e8, "cycle"),
    "step_time": (245.0, "cycle"),
    "wall_time": (251.0, "cycle"),
    "dram_bytes": (9.1e10, "cycle"),
    "instructions": (3.2e10, "count"),
    "launches": (1612.0, "count"),
    "copies": (12.0, "count"),
    "ipc": (0.63, "ratio"),
    "l2_hit_rate": (61.0, "points"),
}
SIGMA = 1e-3
ROUNDS = 5
START = datetime(2025, 1, 1, 2, 30, tzinfo=timezone.utc)
SEED = 20260711

SECONDS, SECONDS_OF_ONE_A_NIGHT, MEMORY = 12.0, 1.0, 600 * 2**20
"""On two cores: of all files, and of one per night of one device."""
LEAST_FOUND, MOST_FALSE, LEAST_TOLD = 0.95, 1.0, 0.95
RESTLESS = 3
"""Device-years of each kind of noise that is not white."""


@dataclass(frozen=True)
class Cause:
    """What changed levels on one device, on one night."""

    device: int
    night: int
    kind: str
    steps: dict[int, float]
    """Per test the logarithm by which cycles and times change."""


def causes(rng: np.random.Generator, nights: int) -> list[Cause]:
    """What happens; no two causes of one device are on nights next to each other."""
    taken: list[set[int]] = [set() for _ in DEVICES]

    def night(devices: range | list[int]) -> int:
        while True:
            at = int(rng.integers(12, nights - 4))
            if not any({at + d for d in range(-2, 3)} & taken[device] for device in devices):
                for device in devices:
                    taken[device].add(at)
                return at

    made = []
    everywhere = list(range(len(DEVICES)))
    for _ in range(max(1, round(12 * nights / NIGHTS))):
        at = night(everywhere)
        tests = rng.choice(TESTS, int(rng.integers(1, 4)), replace=False)
        steps = {int(t): float(np.log1p(rng.uniform(0.01, 0.05))) for t in tests}
        made += [Cause(device, at, "code", steps) for device in everywhere]
    for device in everywhere:
        for _ in range(3):
            steps = {
                int(t): float(rng.choice([-1, 1]) * rng.uniform(0.01, 0.03))
                for t in rng.choice(TESTS, TESTS // 2, replace=False)
            }
            made.append(Cause(device, night([device]), "driver", steps))
        steps = {
            int(t): float(rng.choice([-1, 1]) * rng.uniform(0.006, 0.03))
            for t in rng.choice(TESTS, TESTS // 2, replace=False)
        }
        made.append(Cause(device, night([device]), "kind of GPU", steps))
    return made


def values(
    rng: np.random.Generator, nights: int, device: int, made: list[Cause]
) -> dict[str, np.ndarray[Any, Any]]:
    """Per metric the values of each test and night."""
    shape = (TESTS, nights)
    heavy = np.arange(TESTS) % 3 == 0
    normal = rng.normal(size=shape)
    tails = rng.standard_t(3, size=shape) / np.sqrt(3)
    shared = np.where(heavy[:, None], tails, normal) * SIGMA / np.sqrt(2)
    slow = (rng.random(nights) < 0.01) * rng.uniform(0.005, 0.03, nights)
    level = np.zeros(shape)
    counts = np.zeros(shape)
    for one in made:
        if one.device == device:
            for test, step in one.steps.items():
                level[test, one.night :] += step
                # Every other loss in the code executes more instructions.
                if one.kind == "code" and test % 2:
                    counts[test, one.night :] += step / 2
    all_values = {}
    for name, (size, kind) in METRICS.items():
        scale = size * (1 + 0.1 * np.arange(TESTS))[:, None]
        own = rng.normal(size=shape) * SIGMA / np.sqrt(2)
        if kind == "cycle":
            all_values[name] = scale * np.exp(level + shared + own + slow)
        elif kind == "count":
            odd = (rng.random(shape) < 0.005) * rng.uniform(0.001, 0.01, shape)
            moved = counts if name == "instructions" else 0 * counts
            all_values[name] = np.round(scale * np.exp(moved + odd))
        elif kind == "ratio":
            all_values[name] = scale * np.exp(counts - level - shared + own)
        else:
            all_values[name] = size + rng.normal(size=shape) * 0.15
    return all_values


def write(folder: Path, nights: int, seed: int) -> list[Cause]:
    """All run files in `folder`, and what happened."""
    rng = np.random.default_rng(seed)
    made = causes(rng, nights)
    for device in range(len(DEVICES)):
        series = values(np.random.default_rng([seed, device]), nights, device, made)
        lost = np.random.default_rng([seed, device, 1]).random((TESTS, nights)) < 0.02
        for night in range(nights):
            for number in range(FILES):
                text = json.dumps(_run(device, night, number, series, lost, made), indent=1)
                at = START + timedelta(days=night)
                place = folder / at.strftime("%Y-%m-%d") / DEVICES[device][2]
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{number}.json").write_text(text)
    return made


def _run(
    device: int,
    night: int,
    number: int,
    series: dict[str, np.ndarray[Any, Any]],
    lost: np.ndarray[Any, Any],
    made: list[Cause],
) -> dict[str, Any]:
    past = [one for one in made if one.device == device and one.night <= night]
    drivers = sum(one.kind == "driver" for one in past)
    kinds = sum(one.kind == "kind of GPU" for one in past)
    arch, name, slug = DEVICES[device]
    at = (START + timedelta(days=night, minutes=number)).isoformat().replace("+00:00", "Z")
    rng = np.random.default_rng([device, night, number])
    readings = {
        "arithmetic_cycles": 1.2e6,
        "tensor_cycles": 9.4e5,
        "l2_cycles": 1.81e6 * (1.03 if kinds % 2 else 1.0),
        "dram_cycles": 3.84e6 * (1.023 if kinds % 2 else 1.0),
        "dram_ns": 1.95e6 * (1.023 if kinds % 2 else 1.0),
        "sm_clock_mhz": 1980.0,
        "launch_us": 3.3,
        "host_ms": 12.0,
    }
    read = {k: float(v * np.exp(rng.normal() * 1e-4)) for k, v in readings.items()}
    canary = {"code": f"{arch}-1", "readings": read, "spreads": {}, "obstacle": ""}
    state = {"sm_clock_mhz": 1980, "memory_clock_mhz": 3201, "temperature_celsius": 40,
             "power_watts": 320.0, "throttle_reasons": [], "other_processes": [],
             "canary": canary}  # fmt: skip
    fingerprint = {
        "device": {"arch": arch, "name": name, "slug": slug, "identity": f"{device}{kinds}abcdef"},
        "software": {"python": "3.12.3", "torch": "2.11.0+cu130", "cuda": "13.0",
                     "cudnn": "9.19.0", "driver": f"5{80 + drivers}.65.06",
                     "gpuperf": "0.2.0", "cupti": "13.0.1", "platform": "Linux x86_64"},
        "settings": {"collector": "cupti", "metrics": "core", "rounds": ROUNDS},
        "revision": f"{night:012x}",
        "conditions": {"before": state, "after": state},
        "measured": at,
        "machine": {"vbios": "96.00.AF" if kinds % 2 else "96.00.A5",
                    "board_part": "900-21010", "memory_bytes": 150754820096},
    }  # fmt: skip
    measurements, verdicts = [], []
    for test in range(number * TESTS // FILES, (number + 1) * TESTS // FILES):
        if lost[test, night]:
            continue
        node = f"suites/synthetic/test_steps.py::test_training_step[case{test}]"
        samples = []
        for metric, of_all in series.items():
            value = float(of_all[test, night])
            rounds = [value * (1 + 1e-5 * n) for n in (-2, -1, 0, 1, 2)]
            exact = METRICS[metric][1] == "count"
            samples.append(
                {"phase": "step", "metric": metric, "values": [value] * 5 if exact else rounds}
            )
            verdicts.append(
                {"test": node, "name": "step", "phase": "step", "metric": metric, "unit": "",
                 "outcome": "unchanged", "reason": "within-tolerance", "baseline": value,
                 "measured": value, "change": 0.0001, "points": False, "tolerance": 0.005,
                 "low": -0.002, "high": 0.002, "detail": "", "detectable": 0.008, "processes": 1}
            )  # fmt: skip
        measurements.append(
            {"test": node, "name": "step", "suite": "synthetic", "configuration": f"case{test}",
             "process": f"{device}-{night}-{number}", "workload": {"size": 128}, "samples": samples,
             "unsupported": [], "fingerprint": fingerprint}
        )  # fmt: skip
    return {"schema": 1, "created": at, "command": "pytest suites/synthetic",
            "measurements": measurements, "verdicts": verdicts, "expectations": []}  # fmt: skip


def told(past: History, made: list[Cause]) -> dict[str, Any]:
    """How right the events are: what was found at its night, what is false, who was suspected."""
    truth = {(DEVICES[one.device][2], one.night): one for one in made}
    first = past.days[0]
    hit, false_points, false_events, right = 0, 0, [], 0
    at: dict[tuple[str, int, int], None] = {}
    for event in past.events:
        key = (event.device[1], event.day - first)
        cause = truth.get(key)
        if cause is None:
            false_events.append(key)
            false_points += len(event.moves)
            continue
        hit += 1
        right += bool(event.suspects) and event.suspects[0].kind is SuspectKind(cause.kind)
        for move in event.moves:
            case = move.series.seen.test.split("case")[1].rstrip("]")
            at[(key[0], key[1], int(case))] = None
    steps = [
        (DEVICES[one.device][2], one.night, test)
        for one in made
        for test, step in one.steps.items()
        if abs(step) >= np.log(1.0099)
    ]
    # A test that was not measured that night has its change on the next, in the same event.
    return {
        "causes": len(truth),
        "causes_found": hit,
        "steps_of_1_percent": len(steps),
        "steps_found_at_their_night": sum(step in at for step in steps),
        "false_events": len(false_events),
        "false_change_points": false_points,
        "events_with_a_cause": hit,
        "first_suspect_right": right,
    }


def prompt(nights: int, seeds: range) -> dict[str, int]:
    """Steps of 1 % in one of 40 tests, as seen on their second night: how many are at their night.

    In memory: every metric of one device, cut off after the second night of the step.
    """
    found = total = 0
    for seed in seeds:
        rng = np.random.default_rng([SEED, seed])
        night, test = int(rng.integers(20, nights - 2)), int(rng.integers(TESTS))
        made = [Cause(0, night, "code", {test: float(np.log(1.01))})]
        series = values(rng, nights, 0, made)
        asked = [
            NightlyValues(catalogue().metrics[name], of_all[t, : night + 2].tolist())
            for name, of_all in series.items()
            for t in range(TESTS)
        ]
        names = [(name, t) for name in series for t in range(TESTS)]
        judged = dict(zip(names, trends(asked), strict=True))
        for name, (_, kind) in METRICS.items():
            if kind == "cycle" and name in ("cycles", "step_time", "wall_time", "duration"):
                total += 1
                found += any(c.at == night and c.matters for c in judged[name, test].changes)
    return {"steps": total, "found_on_the_second_night": found}


def quiet(seeds: range) -> dict[str, int]:
    """A device's year in which nothing happens: how many levels are said to have changed."""
    points = nights = worst = 0
    for seed in seeds:
        series = values(np.random.default_rng([SEED, 7, seed]), NIGHTS, 0, [])
        asked = [
            NightlyValues(catalogue().metrics[name], [*of_all[t]])
            for name, of_all in series.items()
            for t in range(TESTS)
        ]
        judged = trends(asked)
        at = [c.at for trend in judged for c in trend.changes if c.matters]
        points += len(at)
        nights += len(set(at))
        worst = max(worst, len(set(at)))
    return {"device_years": len(seeds), "change_points": points, "nights": nights, "most": worst}


def _lasting(rng: np.random.Generator, tests: int) -> np.ndarray[Any, Any]:
    """Noise of 0.3 %, of which 70 % is left a night later."""
    noise = rng.normal(size=(tests, NIGHTS))
    for night in range(1, NIGHTS):
        noise[:, night] = 0.7 * noise[:, night - 1] + np.sqrt(1 - 0.7**2) * noise[:, night]
    return 0.003 * noise


def restless(seeds: range) -> dict[str, int]:
    """In so many years without a cause, nights on which a level is said to have changed."""
    year = np.arange(NIGHTS) / NIGHTS
    false = {}
    for name in (
        "noise of all tests that lasts",
        "noise of each test that lasts",
        "season of 1 %",
        "season of 1 %, noise of 0.2 %",
        "drift of 1.5 %",
        "launches +1 in 5 %",
        "launches +1 in 30 %",
        "allocations 0 or 1 in 5 %",
    ):
        false[name] = 0
        for seed in seeds:
            rng = np.random.default_rng([SEED, 8, seed])
            series = values(rng, NIGHTS, 0, [])
            moved = {
                "noise of all tests that lasts": _lasting(rng, 1),
                "noise of each test that lasts": _lasting(rng, TESTS),
                "season of 1 %": 0.01 * np.sin(2 * np.pi * year),
                "season of 1 %, noise of 0.2 %": 0.01 * np.sin(2 * np.pi * year)
                + rng.normal(size=(TESTS, NIGHTS)) * 0.002,
                "drift of 1.5 %": 0.015 * year,
            }.get(name, 0.0 * year)
            share = 0.3 if "30 %" in name else 0.05
            flickers = rng.random((TESTS, NIGHTS)) < share
            series["driver_allocations"] = 1.0 * flickers * ("allocations" in name)
            series["launches"] = series["launches"] + flickers * ("launches" in name)
            for metric, (_, kind) in METRICS.items():
                if kind == "cycle":
                    series[metric] = series[metric] * np.exp(moved)
            asked = [
                NightlyValues(catalogue().metrics[metric], [*of_all[t]])
                for metric, of_all in series.items()
                for t in range(TESTS)
            ]
            changes = [change for trend in trends(asked) for change in trend.changes]
            false[name] += len({change.at for change in changes if change.matters})
    return false


def years(seeds: range) -> dict[str, Any]:
    """Years of all devices, of each seed with other causes and another noise, in memory.

    How many steps of 1 % are at their night, and on how many nights a level is said to have changed
    on which nothing happened: in all, and on the device with most of them in a year.
    """
    steps = found = 0
    false: list[int] = []
    for seed in seeds:
        made = causes(np.random.default_rng(seed), NIGHTS)
        for device in range(len(DEVICES)):
            mine = {one.night: one for one in made if one.device == device}
            at, nights = _changes(seed, device, made)
            large = [
                (night, test)
                for night, one in mine.items()
                for test, step in one.steps.items()
                if abs(step) >= np.log(1.0099)
            ]
            steps += len(large)
            found += sum(step in at for step in large)
            false.append(len(nights - {*mine}))
    return {
        "device_years": len(false),
        "steps_of_1_percent": steps,
        "steps_found_at_their_night": found,
        "false_nights": sum(false),
        "most_in_a_device_year": max(false, default=0),
        "of_each_seed": [sum(false[n : n + 3]) for n in range(0, len(false), 3)],
    }


def _changes(seed: int, device: int, made: list[Cause]) -> tuple[set[tuple[int, int]], set[int]]:
    """Nights and tests of what is said to have changed on a device, and the nights alone.

    What a test changed while it was not measured counts for the night on which something happened.
    """
    series = values(np.random.default_rng([seed, device]), NIGHTS, device, made)
    lost = np.random.default_rng([seed, device, 1]).random((TESTS, NIGHTS)) < 0.02
    mine = [one for one in made if one.device == device]
    names, asked = [], []
    for metric, of_all in series.items():
        for test in range(TESTS):
            days = np.flatnonzero(~lost[test]).tolist()
            names.append((test, days))
            known = [*of_all[test, days]]
            asked.append(NightlyValues(catalogue().metrics[metric], known, days))
    at = set()
    for (test, days), trend in zip(names, trends(asked), strict=True):
        for change in (one for one in trend.changes if one.matters):
            first, last = days[change.before], days[change.at]
            known = [one.night for one in mine if first < one.night <= last]
            at.add((known[0] if known else last, test))
    return at, {night for night, _ in at}


def _timed(folder: Path, *arguments: str) -> tuple[float, float, int]:
    """Seconds `gpuperf history` takes, those of its processors, and bytes of its largest."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    words = [sys.executable, "-m", "pytest_gpuperf", "history", *arguments]
    # In a folder without baselines: those of this repository are of other tests.
    environment = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, cwd=folder.parent, env=environment)
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, busy, after.ru_maxrss * 1024


def main() -> int:
    """Writes, measures, and prints what came of it as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nights", type=int, default=NIGHTS)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary) / "runs").absolute()
        folder.mkdir(parents=True, exist_ok=True)
        made = causes(np.random.default_rng(SEED), options.nights)
        if not any(folder.glob("*")):
            made = write(folder, options.nights, SEED)
        page = folder.parent / f"{folder.name}.html"
        seconds, busy, memory = _timed(folder, str(folder))
        few_seconds, few_busy, _ = _timed(folder, str(folder / "*" / DEVICES[-1][2] / "0.json"))
        _timed(folder, str(folder), "--output", str(page))
        size = page.stat().st_size
        page.unlink()
        runs = run_files_of([str(folder)])
        result = {
            "runs": len(runs),
            "cores": multiprocessing.cpu_count(),
            "seconds": round(seconds, 1),
            "processor_seconds": round(busy, 1),
            "one_a_night_seconds": round(few_seconds, 2),
            "one_a_night_processor_seconds": round(few_busy, 2),
            "load": os.getloadavg()[0],
            "largest_process_bytes": memory,
            "page_bytes": size,
            **told(history(recollect(runs)), made),
            "prompt": prompt(NIGHTS, range(40)),
            "quiet": quiet(range(20)),
            "restless": restless(range(RESTLESS)),
            "years": years(range(options.seeds)),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    missed = (
        seconds > SECONDS
        or few_seconds > SECONDS_OF_ONE_A_NIGHT
        or memory > MEMORY
        or result["prompt"]["found_on_the_second_night"] < LEAST_FOUND * result["prompt"]["steps"]
        or result["steps_found_at_their_night"] < LEAST_FOUND * result["steps_of_1_percent"]
        or result["false_events"] > MOST_FALSE * len(DEVICES) * options.nights / NIGHTS
        or result["quiet"]["nights"] > MOST_FALSE * result["quiet"]["device_years"]
        or max(result["restless"].values()) > MOST_FALSE * RESTLESS
        or result["years"]["false_nights"] > MOST_FALSE * result["years"]["device_years"]
        or result["years"]["steps_found_at_their_night"]
        < LEAST_FOUND * result["years"]["steps_of_1_percent"]
        or result["first_suspect_right"] < LEAST_TOLD * result["causes"]
    )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
