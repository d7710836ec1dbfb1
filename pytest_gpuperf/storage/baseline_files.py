"""Baseline files: `baselines/<arch>/<device>/<suite>.yaml`, for people to review.

A file holds, per test and measurement, the raw samples of several processes and what they were
measured with, and a log of what was accepted when and why. What people write beside it as comments
is carried over when the file is written anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible, other_units
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge import tolerance
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.entry import (
    Acceptance,
    BaselineFile,
    CanarySeries,
    Entry,
    KernelFile,
    Origin,
    Processes,
)
from pytest_gpuperf.model.measurement import STEP, Canary, Conditions, Device, Machine, Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.storage import files
from pytest_gpuperf.storage.files import Problem

if TYPE_CHECKING:
    import yaml

SCHEMA = 1
_REMEDY = "Restore it from git, or mend the entry by hand; nothing was overwritten"
_CONFLICT = "\n<<<<<<< "
_TAKE_ONE_SIDE = (
    "Take one side of this file and of its .kernels.json.xz (`git checkout --ours` or `--theirs`), "
    "then accept the tests of the other anew; nothing was overwritten"
)
_HEADER = """\
# Baselines of pytest-gpuperf, measured on the device named below.
# Written by `gpuperf update-baseline` and `gpuperf calibrate`: review it, do not edit the numbers.
# Only `tolerance` is yours.
"""
Place = tuple[str | int, ...]
"""Of an entry of the YAML: the keys down to it. A line of numbers is its own key."""
_END: Place = ()
_LINE_BREAK = re.compile("[\n\x85\u2028\u2029]")
"""YAML's; those of Python are more."""
_ANY_HEADER = re.compile(r"# Baselines of pytest-gpuperf.*\n# Written by .*\n(# Only .*\n)?")
"""Those of earlier versions too."""


def path_for(folder: Path, device: Device, suite: str) -> Path:
    """Where the baselines of `suite` on `device` are kept, always inside of `folder`.

    Raises UsageFailure for names that lead elsewhere.
    """
    for what, name in (("arch", device.arch), ("slug", device.slug), ("suite", suite)):
        if problem := files.name_problem(name):
            raise UsageFailure(f"no baselines can be kept: {what} {problem}. Rename it")
    return folder / device.arch / device.slug / f"{suite}.yaml"


def suite_of(test: str) -> str:
    """The suite of a node id: the folder that holds its file, or the file itself in the root."""
    file = PurePosixPath(test.split("::")[0])
    return file.parent.name or file.stem


def empty(device: Device, suite: str) -> BaselineFile:
    """A file without entries for `suite` on `device`."""
    return BaselineFile(SCHEMA, device.arch, device.name, suite, {}, ())


def load_for(folder: Path, device: Device, suite: str) -> BaselineFile | None:
    """The baselines of `suite` on `device`, or None when there are none.

    Raises BadFile, also for a file of another device that was put into this one's place.
    """
    file = path_for(folder, device, suite)
    loaded = load(file)
    if loaded is not None:
        check_place(loaded, device, suite, file, _REMEDY)
    return loaded


def load(file: Path) -> BaselineFile | None:
    """The baselines in `file`, or None when there is no such file. Raises BadFile.

    Every metric is known; every process has values; a GPU and a day per process, where they are
    given; kernels that are listed were launched; tolerances can be read; a calibration has spreads
    of known classes, none negative. Units are the catalogue's, and values can have been measured.
    """
    try:
        return parsed(file, files.decoded(files.read_bytes(file), file, _REMEDY))
    except FileNotFoundError:
        return None


def check_place(
    loaded: BaselineFile | KernelFile, device: Device, suite: str, file: Path, remedy: str
) -> None:
    """Raises BadFile for a file of another device or suite that lies where this one's belongs."""
    for entry, inside, wanted in (
        ("arch", loaded.arch, device.arch),
        ("device", loaded.device, device.name),
        ("suite", loaded.suite, suite),
    ):
        if inside != wanted:
            problem = f'"{inside}", in a file that lies where those of "{wanted}" belong'
            raise BadFile(file, entry, problem, remedy)


def save(baselines: BaselineFile, file: Path) -> None:
    """Writes the file atomically. Call under `files.changing` when it was loaded to be changed."""
    files.write_atomically(file, to_text(baselines, file))


