"""pytest's terminal, as far as progress appears there."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from pytest_gpuperf.display import Below, Nowhere, Occasional, Outlet

_DUMB = "dumb"


def outlet(config: Any) -> Outlet:
    """Where progress appears in the session of this pytest.Config, past the capture of output.

    Nowhere under -q, and in a worker of xdist, which has no reporter.
    """
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return Nowhere()

    def columns() -> int:
        with _uncaptured(config):  # the size is asked of stdout
            return int(reporter._tw.fullwidth)

    def write(text: str) -> None:
        with _uncaptured(config):
            sys.stdout.write(text)
            sys.stdout.flush()

    def say(text: str) -> None:
        with _uncaptured(config):
            reporter.ensure_newline()
            reporter.write_line(text)

    obeys = reporter.isatty and os.environ.get("TERM", _DUMB) != _DUMB
    if obeys and not _others_print(config):
        return Below(write, columns, lambda: int(reporter._tw.width_of_current_line))
    return Occasional(say, columns)


def _uncaptured(config: Any) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _others_print(config: Any) -> bool:
    """Whether what tests print, or log, appears while they run: then no line can be erased."""
    logged = config.pluginmanager.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level") is not None
    )
    return bool(logged) or config.getoption("capture", "no") not in ("fd", "sys")
