"""Baseline files of before November 2026, converted to today's schema.

They had every round of every process in the YAML, the log at its end, and the kernel tables of all
entries in `<suite>.kernels.json.xz`. `gpuperf update-baseline --migrate` writes them anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, other_units
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.entry import EntryData, places_text
from pytest_gpuperf.model.measurement import STEP, KernelTable
from pytest_gpuperf.storage import entry_values, files

SCHEMA = 1
SUFFIX = ".kernels.json.xz"
_DIGITS = 16
Plain = dict[str, Any]


def is_written_so(data: object) -> TypeGuard[Plain]:
    """Whether the data of a YAML file are of this schema."""
    return isinstance(data, dict) and data.get("schema") == SCHEMA


def converted(data: Plain, file: Path, remedy: str) -> Plain:
    """The data of the YAML `file`, converted to today's schema and still to be validated.

    Raises BadFile where the data are not of schema 1.
    """
    for name, problem in other_units(data.get("metric_units", {})):
        raise BadFile(file, f"metric_units/{name}", problem, remedy)
    kept = ("arch", "device", "suite", "tolerance", "calibration")
    try:
        log = data["accepted"]  # the last key: a file that was cut short does not have it
        tests = {
            test: {name: _entry(entry, test, name, log) for name, entry in entries.items()}
            for test, entries in data["tests"].items()
        }
        return {"schema": 2, **{key: data[key] for key in kept if key in data}, "tests": tests}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise BadFile(file, "", f"does not follow schema {SCHEMA} ({said})", remedy) from None


def _entry(old: Plain, test: str, name: str, log: list[Plain]) -> Plain:
    canary = old.get("canary") or {}
    series = entry_values.canary_series(
        canary.get("codes", ()), canary.get("before", {}), canary.get("after", {})
    )
    keys = ("configuration", "workload", "software", "settings")
    return {
        **_accepted(old, old["samples"].get(STEP, {})),
        **{key: old[key] for key in keys},
        "canary": series and files.to_plain(series),
        "anchor": old["anchor"] and _accepted(old["anchor"], old["anchor"]["samples"]),
        "accepted": [_acceptance(one) for one in log if (one["test"], one["name"]) == (test, name)],
    }


def _accepted(old: Plain, step: Mapping[str, list[list[float]]]) -> Plain:
    count = max(map(len, step.values()), default=0)
    metrics, zero = entry_values.values_of(_known(step))
    # Older ones did not say where each process ran.
    gpus, days = (old.get(key) or [""] * count for key in ("units", "days"))
    return {
        "recorded": old["recorded"],
        "revision": old["revision"],
        "where": places_text(gpus, days),
        "metrics": metrics,
        "zero": zero,
    }


def _known(series: Mapping[str, Any]) -> dict[str, Any]:
    """The series without metrics that are measured no more."""
    return {name: rounds for name, rounds in series.items() if name not in catalogue().retired}


def _acceptance(old: Plain) -> Plain:
    gated = {name for name, metric in catalogue().metrics.items() if metric.gated}
    moved = {
        name: entry_values.moved(name, change["old"], change["new"])
        for name, change in old["changes"].items()
        if name in gated and change["old"] is not None and change["new"] is not None
        if change["new"] != change["old"]
    }
    kept = ("date", "reason", "revision", "processes", "forced")
    return {**{key: old[key] for key in kept if key in old}, "moved": moved}


def entry_data(data: Plain, tables: object, test: str, name: str) -> EntryData:
    """The data of an entry beside the YAML; `tables` are the data of the kernel tables' file."""
    old = data["tests"][test][name]
    digest = (old.get("kernels") or {}).get("digest")
    kept = tables if isinstance(tables, dict) else {}
    known = (kept.get(key, {}).get(test, {}).get(name) for key in ("tests", "replaced"))
    loaded = [files.adapter(KernelTable).validate_python(one) for one in known if one]
    plain = {
        "schema": 2,
        "samples": {phase: _known(series) for phase, series in old["samples"].items()},
    }
    made = files.adapter(EntryData).validate_python(plain)
    return replace(made, kernels=next((one for one in loaded if _digest(one) == digest), None))


def _digest(table: KernelTable) -> str:
    """The beginning of the SHA-256 of a table without its lines of code, as entries had it."""
    what = _without_lines(replace(table, peers=tuple(map(_without_lines, table.peers))))
    plain = files.adapter(KernelTable).dump_python(what, mode="json", exclude_defaults=True)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _without_lines(table: KernelTable) -> KernelTable:
    return replace(table, sites=(), site_of=(), calls=(), idle_at=())
