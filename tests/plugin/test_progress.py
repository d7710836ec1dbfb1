"""What a terminal shows while tests measure, and what is left of it when they are done."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.plugin.terminal import outlet
from tests.plugin.projects import Project
from tests.screen import Screen

TESTS = """
    import pytest

    @pytest.mark.parametrize("size", ["small", "a-parameter-that-is-as-long-as-some-are"])
    def test_step(gpuperf, size, capsys):
        gpuperf.measure(lambda: print("from the step"))

    def test_between():
        pass

    def test_that_fails(gpuperf):
        gpuperf.measure(lambda: 1 / 0)

    def test_that_is_interrupted(gpuperf):
        def step():
            raise KeyboardInterrupt
        gpuperf.measure(step)
"""
SAID = "test_step[small]: counting round 1 of 1, pass 1 of 1"


@dataclass(frozen=True)
class Shown:
    """What came of a run of pytest in a terminal."""

    screen: Screen

    @property
    def text(self) -> str:
        """What the screen shows in the end, but for what is another every time."""
        shown = re.sub(r"\d{8}T\d{6}\.\d{6}Z-\d+", "TIME", self.screen.text)
        return re.sub(r"=* (.*) in [0-9.]+s =*", r"\1", shown)

    @property
    def progress(self) -> list[str]:
        """Every line that was written over: pytest's own ends with the number of the tests."""
        return [line for line in self.screen.frames if line and "collect" not in line]


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100, with baselines for anything."""
    project.device()
    project.tests(TESTS)
    project.ini("gpuperf_missing = warn")
    return project


def in_terminal(project: Project, term: str = "xterm") -> Shown:
    """Runs pytest in a terminal of its own, of 80 columns."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    known = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "pytest", "--color=no", "--tb=no"]
    child = subprocess.Popen(
        command,
        cwd=project.root,
        # Alone: the devices of all these projects are one and the same, and have one lock.
        env={**known, "TERM": term, STAND_IN: str(project.root)},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    written = b""
    try:
        while block := os.read(controller, 65536):
            written += block
    except OSError:  # how Linux says that nobody has the terminal any more
        pass
    os.close(controller)
    child.wait()
    screen = Screen(80)
    screen.feed(written.decode())
    return Shown(screen)


def test_the_line_is_there_and_then_it_is_as_if_it_had_not_been(a100: Project) -> None:
    shown, without = in_terminal(a100), in_terminal(a100, term="dumb")
    assert shown.text == without.text
    assert "KeyboardInterrupt" in shown.text
    assert without.progress == []
    assert all(len(line) < 80 for line in shown.progress)
    assert [line.split(": ")[-1] for line in shown.progress] == [SAID.split(": ")[1]] * 4
    assert shown.progress[0] == SAID
    assert shown.progress[2] == SAID.replace("step[small]", "that_fails")


def config(*, terminal: bool = True, verbosity: int = 0, capture: str = "fd", **ini: Any) -> Any:
    """What is asked of pytest before a line is shown."""
    reporter = SimpleNamespace(isatty=terminal)
    plugins = SimpleNamespace(
        getplugin={"terminalreporter": reporter}.get, hasplugin=lambda name: name == "logging"
    )
    return SimpleNamespace(
        pluginmanager=plugins,
        get_verbosity=lambda: verbosity,
        getini=ini.get,
        getoption=lambda name, default=None: capture if name == "capture" else default,
    )


def test_where_others_write_or_nobody_wants_it_there_is_no_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert outlet(config())
    worker = config()
    worker.pluginmanager.getplugin = {}.get
    for other in (
        worker,
        config(verbosity=-1),
        config(terminal=False),
        *(config(capture=way) for way in ("no", "tee-sys")),
        config(log_cli=True),
    ):
        assert outlet(other) is None
