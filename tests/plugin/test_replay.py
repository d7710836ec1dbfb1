"""A recorded run is judged in place of a device."""

from __future__ import annotations

import json

import pytest

from tests.examples import HOSTILE
from tests.plugin.projects import STEP, Project
from tests.workflow_commands import harmless


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with a baseline of an A100 and runs of it, but without the device."""
    project.device()
    project.tests(STEP)
    project.accept()
    project.measure_processes("run.json", 1.0)
    project.measure_processes("slower.json", *[2.0] * 3)
    (project.root / "device.json").unlink()
    return project


def test_what_the_run_has_is_judged_and_the_step_is_not_run(recorded: Project) -> None:
    recorded.tests(
        """
        def step():
            raise AssertionError("ran")

        def test_step(gpuperf):
            gpuperf.measure(step)
        """
    )
    result = recorded.run("--gpuperf-replay=run.json", "--gpu-arch=sm80")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["NVIDIA A100-SXM4-80GB (sm80), *", "test_step  step_time *0 %*unchanged"]
    )
    assert not recorded.run_files()  # it is not saved again


def test_names_are_shown_and_never_obeyed(recorded: Project) -> None:
    """Whether they are the run's, the baseline's or the test's own, and on GitHub too."""
    file = recorded.root / "slower.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for measured in data["measurements"]:
        measured["configuration"] = HOSTILE
        measured["fingerprint"]["software"] = {"torch": HOSTILE, HOSTILE: "1"}
        measured["unsupported"] = [{"metric": "instructions", "reason": HOSTILE}]
    file.write_text(json.dumps(data), encoding="utf-8")
    replay = ("--gpuperf-replay=slower.json", "-p", "no:pastebin")
    for flags, said in (
        ((), "regressed"),
        (("--gpuperf-missing=warn", "--gpuperf-baselines=none", "-rA"), "no baseline"),
        ((f"--gpuperf-report={HOSTILE}.md",), r"\x1b]0;title"),
    ):
        result = recorded.run(*replay, *flags)
        assert said in str(result.stdout)
        assert harmless(str(result.stdout) + str(result.stderr)), flags
