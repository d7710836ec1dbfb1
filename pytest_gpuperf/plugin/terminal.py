"""The terminal of a session, past pytest's capture of output: its width, and progress on it."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_gpuperf.report.text.progress import Outlet


def outlet(config: Any) -> Outlet | None:
    """Where progress appears in the session of this pytest.Config, past the capture of output.

    None under -q, without a terminal, if others print while tests run, and in a worker of xdist,
    which has no reporter.
    """
    from pytest_gpuperf.report.text.progress import Outlet, obeys

    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None or config.get_verbosity() < 0:
        return None
    if not obeys(reporter.isatty) or _others_print(config):
        return None

    def write(text: str) -> None:
        with _uncaptured(config):
            sys.stdout.write(text)
            sys.stdout.flush()

    return Outlet(write, partial(columns, config), lambda: int(reporter._tw.width_of_current_line))


def columns(config: Any) -> int:
    """How wide the terminal of the session of this pytest.Config is, past the capture of output."""
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if reporter is None:
        from pytest_gpuperf.report.text.table import WIDTH

        return WIDTH
    with _uncaptured(config):  # the size is asked of stdout
        return int(reporter._tw.fullwidth)


def _uncaptured(config: Any) -> AbstractContextManager[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if capture else nullcontext()


def _others_print(config: Any) -> bool:
    """Whether output or logs of tests appear while they run: then no line can be erased."""
    logged = config.pluginmanager.hasplugin("logging") and (
        config.getini("log_cli") or config.getoption("log_cli_level") is not None
    )
    return bool(logged) or config.getoption("capture", "no") not in ("fd", "sys")
