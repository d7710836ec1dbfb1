"""What failed, as workflow commands of GitHub Actions: marks at the lines of the tests.

https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_gpuperf.model import Run
from pytest_gpuperf.report import blame, order, standings
from pytest_gpuperf.report.standings import Standing

_WIDTH = 96
_KERNELS = 6
"""Lines about kernels: an annotation is read beside code."""


@dataclass(frozen=True)
class Place:
    """Where a test is written."""

    file: str
    """Relative to the checkout, where it lies in it."""
    line: int | None
    """From 1 on."""


def workflow_commands(
    run: Run, places: Mapping[str, Place], spared: Mapping[str, str] | None = None
) -> Iterator[str]:
    """A line per measurement or ratio that is not as it should be, the worst first.

    GitHub shows the first ten errors and the first ten warnings of a step. `places` are by node id;
    a test without one is marked nowhere, but named. `spared` says, by node id, why a test did not
    fail whatever it measured ("expected to fail"): what would be an error is a notice then.
    """
    for standing in standings.standings(run):
        why = (spared or {}).get(standing.test, "")
        if standing.outcome in order.FAULTS:
            level = "notice" if why else "error"
            yield _command(level, standing, places.get(standing.test), why)
        elif standing.outcome in order.DOUBTS:
            yield _command("warning", standing, places.get(standing.test))


def _command(level: str, standing: Standing, place: Place | None, why: str = "") -> str:
    said = [why] if why else []
    said += standings.reasons(standing)
    said += blame.lines(standing.blame, _WIDTH, _KERNELS) if standing.blame else []
    properties = {"file": place.file if place else "", "line": ""}
    if place and place.line is not None:
        properties["line"] = str(place.line)
    properties["title"] = f"gpuperf: {standings.title(standing)}"
    written = ",".join(f"{name}={_property(text)}" for name, text in properties.items() if text)
    return f"::{level} {written}::{_data(chr(10).join(said))}"


def _data(text: str) -> str:
    """`text` as the message of a command: nothing in it ends the line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """`text` as the value of a property: nothing in it ends the value, either."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")
