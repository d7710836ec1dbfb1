"""Baseline files: `baselines/<arch>/<device>/<suite>.yaml`, for people to review.

A file holds, per test and measurement, a line per metric with the value of each process, a line of
what these were measured with, and a log of what was accepted when and why. Comments that people
write are carried over when the file is written anew. The rest is beside it (`data_files.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, impossible
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge import tolerance
from pytest_gpuperf.judge.verdict import samples_by_phase
from pytest_gpuperf.model.entry import (
    Accepted,
    BaselineFile,
    Entry,
    EntryData,
    Processes,
    places_text,
    unreadable_places,
)
from pytest_gpuperf.model.measurement import STEP, Canary, Device, KernelTable, Measurement
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.storage import entry_values, files, schema_1
from pytest_gpuperf.storage.files import Problem

if TYPE_CHECKING:
    import yaml

SCHEMA = 2
_REMEDY = "Restore this file from git, or repair the entry by hand. gpuperf changed nothing"
_CONFLICT = "\n<<<<<<< "
_TAKE_ONE_SIDE = (
    "Both branches accepted one test. Keep one side of each conflict. The next `gpuperf "
    "update-baseline` removes the other side's data files"
)
_HEADER = """\
# Baselines of pytest-gpuperf, measured on the device named below.
# Written by `gpuperf update-baseline` and `gpuperf calibrate`: review it, do not edit the numbers.
# Only `tolerance` is yours. A list has one value per process, a number is that of all processes.
"""
_END_MARK = "..."
"""The last line of a whole file: a file that was cut short does not have this line."""
_ORDER = (
    *("recorded", "revision", "configuration", "workload", "software", "settings", "where"),
    *("metrics", "zero", "canary", "data", "anchor", "accepted"),
)
"""The keys of an entry in the order of writing."""
_Place = tuple[str, ...]
"""The place of an entry of the YAML: the keys down to it. An item of a list is its own key."""
_KEY = re.compile(r"(?!- )(.+?):(?: |$)")
_LINE_BREAK = re.compile("[\n\x85\u2028\u2029]")
"""The line breaks of YAML; Python has more."""
_ANY_HEADER = re.compile(r"# Baselines of pytest-gpuperf.*\n# Written by .*\n(# Only .*\n)?")
"""The header of a file, also as earlier versions wrote it."""


def path_for(folder: Path, device: Device, suite: str) -> Path:
    """The path of the file with the baselines of `suite` on `device`, always inside of `folder`.

    Raises UsageFailure for names that lead elsewhere.
    """
    for what, name in (("arch", device.arch), ("slug", device.slug), ("suite", suite)):
        if problem := files.name_problem(name):
            raise UsageFailure(f"cannot name a baseline file: {what} {problem}. Rename it")
    return folder / device.arch / device.slug / f"{suite}.yaml"


def suite_of(test: str) -> str:
    """The suite of a node id: the folder that holds its file, or the file itself in the root."""
    file = PurePosixPath(test.split("::")[0])
    return file.parent.name or file.stem


def empty(device: Device, suite: str) -> BaselineFile:
    """A file without entries for `suite` on `device`."""
    return BaselineFile(SCHEMA, device.arch, device.name, suite, {})


def load_for(folder: Path, device: Device, suite: str) -> BaselineFile | None:
    """The baselines of `suite` on `device`, or None without a file.

    Raises BadFile, also for a file of another device that was put into this one's place.
    """
    file = path_for(folder, device, suite)
    loaded = load(file)
    if loaded is None:
        return None
    for entry, inside, wanted in (
        ("arch", loaded.arch, device.arch),
        ("device", loaded.device, device.name),
        ("suite", loaded.suite, suite),
    ):
        if inside != wanted:
            problem = f'the file is of "{inside}", but its place is for "{wanted}"'
            raise BadFile(file, entry, problem, _REMEDY)
    return loaded


def load(file: Path) -> BaselineFile | None:
    """The baselines in `file`, or None when there is no such file. Raises BadFile.

    Every metric is known; each has a value of every process, and these can have been measured;
    tolerances can be read; a calibration has spreads of known classes, none negative. A file of
    schema 1 is read as one of this: `gpuperf update-baseline --migrate` writes it anew.
    """
    try:
        return parsed(file, files.decoded(files.read_bytes(file), file, _REMEDY))
    except FileNotFoundError:
        return None


def save(baselines: BaselineFile, file: Path) -> None:
    """Writes the file atomically. Call under `files.changing` when it was loaded to be changed.

    Raises UsageFailure for a file of an older schema: its rounds and kernels would be lost.
    """
    text = files.read_bytes(file).decode(errors="replace") if file.exists() else ""
    if schema_1.is_written_so(files.parse_yaml(text, file, _REMEDY)):
        remedy = "Convert it first: gpuperf update-baseline --migrate"
        raise UsageFailure(f"{file} has the format of an older gpuperf. {remedy}")
    files.write_atomically(file, to_text(baselines, file))


def to_text(baselines: BaselineFile, file: Path) -> str:
    """The text for `file`: these baselines, with the comments that people wrote into the file.

    The present content of `file`, if any, is a baseline file.
    """
    import yaml

    text = yaml.dump(
        _plain(baselines),
        Dumper=_dumper(),
        sort_keys=False,
        allow_unicode=True,
        width=sys.maxsize,  # a metric stays on its line however many processes there are
        explicit_end=True,
    )
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = _HEADER + with_comments(_ANY_HEADER.sub("", old, count=1), text)
    # What could not be read again is not put in the place of what can be.
    files.parse_yaml(whole, file, "Nothing was written")
    return whole


class _Block(dict[str, Any]):
    """A mapping that has a line for each of its keys, whatever these hold."""


def _plain(baselines: BaselineFile) -> dict[str, Any]:
    """The file as plain data: in reading order, without optional values that an entry lacks."""
    plain: dict[str, Any] = files.to_plain(baselines)
    if not plain["calibration"]:
        del plain["calibration"]
    plain["tolerance"] = _Block(plain["tolerance"])
    for entries in plain["tests"].values():
        for name, entry in entries.items():
            for one in filter(None, (entry, entry["anchor"])):
                one["metrics"] = _Block(one["metrics"])
                _drop_empty(one, ("zero",))
            for log in entry["accepted"]:
                _drop_empty(log, ("moved", "forced"))
            _drop_empty(entry, ("canary", "data", "anchor", "accepted"))
            entries[name] = {key: entry[key] for key in _ORDER if key in entry}
    return plain


def _drop_empty(mapping: dict[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if not mapping[key]:
            del mapping[key]


def with_comments(old: str, new: str) -> str:
    """The YAML text `new` with the comments of `old`: above their entries, and beside them.

    A comment goes where its entry is gone, and beside a line of numbers where these are others.
    Both texts are valid, and `new` has a line of its own for each entry. ruamel.yaml, which is made
    for this, takes more than two seconds for the largest of our files, and lays it out in another
    way.
    """
    if "#" not in old:
        return new
    above: dict[_Place, list[str]] = {}
    beside: dict[_Place, str] = {}
    waiting: list[str] = []
    for place, content, comment in _lines(_LINE_BREAK.split(old)):
        if content:
            above.setdefault(place, []).extend(waiting)
            waiting = []
        if comment and content:
            beside[place] = comment
        elif comment:
            waiting.append(comment)
    kept: list[str] = []
    lines = new.split("\n")
    for line, (place, content, _) in zip(lines, _lines(lines), strict=True):
        indent = line[: len(line) - len(line.lstrip())]
        kept += [indent + comment for comment in above.pop(place, ()) if content]
        kept.append("  ".join([line, beside.pop(place)]) if content and place in beside else line)
    return "\n".join([*kept[:-1], *waiting, kept[-1]])


def _lines(lines: Sequence[str]) -> Iterator[tuple[_Place, str, str]]:
    """Of the lines of a YAML text the place of the entry, what is no comment, and the comment."""
    outer: list[tuple[int, str]] = []
    for line in lines:
        end = _end_of_content(line) if "#" in line else len(line)
        content, comment = line[:end].rstrip(), line[end:].strip()
        indent = len(content) - len(content.lstrip())
        entry = content.lstrip()
        if entry:
            key = _KEY.match(entry)
            outer = [one for one in outer if one[0] < indent]
            outer.append((indent, key[1] if key else entry))
        yield tuple(name for _, name in outer), content, comment


def _end_of_content(line: str) -> int:
    """Where a comment begins in a line of YAML, or its end."""
    import yaml

    try:
        tokens = [(token.start_mark.index, token.end_mark.index) for token in yaml.scan(line)]
    except yaml.YAMLError:  # a part of a text of several lines
        return len(line)
    end = max((end for start, end in tokens if end > start), default=0)
    return end if line[end:].lstrip().startswith("#") else len(line)


def entry_of(measurements: Sequence[Measurement], recorded: str) -> Entry:
    """The entry that accepts these measurements of one test, from one or more processes."""
    first = measurements[0].fingerprint
    of_process = {m.process: m.fingerprint for m in measurements}
    metrics, zero = entry_values.values_of(_comparable(measurements).get(STEP, {}))
    conditions = [fingerprint.conditions for fingerprint in of_process.values()]
    before = [seen.before.canary if seen else None for seen in conditions]
    after = [seen.after.canary if seen else None for seen in conditions]
    return Entry(
        recorded=recorded,
        revision=first.revision,
        configuration=measurements[0].configuration,
        workload=measurements[0].workload,
        software=first.software,
        # Durations of the measuring itself differ every time and explain nothing.
        settings={key: value for key, value in first.settings.items() if not key.endswith("_s")},
        where=places_text(
            [fingerprint.device.identity for fingerprint in of_process.values()],
            [fingerprint.measured[:10] or recorded[:10] for fingerprint in of_process.values()],
        ),
        metrics=metrics,
        zero=zero,
        canary=entry_values.canary_series(
            [(one or other or Canary()).code for one, other in zip(before, after, strict=True)],
            _series(before),
            _series(after),
        ),
    )


def _series(canaries: Sequence[Canary | None]) -> dict[str, tuple[float | None, ...]]:
    """The values of each reading, one per process."""
    readings = [canary.readings if canary else {} for canary in canaries]
    names = dict.fromkeys(name for of_process in readings for name in of_process)
    return {name: tuple(of_process.get(name) for of_process in readings) for name in names}


def _comparable(measurements: Sequence[Measurement]) -> dict[str, dict[str, Processes]]:
    """Per phase and metric, the rounds that later measurements can be compared with.

    A metric that some processes lack is left out, unless it is a count: a count of a newer release
    joins what was measured before. On a CPU times are left out: another CPU has others.
    """
    device, count = measurements[0].fingerprint.device, len({m.process for m in measurements})
    return {
        phase: {
            metric: tuple(map(tuple, rounds))
            for metric, rounds in series.items()
            if (len(rounds) == count or _is_count(metric)) and _portable(metric, device)
        }
        for phase, series in samples_by_phase(measurements).items()
    }


def data_of(measurements: Sequence[Measurement], kernels: KernelTable | None) -> EntryData:
    """The data of these measurements' entry beside the YAML: all rounds, and this table."""
    return EntryData(schema=SCHEMA, samples=_comparable(measurements), kernels=kernels)


