"""`gpuperf history`: the trends of many nights, when levels changed, and what differs.

No gate: the exit code is 0, whatever changed. Needs no GPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.units import counted
from pytest_gpuperf.commands import complain, tell, write_reports
from pytest_gpuperf.commands.flags import add_outputs, add_tests, check_outputs
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.history.nights import History, MetricHistory, date, history
from pytest_gpuperf.history.reading import recollect, run_files_of
from pytest_gpuperf.report.text import night_lines
from pytest_gpuperf.storage import run_files

USAGE: str | None = None
EXAMPLES = (
    "gpuperf history",
    "gpuperf history . --output history.html",
    "gpuperf history . --output night.md",
    "gpuperf history '*.json' --test step",
)

_SUFFIXES = (".html", ".md")
_EVENTS = 10
"""The number of printed changes; the report has the others."""
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
    parser.add_argument(
        "--project",
        dest="projects",
        action="append",
        default=[],
        metavar="NAME",
        help="only runs of this project; repeat it if the project was renamed; default: the "
        "project of the latest run",
    )
    add_outputs(parser, "also write a page (.html) or a summary (.md)")


def act(options: argparse.Namespace) -> int:
    """Prints the history as the flags say, and returns 0.

    Raises UsageFailure if there is no run, or no test matches.
    """
    reports: list[Path] = options.outputs
    check_outputs(reports, _SUFFIXES)
    named = options.runs or [str(run_files.project(Path.cwd()) / run_files.FOLDER)]
    past = looked_back(named, options.tests, options.projects)
    tell(*_lines(past, detailed=bool(options.tests)))
    write_reports(reports, lambda report: _report_text(past, report))
    return 0


def looked_back(
    named: Sequence[str], tests: Sequence[str] = (), projects: Collection[str] = ()
) -> History:
    """The history of these folders, patterns and files; names on stderr the files left out.

    Raises as `act` does.
    """
    source = recollect(run_files_of(named), projects)
    if not (source.files or source.problems):
        raise UsageFailure(f"{', '.join(named)}: no file is a run")
    for problem in source.problems[:_PROBLEMS]:
        complain(problem)
    if len(source.problems) > _PROBLEMS:
        complain(f"and {len(source.problems) - _PROBLEMS} more files were omitted")
    return history(source, tests)


def _report_text(past: History, report: Path) -> str:
    if report.suffix == ".md":
        from pytest_gpuperf.report.markdown import nights

        return nights(past)
    from pytest_gpuperf.report.html.page import history_page

    return history_page(past)


def _lines(past: History, *, detailed: bool) -> Iterator[str]:
    if not past.series:
        yield "these runs have no measurements"
        return
    told = night_lines.night_view(past)
    yield told.headline
    yield from past.source.partial[:_PARTIAL]
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
    gaps = f"; {counted(len(one.gaps), 'night')} without a value" if one.gaps else ""
    levels = " -> ".join(units.value(level, unit) for level in trend.levels)
    noise = f"{trend.noise:.2g} pt" if trend.points else f"{100 * trend.noise:.2g} %"
    days = ", ".join(date(one.seen.days[change.at]) for change in trend.changes)
    at = f" ({days})" if days else ""
    # A night on which two revisions were measured has two.
    values = counted(len(one.seen.values), "value")
    title = f"{night_lines.title(past, one)} {one.metric.name}"
    return f"{title}: {levels}{at}; {values}, noise {noise}{gaps}"