def to_text(baselines: BaselineFile, file: Path) -> str:
    """What `file` is to hold: these baselines, with the comments that people wrote into it.

    What it holds now is a baseline file, where it is there.
    """
    import yaml

    text = yaml.dump(
        _plain(baselines),
        Dumper=_dumper(),
        sort_keys=False,
        allow_unicode=True,
        width=sys.maxsize,  # a process stays on its line however many rounds it has
    )
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = _HEADER + with_comments(_ANY_HEADER.sub("", old, count=1), text)
    # What could not be read again is not put in the place of what can be.
    files.parse_yaml(whole, file, "Nothing was written")
    return whole


def _plain(baselines: BaselineFile) -> dict[str, Any]:
    """As it is written: what older files and those of a CPU do without only where there is any."""
    plain: dict[str, Any] = files.to_plain(baselines)
    entries = (entry for entries in plain["tests"].values() for entry in entries.values())
    for holder in (plain, *entries):
        for key in ("machines", "canary", "metric_units"):
            if not holder.get(key):
                holder.pop(key, None)
    return plain


def with_comments(old: str, new: str) -> str:
    """The YAML text `new` with the comments of `old`: above their entries, and beside them.

    A comment goes where its entry is gone, and beside a line of numbers where these are others.
    Both texts are valid, and `new` has a line of its own for each entry. By the marks of yaml's
    parser in C: ruamel.yaml, which is made for this, takes more than two seconds for the largest of
    our files, and lays it out in another way.
    """
    if "#" not in old:
        return new
    above, beside = _comments(old)
    lines = new.split("\n")
    places: dict[int, list[Place]] = {len(lines) - 1: [_END]}
    for place, start, _ in _entries(new):
        places.setdefault(start, []).append(place)
    kept = []
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        here = places.get(number, [])
        kept += [indent + comment for place in here for comment in above.get(place, ())]
        kept.append("  ".join([line, *(beside[place] for place in here if place in beside)]))
    return "\n".join(kept)


def _comments(text: str) -> tuple[dict[Place, list[str]], dict[Place, str]]:
    """The comments on lines of their own, by the entry that follows; and those behind entries."""
    lines = _LINE_BREAK.split(text)
    first: dict[int, Place] = {}
    inside: set[int] = set()
    beside = {}
    for place, line, end in _entries(text):
        first.setdefault(line, place)
        inside.update(range(line + 1, end.line))
        behind = lines[end.line][end.column :].lstrip(" :")
        if behind.startswith("#"):
            beside[place] = behind
    above: dict[Place, list[str]] = {}
    waiting: list[str] = []
    for number, content in enumerate(lines):
        if number in first:
            above[first[number]], waiting = waiting, []
        elif content.lstrip().startswith("#") and number not in inside:
            waiting.append(content.strip())
    above[_END] = waiting
    return above, beside


def _entries(text: str) -> Iterator[tuple[Place, int, yaml.Mark]]:
    """The entries of a YAML text, outer ones first: place, line, and where a comment may follow."""
    import yaml

    def within(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int, yaml.Mark]]:
        keyed = isinstance(node, yaml.MappingNode)
        for number, item in enumerate(node.value):
            key, value = item if keyed else (item, item)
            nested = isinstance(value, yaml.CollectionNode) and not value.flow_style
            if keyed:
                name, end = key.value, key.end_mark
            else:
                name = number if nested else text[key.start_mark.index : key.end_mark.index]
                end = key.start_mark
            yield (*place, name), key.start_mark.line, end if nested else value.end_mark
            if nested:
                yield from within(value, (*place, name))

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if root is not None:
        yield from within(root, ())


def entry_of(measurements: Sequence[Measurement], recorded: str) -> Entry:
    """The entry that accepts these measurements of one test, from one or more processes."""
    first = measurements[0].fingerprint
    of_process = {m.process: m.fingerprint for m in measurements}
    machines = tuple(_machine_key(fingerprint.machine) for fingerprint in of_process.values())
    gpus = {m.process: m.fingerprint.device.identity for m in measurements}
    days = {m.process: m.fingerprint.measured[:10] or recorded for m in measurements}
    samples: dict[str, dict[str, Processes]] = {}
    for phase, series in samples_by_phase(measurements).items():
        kept = {
            metric: tuple(map(tuple, rounds))
            for metric, rounds in series.items()
            # What only some processes have is no baseline, but for counts: one of a newer release
            # joins what was measured before it.
            if (len(rounds) == len(gpus) or _is_count(metric)) and _portable(metric, first.device)
        }
        # On a CPU components have times alone.
        if kept or phase == STEP:
            samples[phase] = kept
    return Entry(
        recorded=recorded,
        configuration=measurements[0].configuration,
        workload=measurements[0].workload,
        software=first.software,
        # Durations of the measuring itself differ every time and explain nothing.
        settings={key: value for key, value in first.settings.items() if not key.endswith("_s")},
        revision=first.revision,
        samples=samples,
        gpus=tuple(gpus.values()),
        days=tuple(days.values()),
        machines=machines if any(machines) else (),
        canary=_canaries([fingerprint.conditions for fingerprint in of_process.values()]),
    )