def _portable(metric: str, device: Device) -> bool:
    """Whether a baseline of `device` holds `metric`: times on some CPU say nothing of another."""
    metric_class = catalogue().metrics[metric].metric_class
    return device.arch != architectures.CPU or metric_class is MetricClass.DETERMINISTIC


def origin_of(entry: Entry) -> Accepted:
    """The origin for entries that replace `entry`: the origin of `entry`, or `entry` itself.

    The origin of an entry without one has the gated metrics of its whole step.
    """
    if entry.origin is not None:
        return entry.origin
    known = catalogue().metrics
    return Accepted(
        recorded=entry.recorded,
        revision=entry.revision,
        where=entry.where,
        metrics={name: values for name, values in entry.metrics.items() if known[name].gated},
        zero=tuple(name for name in entry.zero if known[name].gated),
    )


def with_entry(baselines: BaselineFile, test: str, name: str, entry: Entry) -> BaselineFile:
    """A copy of `baselines` with `entry` accepted."""
    tests = {**baselines.tests, test: {**baselines.tests.get(test, {}), name: entry}}
    return replace(baselines, tests={key: tests[key] for key in sorted(tests)})


# Every test is judged by its suite's file, and reading one of half a megabyte takes half a second.
@lru_cache(maxsize=8)
def parsed(file: Path, text: str) -> BaselineFile:
    """The baselines in `text`, which was read from `file`. Raises BadFile, as `load` does."""
    if _CONFLICT in f"\n{text}":
        line = f"\n{text}".split(_CONFLICT)[0].count("\n") + 1
        raise BadFile(file, f"line {line}", "git left an unresolved conflict here", _TAKE_ONE_SIDE)
    data = files.parse_yaml(text, file, _REMEDY)
    if schema_1.is_written_so(data):
        data = schema_1.converted(data, file, _REMEDY)
    elif isinstance(data, dict) and f"\n{_END_MARK}\n" not in f"{text}\n":
        problem = f'the file is cut short: its last line must be "{_END_MARK}"'
        raise BadFile(file, "", problem, _REMEDY)
    retired = tuple(catalogue().retired)
    return files.validate(data, BaselineFile, file, SCHEMA, _REMEDY, retired, _problems)


