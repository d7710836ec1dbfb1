"""Flags and ini settings, read into one frozen `Settings`, which declares them.

Every flag has an ini twin: `--gpuperf-rounds` is `gpuperf_rounds`. The command line wins over the
ini file, the ini file over the default. A bad value is a usage error (exit code 4) that names where
it came from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import Field, fields
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.settings import METRIC_SETS, Settings

REPORT_SUFFIXES = (".html", ".md", ".json")  # report/interchange.py, imported when one is written
_SWITCH, _LIST = "bool", "tuple[Path, ...]"
"""Types of fields that have an own kind of value in the ini file."""
_KINDS: dict[str, tuple[str, Any, Any]] = {
    _SWITCH: ("store_true", "bool", False),
    _LIST: ("append", "args", []),
}
"""argparse's action for such a field, the type of its ini setting, and the default of that."""


class Flag(SimpleNamespace):
    """A flag of pytest's command line, as a field of the settings declares it."""

    name: str
    text: str
    choices: tuple[str, ...]
    metavar: str | None
    ini: str
    dest: str


def flags() -> Iterator[tuple[Field[Any], Flag]]:
    """Every field of the settings that has a flag, and the flag."""
    return ((one, Flag(**one.metadata)) for one in fields(Settings) if one.metadata)


def default(one: Field[Any]) -> str:
    """The default value of a field as a user would type it; "" for none."""
    unset = one.default is None or one.type in (_SWITCH, _LIST)
    return "" if unset else str(one.default)


def add_options(parser: pytest.Parser) -> None:
    """Registers the flags, in one group, and their ini twins."""
    group = parser.getgroup("gpuperf", "GPU performance (pytest-gpuperf)")
    for one, flag in flags():
        action, ini, unset = _KINDS.get(str(one.type), ("store", "string", default(one)))
        takes = {"metavar": flag.metavar, "choices": flag.choices or None}
        group.addoption(
            flag.name,
            dest=flag.dest,
            action=action,
            default=None,
            help=f"{flag.text} (ini: {flag.ini})",
            **(takes if one.type != _SWITCH else {}),
        )
        parser.addini(flag.ini, flag.text, type=ini, default=unset)


def any_given(config: pytest.Config) -> bool:
    """Whether a flag of ours was typed, or an ini setting differs from its default."""
    return any(
        config.getoption(flag.dest) is not None
        or config.getini(flag.ini) not in (default(one), [], False)
        for one, flag in flags()
    )


def read_settings(config: pytest.Config) -> Settings:
    """The settings of this invocation. Raises pytest.UsageError for a bad value."""
    values: dict[str, Any] = {one.name: _value(config, one, flag) for one, flag in flags()}
    settings = Settings(root=config.rootpath, **values)
    _check_replay(settings)
    _check_metrics(config, settings.metrics)
    for report in settings.reports:
        if report.suffix not in REPORT_SUFFIXES:
            raise pytest.UsageError(
                f'--gpuperf-report {report.name}: "{report.suffix}" is not a report format. '
                f"Use the suffix {', '.join(REPORT_SUFFIXES)}"
            )
    return settings


def check_verdicts(config: pytest.Config, settings: Settings) -> None:
    """Raises pytest.UsageError where verdicts are required but judging is switched off."""
    if settings.require_judged and not settings.judge:
        raise pytest.UsageError(
            f"{_source(config, _flag('require_judged'))} fails tests that are not compared, and "
            f"{_source(config, _flag('judge'))} compares none. Leave one of the two out"
        )


def _flag(name: str) -> Flag:
    """The flag of a field."""
    return next(flag for one, flag in flags() if one.name == name)


def _source(config: pytest.Config, flag: Flag) -> str:
    """The source of a flag's value: the flag as typed, or the ini setting."""
    typed = config.getoption(flag.dest) is not None
    return flag.name if typed else f"ini setting {flag.ini}"


def _check_replay(settings: Settings) -> None:
    if settings.replay and settings.collector not in ("auto", "replay"):
        raise pytest.UsageError(
            f"--gpuperf-replay reads a recorded run, so --gpuperf-collector {settings.collector} "
            "cannot measure too. Leave one of the two out"
        )
    if settings.collector == "replay" and not settings.replay:
        raise pytest.UsageError("--gpuperf-collector replay needs a run. Add --gpuperf-replay RUN")


def _check_metrics(config: pytest.Config, wanted: str) -> None:
    """Checks that sets and metrics exist; for a set alone the catalogue is not read."""
    if wanted in METRIC_SETS:
        return
    from pytest_gpuperf.catalogue.metric_catalogue import catalogue

    try:
        catalogue().selected(wanted)
    except UsageFailure as error:
        raise pytest.UsageError(f"{_source(config, _flag('metrics'))}: {error}") from None


def _value(config: pytest.Config, one: Field[Any], flag: Flag) -> object:
    """The value of a field. A typed path starts at the working directory, another at the root."""
    typed = config.getoption(flag.dest)
    folder = config.rootpath if typed is None else config.invocation_params.dir
    if one.type == _SWITCH:
        return _switched(config, flag) is not one.default
    if one.type == _LIST:
        return tuple(folder / name for name in typed or config.getini(flag.ini))
    written = str(config.getini(flag.ini) if typed is None else typed)
    # argparse has checked the flag; this is for the ini file.
    if flag.choices and written not in flag.choices:
        raise pytest.UsageError(
            f"ini setting {flag.ini} = {written}: choose from {', '.join(flag.choices)}"
        )
    if one.type in ("int", "float"):
        return _positive(written, _source(config, flag))
    if one.type == "Path":
        return folder / written
    if one.type == "Path | None":
        return folder / written if written else None
    return written


def _positive(written: str, source: str) -> int:
    try:
        number = int(written)
    except ValueError:
        number = 0
    if number < 1:
        raise pytest.UsageError(f"{source} takes a whole number from 1 on, not {written!r}")
    return number


def _switched(config: pytest.Config, flag: Flag) -> bool:
    try:
        return bool(config.getoption(flag.dest) or config.getini(flag.ini))
    except (ValueError, pytest.UsageError) as error:  # before and from pytest 9
        raise pytest.UsageError(f"ini setting {flag.ini}: {error}") from None