def machines_of(measurements: Sequence[Measurement]) -> dict[str, Machine]:
    """What the GPUs of these measurements are beyond their name, by the keys that entries have."""
    machines = [m.fingerprint.machine for m in measurements]
    return {_machine_key(machine): machine for machine in machines if machine is not None}


def _machine_key(machine: Machine | None) -> str:
    if machine is None:
        return ""
    text = json.dumps(files.to_plain(machine), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _canaries(conditions: Sequence[Conditions | None]) -> CanarySeries | None:
    """The canaries of these processes; None where none was read."""
    befores = [None if seen is None else seen.before.canary for seen in conditions]
    afters = [None if seen is None else seen.after.canary for seen in conditions]
    codes = tuple(
        (before.code if before else "") or (after.code if after else "")
        for before, after in zip(befores, afters, strict=True)
    )
    return CanarySeries(codes, _series(befores), _series(afters)) if any(codes) else None


def _series(canaries: Sequence[Canary | None]) -> dict[str, tuple[float | None, ...]]:
    """Per reading a value of each process."""
    readings = [canary.readings if canary else {} for canary in canaries]
    names = dict.fromkeys(name for of_process in readings for name in of_process)
    return {name: tuple(of_process.get(name) for of_process in readings) for name in names}


def _portable(metric: str, device: Device) -> bool:
    """Whether a baseline of `device` holds `metric`: times on some CPU say nothing of another."""
    metric_class = catalogue().metrics[metric].metric_class
    return device.arch != architectures.CPU or metric_class is MetricClass.DETERMINISTIC


def origin_of(entry: Entry) -> Origin:
    """What later entries are held against once `entry` is replaced: its origin, or itself.

    The origin of an entry without one has the gated metrics of its whole step.
    """
    if entry.origin is not None:
        return entry.origin
    known = catalogue().metrics
    step = entry.samples.get(STEP, {})
    return Origin(
        recorded=entry.recorded,
        revision=entry.revision,
        samples={name: processes for name, processes in step.items() if known[name].gated},
        gpus=entry.gpus,
        days=entry.days,
    )


def with_entry(
    baselines: BaselineFile,
    test: str,
    name: str,
    entry: Entry,
    acceptance: Acceptance,
    machines: Mapping[str, Machine] | None = None,
) -> BaselineFile:
    """A copy of `baselines` in which `entry` is accepted; `machines` are those of its processes."""
    tests = {**baselines.tests, test: {**baselines.tests.get(test, {}), name: entry}}
    made = with_tests(baselines, tests, machines)
    return replace(made, accepted=(*baselines.accepted, acceptance))


def with_tests(
    baselines: BaselineFile,
    tests: Mapping[str, Mapping[str, Entry]],
    machines: Mapping[str, Machine] | None = None,
) -> BaselineFile:
    """A copy of `baselines` with these entries alone; `machines` are those of new ones' processes.

    What the file says besides is that of these entries.
    """
    named = {
        key for entries in tests.values() for kept in entries.values() for key in kept.machines
    }
    known = {**baselines.machines, **(machines or {})}
    return replace(
        baselines,
        machines={key: known[key] for key in sorted(named & known.keys())},
        metric_units=_units(tests),
        tests={key: tests[key] for key in sorted(tests)},
    )


def _units(tests: Mapping[str, Mapping[str, Entry]]) -> dict[str, str]:
    """The units of all metrics that these entries have, in the catalogue's order."""
    kept = {
        metric
        for entries in tests.values()
        for entry in entries.values()
        for series in (*entry.samples.values(), entry.origin.samples if entry.origin else {})
        for metric in series
    }
    return {name: metric.unit for name, metric in catalogue().metrics.items() if name in kept}


# Every test is judged by its suite's file, and reading one of half a megabyte takes half a second.
@lru_cache(maxsize=8)
def parsed(file: Path, text: str) -> BaselineFile:
    """The baselines that `text`, read from `file`, says. Raises BadFile, as `load`."""
    if _CONFLICT in f"\n{text}":
        line = f"\n{text}".split(_CONFLICT)[0].count("\n") + 1
        raise BadFile(file, f"line {line}", "git has left a conflict here", _TAKE_ONE_SIDE)
    data = files.parse_yaml(text, file, _REMEDY)
    loaded = _without_retired(files.validate(data, BaselineFile, file, SCHEMA, _REMEDY))
    files.check(_problems(loaded), file, _REMEDY)
    return loaded


def _without_retired(baselines: BaselineFile) -> BaselineFile:
    """The file without samples and tolerances of metrics that are measured no more."""
    retired = catalogue().retired

    def kept(by_metric: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in by_metric.items() if name not in retired}

    def current(entry: Entry) -> Entry:
        origin = entry.origin and replace(entry.origin, samples=kept(entry.origin.samples))
        samples = {phase: kept(series) for phase, series in entry.samples.items()}
        return replace(entry, samples=samples, origin=origin)

    tests = {
        test: {name: current(entry) for name, entry in entries.items()}
        for test, entries in baselines.tests.items()
    }
    return replace(baselines, tests=tests, tolerance=kept(baselines.tolerance))


def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """One process per line, so that a diff shows which process changed."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
        innermost = not any(isinstance(item, (list, dict)) for item in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=innermost)

    def number(dumper: yaml.SafeDumper, value: float) -> yaml.Node:
        # Counts are whole numbers; ".0" at the end of eleven digits is noise in a review.
        if value.is_integer() and abs(value) < 2**53:
            return dumper.represent_int(int(value))
        return dumper.represent_float(value)

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
        # Line breaks, of which Unicode has several, are folded unless they are escaped.
        style = None if value.isprintable() else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    Dumper.add_representer(str, text)
    Dumper.add_representer(list, sequence)
    Dumper.add_representer(float, number)
    return Dumper


def _problems(baselines: BaselineFile) -> Iterator[Problem]:
    """What the types of a baseline file cannot say."""
    for name, problem in other_units(baselines.metric_units):
        yield f"metric_units/{name}", problem
    yield from _tolerances(baselines.tolerance)
    for test, entries in baselines.tests.items():
        for name, entry in entries.items():
            where = f"tests/{test}/{name}"
            phases = {f"samples/{phase}": series for phase, series in entry.samples.items()}
            yield from ((f"{where}/{at}", why) for at, why in _of_processes(entry, phases))
            if entry.origin:
                of_origin = _of_processes(entry.origin, {"samples": entry.origin.samples})
                yield from ((f"{where}/anchor/{at}", why) for at, why in of_origin)


def _of_processes(
    entry: Entry | Origin, samples: Mapping[str, Mapping[str, Processes]]
) -> Iterator[Problem]:
    """What is wrong with samples, or is there for another number of processes than they are."""
    known = catalogue().metrics
    count = max((len(one) for series in samples.values() for one in series.values()), default=0)
    for at, series in samples.items():
        for metric, processes in series.items():
            if metric not in known:
                yield f"{at}/{metric}", "no such metric in the catalogue"
            elif not processes or not all(processes):
                yield f"{at}/{metric}", "a process without values"
            elif len(processes) != count and not _is_count(metric):
                yield f"{at}/{metric}", f"{len(processes)} processes, and others have {count}"
        values = {name: [*chain.from_iterable(processes)] for name, processes in series.items()}
        phase = at.partition("/")[2] or STEP  # an origin has the samples of the step
        for metric, problem in impossible(phase, values):
            yield f"{at}/{metric}", problem
    for name, length in _lengths(entry):
        if count and length != count:
            yield name, f"{length} values, and there are {count} processes"


def _lengths(entry: Entry | Origin) -> Iterator[tuple[str, int]]:
    """Of what there is per process beside samples, its name and for how many of them."""
    optional = {"units": entry.gpus, "days": entry.days}
    if isinstance(entry, Entry):
        optional["machines"] = entry.machines
        if entry.canary:
            yield "canary/codes", len(entry.canary.codes)
            for moment in ("before", "after"):
                for reading, values in getattr(entry.canary, moment).items():
                    yield f"canary/{moment}/{reading}", len(values)
    yield from ((name, len(values)) for name, values in optional.items() if values)


def _is_count(name: str) -> bool:
    """Whether a metric is an exact count of what the host did, on any GPU and any day the same."""
    metric = catalogue().metrics.get(name)
    return bool(metric and metric.traced and metric.metric_class is MetricClass.DETERMINISTIC)


def _tolerances(written: Mapping[str, str]) -> Iterator[Problem]:
    known = catalogue().metrics
    for name in written:
        if name not in known:
            gated = ", ".join(metric.name for metric in known.values() if metric.gated)
            yield f"tolerance/{name}", f'no such metric: write one of {gated}, as in cycles: "1%"'
    for name, problem in tolerance.unreadable(written, known):
        yield f"tolerance/{name}", problem