def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """One metric per line, so that a diff shows which changed."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
            return True

    def sequence(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
        innermost = not any(isinstance(item, (list, dict)) for item in data)
        return dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=innermost)

    def mapping(dumper: yaml.SafeDumper, data: dict[str, Any]) -> yaml.Node:
        # The canary's readings are many numbers that nobody reviews.
        innermost = bool(data) and (
            not {"reason", "readings"}.isdisjoint(data)
            or not any(isinstance(item, (list, dict)) for item in data.values())
        )
        flow = innermost and not isinstance(data, _Block)
        return dumper.represent_mapping("tag:yaml.org,2002:map", data, flow_style=flow)

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
    Dumper.add_representer(dict, mapping)
    Dumper.add_representer(_Block, mapping)
    Dumper.add_representer(list, sequence)
    Dumper.add_representer(float, number)
    return Dumper


def _problems(baselines: BaselineFile) -> Iterator[Problem]:
    """The problems of a baseline file that its types do not exclude."""
    yield from _tolerances(baselines.tolerance)
    for test, entries in baselines.tests.items():
        for name, entry in entries.items():
            where = f"tests/{test}/{name}"
            for place, one in ((where, entry), (f"{where}/anchor", entry.origin)):
                for at, why in _of_processes(one) if one else ():
                    yield f"{place}/{at}", why
            for reading, values in (entry.canary.readings if entry.canary else {}).items():
                if len(values) != entry.processes:
                    yield f"{where}/canary/readings/{reading}", _other_count(values, entry)


def _of_processes(accepted: Accepted) -> Iterator[Problem]:
    """The problems of values, and of lists with another length than the number of processes."""
    known = catalogue().metrics
    for text in unreadable_places(accepted.where):
        yield "where", f'"{text}" must be GPU, day and count, such as "838fbb58b5ce 2026-11-24 x5"'
    if not accepted.where:
        yield "where", "no process is listed"
    for at, metrics in (("metrics", accepted.metrics), ("zero", accepted.zero)):
        yield from ((f"{at}/{name}", "unknown metric") for name in metrics if name not in known)
    for metric, values in accepted.metrics.items():
        several = values if isinstance(values, tuple) else (values,) * accepted.processes
        if not several:
            yield f"metrics/{metric}", "no values"
        elif len(several) != accepted.processes and not _is_count(metric):
            yield f"metrics/{metric}", _other_count(several, accepted)
    every = {name: [*chain.from_iterable(values)] for name, values in accepted.step.items()}
    yield from ((f"metrics/{metric}", why) for metric, why in impossible(STEP, every))


def _other_count(values: Sequence[object], accepted: Accepted) -> str:
    return f"{len(values)} values for {accepted.processes} processes"


def _is_count(name: str) -> bool:
    """Whether a metric is an exact count of what the host did, on any GPU and any day the same."""
    metric = catalogue().metrics.get(name)
    return bool(metric and metric.traced and metric.metric_class is MetricClass.DETERMINISTIC)


def _tolerances(written: Mapping[str, str]) -> Iterator[Problem]:
    known = catalogue().metrics
    for name in written:
        if name not in known:
            gated = ", ".join(metric.name for metric in known.values() if metric.gated)
            yield f"tolerance/{name}", f'no such metric. Use one of {gated}, such as cycles: "1%"'
    for name, problem in tolerance.unreadable(written, known):
        yield f"tolerance/{name}", problem
