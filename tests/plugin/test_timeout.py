"""pytest-timeout beside fresh processes, whose time it does not count."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.plugin.projects import CONFTEST, Project

HANGS = """
    import signal, time

    def hang():
        # The time is over at once: as pytest-timeout ends it, and nobody waits for that.
        signal.raise_signal(signal.SIGALRM)
        time.sleep(600)

    def test_step(gpuperf):
        gpuperf.measure(lambda: None, name="first")
        gpuperf.measure(hang, name="second")
"""

NOTING = """
import os

import pytest

def note(text):
    if "GPUPERF_PARENT" not in ENVIRONMENT:
        with open("timers", "a") as timers:
            print(text, file=timers)

ENVIRONMENT = dict(os.environ)

@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    note(f"set={settings.timeout}")

@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item):
    note("cancel")
"""
"""Notes what becomes of the timer."""


@pytest.fixture
def a100(a100: Project) -> Project:
    """A project with a baseline on a scripted A100, whose cycles are 10 % worse now."""
    a100.accept_processes(*[1.0] * 5)
    a100.device(factors={"": {"cycles": 1.1}})
    return a100


def test_time_in_fresh_processes_is_not_counted(a100: Project) -> None:
    """The timer is cancelled for them, and begins anew after that."""
    a100.pytester.makeconftest(f"{dedent(CONFTEST)}{NOTING}")
    result = a100.run("-p", "timeout", "--timeout=600")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpuperf: cycles +10.00 % on *"])
    timers = (a100.root / "timers").read_text(encoding="utf-8").split()
    assert timers[:4] == ["set=600.0", "cancel", "set=600.0", "cancel"]


def test_a_step_that_hangs_in_the_session_is_ended_by_pytest_timeout_and_the_rest_is_kept(
    a100: Project,
) -> None:
    a100.device()
    a100.tests(HANGS)
    flags = ("--gpuperf-missing=warn", "--timeout=600", "--timeout-method=signal")
    result = a100.run_apart("-p", "timeout", *flags)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = str(result.stdout) + str(result.stderr)
    assert "signal.raise_signal(signal.SIGALRM)" in said
    assert [measurement.name for measurement in a100.saved().measurements] == ["first"]
