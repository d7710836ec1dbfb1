"""What a test's place and markers say about its measurements, checked, without pytest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.tolerance import parse, parse_limit
from pytest_gpuperf.measure.collector import REPRODUCIBLE


@dataclass(frozen=True)
class TestTraits:
    """What a test's place and markers say about its measurements."""

    __test__ = False

    nodeid: str
    suite: str
    configuration: str = ""
    metrics: str | None = None
    """Sets and metrics instead of the flag's; beside them with a "+" in front."""
    tolerance: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None
    repetitions: int | None = None
    limit: Mapping[str, object] = field(default_factory=dict)
    """As written, by metric; `judge/limit.py` reads it."""
    reproducible: float | bool = True
    """How far the losses of two executions may be apart; True: `REPRODUCIBLE`, False: any."""


def metrics_of(marker: str | None, flag: str) -> str:
    """What is measured where the marker and `--gpuperf-metrics` say this."""
    if marker is None:
        return flag
    added = _added(marker)
    return marker if added is None else f"{flag},{added}"


def _added(marker: str) -> str | None:
    """What comes on top of the flag's; None for a marker that stands in its place."""
    text = marker.lstrip()
    return text[1:] if text.startswith("+") else None


def checked(options: Mapping[str, object]) -> dict[str, object]:
    """The keywords of the marker gpuperf, as those of TestTraits. Raises UsageFailure."""
    known = ("metrics", "tolerance", "rounds", "repetitions", "limit", "reproducible")
    for key in options:
        if key not in known:
            raise UsageFailure(f'no keyword "{key}"; known are {", ".join(known)}')
    metric_set = options.get("metrics")
    if metric_set is not None:
        _check_metrics(metric_set)
    for name in ("rounds", "repetitions"):
        check_count(name, options.get(name))
    tolerance = options.get("tolerance", {})
    if not isinstance(tolerance, Mapping):
        raise UsageFailure(f'tolerance={tolerance!r}: write a mapping, {{"cycles": "1%"}}')
    for name, written in tolerance.items():
        if name not in catalogue().metrics:
            raise UsageFailure(f'tolerance for "{name}": no such metric (docs/metrics.md)')
        parse(written, catalogue().metrics[name])
    limit = options.get("limit", {})
    if not isinstance(limit, Mapping):
        raise UsageFailure(f'limit={limit!r}: write a mapping, {{"duration": "250ms"}}')
    for name, written in limit.items():
        if name not in catalogue().metrics:
            raise UsageFailure(f'limit for "{name}": no such metric (docs/metrics.md)')
        parse_limit(written, catalogue().metrics[name])
    if "reproducible" in options:
        allowed_distance(options["reproducible"])
    return dict(options)


def check_count(name: str, number: object) -> None:
    """Raises UsageFailure for what is neither None nor a whole number from 1 on."""
    if number is not None and (type(number) is not int or number < 1):
        raise UsageFailure(f"{name}={number!r}: a whole number from 1 on is needed")


def allowed_distance(written: object) -> float | None:
    """How far two losses may be apart, relative to each other; None for any distance.

    `written` is True (the default distance), False (any), or the distance: 0 for the same bits.
    Raises UsageFailure.
    """
    if isinstance(written, bool):
        return REPRODUCIBLE if written else None
    if isinstance(written, (int, float)) and 0 <= written < 1:
        return float(written)
    raise UsageFailure(
        f"reproducible={written!r}: write how far the losses of two executions may be apart, "
        "relative to each other, from 0 to below 1 (0.001 is 0.1 %), or False not to compare them"
    )


def _check_metrics(wanted: object) -> None:
    if not isinstance(wanted, str):
        raise UsageFailure(f'metrics={wanted!r}: write sets and metrics, "reference,pipe_lsu"')
    try:
        catalogue().selected(_added(wanted) or wanted)
    except UsageFailure as error:
        raise UsageFailure(f"metrics={wanted!r}: {error}") from None
