"""A test's traits: the checked options for its measurements, from its path and its markers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue, no_metric
from pytest_gpuperf.errors import GpuperfError, UsageFailure, meant
from pytest_gpuperf.judge.tolerance import parse, parse_limit
from pytest_gpuperf.measure.collector import REPRODUCIBLE
from pytest_gpuperf.storage.baseline_files import suite_of

if TYPE_CHECKING:
    import pytest

    from pytest_gpuperf.model.measurement import Device

_Value = TypeVar("_Value", str, int)
_KEYWORDS = ("metrics", "tolerance", "rounds", "repetitions", "limit", "reproducible")


@dataclass(frozen=True)
class MarkerOptions:
    """The options for a test's measurements, from its path and its markers."""

    nodeid: str
    suite: str
    configuration: str = ""
    metrics: str | None = None
    """Sets and metrics instead of the flag's; beside them with a "+" in front."""
    tolerance: Mapping[str, str] = field(default_factory=dict)
    rounds: int | None = None
    repetitions: int | None = None
    limit: Mapping[str, object] = field(default_factory=dict)
    """The limits as the test's author wrote them, by metric; `judge/tolerance.py` reads them."""
    reproducible: float | bool = True
    """How far the losses of two executions may be apart; True: `REPRODUCIBLE`, False: any."""

    def measured(self, flag: str) -> str:
        """The sets and metrics to measure where `--gpuperf-metrics` says `flag`."""
        if self.metrics is None:
            return flag
        text = self.metrics.lstrip()
        return f"{flag},{text[1:]}" if text.startswith("+") else self.metrics


def traits_of(item: pytest.Item) -> MarkerOptions:
    """Reads a test's place and markers. Raises UsageFailure for a marker that makes no sense."""
    suite = suite_of(item.nodeid)
    with _named(item, "gpu_arch"):
        for marker in item.iter_markers("gpu_arch"):
            if not marker.args or marker.kwargs or not all(isinstance(a, str) for a in marker.args):
                raise UsageFailure('name architectures, for example ("sm80", "sm90") or ("sm80+")')
            for pattern in marker.args:
                architectures.matches(pattern, architectures.CPU)
    configuration = _only_argument(item, "optimization", 'one name, for example "tf32"', "")
    gpus_of(item)
    options: dict[str, object] = {}
    for marker in reversed(list(item.iter_markers("gpuperf"))):
        if marker.args:
            raise UsageFailure(
                f"{item.nodeid}: the marker gpuperf takes keywords only, not {marker.args[0]!r}"
            )
        options.update(marker.kwargs)
    with _named(item, "gpuperf"):
        return MarkerOptions(item.nodeid, suite, configuration, **checked(options))  # type: ignore[arg-type]


@contextmanager
def _named(item: pytest.Item, marker: str) -> Iterator[None]:
    """Adds the names of the test and of this marker to each error that the block raises."""
    try:
        yield
    except GpuperfError as error:
        raise UsageFailure(f"{item.nodeid}: @pytest.mark.{marker}: {error}") from None


def gpus_of(item: pytest.Item) -> int:
    """The number of GPUs of the test, by its marker. Raises UsageFailure for an invalid number."""
    count = _only_argument(item, "gpus", "one number, for example 2", 1)
    with _named(item, "gpus"):
        check_count("n", count)
    return count


def _only_argument(item: pytest.Item, name: str, takes: str, default: _Value) -> _Value:
    """The argument of the closest marker of this name. Raises UsageFailure for others or none."""
    marker = item.get_closest_marker(name)
    given = (default,) if marker is None else marker.args
    if len(given) != 1 or (marker and marker.kwargs) or not isinstance(given[0], type(default)):
        raise UsageFailure(f"{item.nodeid}: the marker {name} takes {takes}")
    return given[0]


def elsewhere(item: pytest.Item, device: Device, gpus: Sequence[str] | None = None) -> str:
    """Why `item` cannot run on `device`, by its markers; "" when it can.

    `gpus` are the GPUs that the test may have, None for any number.
    """
    if item.get_closest_marker("gpu") and device.arch == architectures.CPU:
        return "needs a GPU, but this machine has none, or --gpu-arch cpu is set"
    for marker in item.iter_markers("gpu_arch"):
        if not any(architectures.matches(pattern, device.arch) for pattern in marker.args):
            return f"runs only on {', '.join(marker.args)}, but this device is {device.arch}"
    wanted = gpus_of(item)
    if gpus is not None and wanted > max(len(gpus), 1):
        return f"needs {wanted} GPUs of one kind, but only {len(gpus)} are available"
    return ""


def checked(options: Mapping[str, object]) -> dict[str, object]:
    """The keywords of the marker gpuperf, as fields of MarkerOptions. Raises UsageFailure."""
    for key in options:
        if key not in _KEYWORDS:
            raise UsageFailure(
                f'unknown keyword "{key}". Use {", ".join(_KEYWORDS)}.{meant(key, _KEYWORDS)}'
            )
    if options.get("metrics") is not None:
        _check_metrics(options["metrics"])
    for name in ("rounds", "repetitions"):
        check_count(name, options.get(name))
    for keyword, example, read in (
        ("tolerance", '{"cycles": "1%"}', parse),
        ("limit", '{"duration": "250ms"}', parse_limit),
    ):
        mapping = options.get(keyword, {})
        if not isinstance(mapping, Mapping):
            raise UsageFailure(f"{keyword}={mapping!r} must be a mapping, such as {example}")
        for name, written in mapping.items():
            if name not in catalogue().metrics:
                raise UsageFailure(f'{keyword} for "{name}": {no_metric(name)}')
            read(written, catalogue().metrics[name])
    if "reproducible" in options:
        allowed_distance(options["reproducible"])
    return dict(options)


def check_count(name: str, number: object) -> None:
    """Raises UsageFailure for a value that is neither None nor a whole number from 1 on."""
    if number is not None and (type(number) is not int or number < 1):
        raise UsageFailure(f"{name}={number!r} must be a whole number from 1 on")


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
        f"reproducible={written!r} must be the allowed relative difference of two losses, from 0 "
        "to below 1 (0.001 is 0.1 %), or False to compare no losses"
    )


def _check_metrics(wanted: object) -> None:
    if not isinstance(wanted, str):
        raise UsageFailure(f'metrics={wanted!r} must be sets and metrics: "reference,pipe_lsu"')
    try:
        catalogue().selected(wanted.lstrip().removeprefix("+") or wanted)
    except UsageFailure as error:
        raise UsageFailure(f"metrics={wanted!r}: {error}") from None
