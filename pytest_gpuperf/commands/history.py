"""`gpuperf history`: the trends of many nights, when levels changed, and what differs.

No gate: the exit code is 0, whatever changed. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import complain, say_json, tell, write_reports
from pytest_gpuperf.commands.flags import (
    JSON,
    TEXT,
    add_baselines,
    add_format,
    add_outputs,
    add_tests,
    check_baselines,
    check_outputs,
)
from pytest_gpuperf.history.nights import (
    History,
    LevelChange,
    MetricHistory,
    Move,
    date,
    history,
)
from pytest_gpuperf.history.reading import recollect, run_files_of
from pytest_gpuperf.report.text import night_lines
from pytest_gpuperf.storage import files, run_files

USAGE: str | None = None
EXAMPLES = (
    "gpuperf history",
    "gpuperf history . --output history.html",
    "gpuperf history . --output night.md",
    "gpuperf history '*.json' --format json",
)

SCHEMA = 1
"""The version of the JSON."""
_SUFFIXES = (".html", ".md")
_EVENTS = 10
"""The number of printed changes; the report and JSON have the others."""
_PROBLEMS, _PARTIAL = 10, 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf history`."""
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="FOLDER|GLOB|FILE",
        help="run files, or folders of them; default: the runs of this project",
    )
    add_tests(parser, "only tests that match, with the trend of each metric")
    add_baselines(
        parser,
        "folder of the baselines, needed to find creep; default: baselines, if that folder exists",
    )
    add_format(parser, (TEXT, JSON))
    add_outputs(parser, "also write a page (.html) or a summary (.md)")


def act(options: argparse.Namespace) -> int:
    """Prints the history as the flags say, and returns 0.

    Raises UsageFailure if there is no run, GpuperfError for a baseline that cannot be trusted.
    """
    reports: list[Path] = options.outputs
    check_outputs(reports, _SUFFIXES)
    named = options.runs or [str(run_files.project(Path.cwd()) / run_files.FOLDER)]
    past = looked_back(named, options.baselines, options.tests)
    if options.format == JSON:
        say_json(plain(past))
    else:
        tell(*_lines(past, detailed=bool(options.tests)))
    write_reports(reports, lambda report: _report_text(past, report), error=options.format == JSON)
    return 0


def looked_back(
    named: Sequence[str], baselines: Path | None = None, tests: Sequence[str] = ()
) -> History:
    """The history of these folders, patterns and files; names on stderr the files left out.

    Raises as `act` does.
    """
    source = recollect(run_files_of(named))
    for problem in source.problems[:_PROBLEMS]:
        complain(problem)
    if len(source.problems) > _PROBLEMS:
        complain(f"and {len(source.problems) - _PROBLEMS} more files were omitted")
    place = baselines or Path("baselines")
    check_baselines(baselines)
    return history(source, place if place.is_dir() else None, tests)


def _report_text(past: History, report: Path) -> str:
    if report.suffix == ".md":
        from pytest_gpuperf.report.markdown import nights

        return nights(past)
    from pytest_gpuperf.report.html.page import history_page

    return history_page(past)


# Text


def _lines(past: History, *, detailed: bool) -> Iterator[str]:
    if not past.series:
        yield "these runs have no measurements"
        return
    told = night_lines.night_view(past)
    yield told.headline
    yield from told.partial[:_PARTIAL]
    for event in told.events[:_EVENTS]:
        yield from ("", f"{event.day}  {event.where}: {event.what}")
        yield from (f"  {said}" for said in (*event.said, *event.suspects, *event.commands))
    if len(told.events) > _EVENTS:
        earlier = len(told.events) - _EVENTS
        yield from ("", f"and {earlier} earlier changes; --output FILE.html shows all")
    if told.creeping:
        yield from ("", "Creep, which is many small slowdowns that add up:")
        yield from (f"  {title}: {said}" for title, said in told.creeping)
    yield ""
    yield from told.last
    if detailed:
        yield ""
        yield from (_trend_line(past, one) for one in past.series)


def _trend_line(past: History, one: MetricHistory) -> str:
    trend, unit = one.trend, one.metric.unit
    gaps = f"; {night_lines.gap_text(one)}" if one.gaps else ""
    levels = " -> ".join(units.value(level, unit) for level in trend.levels)
    noise = f"{trend.noise:.2g} pt" if trend.points else f"{100 * trend.noise:.2g} %"
    days = ", ".join(date(one.seen.days[change.at]) for change in trend.changes)
    at = f" ({days})" if days else ""
    # A night on which two revisions were measured has two.
    values = counted(len(one.seen.values), "value")
    title = f"{night_lines.title(past, one)} {one.metric.name}"
    return f"{title}: {levels}{at}; {values}, noise {noise}{gaps}"


# JSON


def plain(past: History) -> dict[str, Any]:
    """The history for programs: days are ISO dates, changes shares (0.01 is 1 %) or points."""
    return {
        "schema": SCHEMA,
        "nights": [date(day) for day in past.days],
        "left_out": list(past.source.problems),
        "partial": list(past.source.partial),
        "last_nights": [_plain_last_night(one) for one in past.last_nights],
        "events": list(map(_plain_event, past.events)),
        "series": [_plain_series(one) for one in past.series],
    }


def _plain_last_night(one: LevelChange) -> dict[str, Any]:
    return {
        "arch": one.device[0],
        "device": one.device[1],
        "before": date(one.before),
        "night": date(one.day),
        "differences": list(map(files.to_plain, one.suspects)),
    }


def _plain_event(event: LevelChange) -> dict[str, Any]:
    return {
        "arch": event.device[0],
        "device": event.device[1],
        "last_before": date(event.before),
        "first_after": date(event.day),
        "revisions": list(event.revisions),
        "runs": [str(file) for file in event.moves[0].files],
        "suspects": list(map(files.to_plain, event.suspects)),
        "changes": [
            {
                "test": move.series.seen.test,
                "name": move.series.seen.name,
                "metric": move.series.metric.name,
                **_plain_change(move),
            }
            for move in event.moves
        ],
    }


def _plain_change(move: Move) -> dict[str, Any]:
    change, (before, after) = move.change, move.nights
    return {
        "last_before": date(before.day),
        "first_after": date(after.day),
        "change": change.change,
        "error": change.error,
        "worse": change.worse,
        "matters": change.matters,
    }


def _plain_series(one: MetricHistory) -> dict[str, Any]:
    seen, creep = one.seen, one.creep
    return {
        "test": seen.test,
        "name": seen.name,
        "arch": seen.device[0],
        "device": seen.device[1],
        "metric": seen.metric.name,
        "unit": one.metric.unit,
        "direction": one.metric.direction.value,
        "points": one.trend.points,
        "noise": one.trend.noise,
        "tolerance": one.trend.tolerance,
        "days": [date(day) for day in seen.days],
        "values": list(seen.values),
        "levels": list(one.trend.levels),
        "changes": [_plain_change(Move(one, change)) for change in one.trend.changes],
        "set_aside": [date(seen.days[n]) for n in one.trend.set_aside],
        "gaps": {date(day): reason for day, reason in sorted(one.gaps.items())},
        "creep": None
        if creep is None
        else {
            "since": creep.since,
            "of_baseline": creep.of_baseline,
            "change": creep.drift.change,
            "steps": creep.steps,
            "creeping": creep.creeping,
        },
    }
