"""Projects to run pytest on: a scripted device, tests that measure on it, and what came of it."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pydantic
import pytest
import scipy.stats
import torch
import yaml

from pytest_gpuperf import __main__
from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.commands import record
from pytest_gpuperf.commands import update_baseline as shown
from pytest_gpuperf.measure import instrument
from pytest_gpuperf.measure.cpu import cpu_collector, dispatch
from pytest_gpuperf.measure.device import fingerprint
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.plugin import fixture, ledger
from pytest_gpuperf.storage.run_files import FOLDER, load
from tests import ALONE, ROOT
from tests.plugin import scripted

LOADED = (
    *(np, pydantic, scipy.stats, torch, yaml),
    *(acceptance, cpu_collector, dispatch, fingerprint, fixture, ledger, record, shown, instrument),
)
"""Loaded before the first project runs in this process: pytester forgets the modules that are
imported under it, and most of these cannot be imported twice."""

STEP = """
    def test_step(gpuperf):
        gpuperf.measure(lambda: None)
"""
CONFTEST = f"""
    import sys

    sys.path.append({str(ROOT)!r})
    from {scripted.__name__} import pytest_gpuperf_collector
"""
BASELINE = Path("baselines/sm80/nvidia-a100-sxm4-80gb")


@dataclass(frozen=True)
class Project:
    """A folder with tests, which runs under pytest."""

    pytester: pytest.Pytester

    @property
    def root(self) -> Path:
        """The root directory."""
        return self.pytester.path

    def device(self, **script: Any) -> None:
        """Puts a scripted device into the project: an A100, but for what `script` says."""
        self.pytester.makeconftest(CONFTEST)
        (self.root / "device.json").write_text(json.dumps(script), encoding="utf-8")

    def conftest(self, more: str) -> None:
        """Adds to the conftest file."""
        with (self.root / "conftest.py").open("a", encoding="utf-8") as file:
            file.write(dedent(more))

    def tests(self, source: str, name: str = "test_steps") -> None:
        """Writes a test file."""
        self.pytester.makepyfile(**{name: source})

    def ini(self, *lines: str) -> None:
        """Writes the project's settings, beside those that every project here has."""
        settings = ("[pytest]", f"addopts = --strict-markers {ALONE}", "filterwarnings = error")
        self.pytester.makeini("\n".join((*settings, *lines)))

    def run(self, *arguments: str) -> pytest.RunResult:
        """Runs pytest in this process."""
        return self.pytester.runpytest_inprocess(*arguments)

    def run_apart(self, *arguments: str) -> pytest.RunResult:
        """Runs pytest in a process of its own."""
        return self.pytester.runpytest_subprocess(*arguments)

    def gpuperf(self, *arguments: str) -> pytest.RunResult:
        """Runs the command, in a process of its own."""
        return self.pytester.run(sys.executable, "-m", "pytest_gpuperf", *arguments)

    def accept(self, *arguments: str) -> None:
        """Measures, and makes that the baseline."""
        measured = self.run(*arguments, "--gpuperf-no-judge", "--gpuperf-run=accepted.json")
        assert measured.ret == 0
        assert self.update("accepted.json") == 0

    def accept_processes(self, *cycles: float, kernels: bool = False, selected: str = "") -> None:
        """Measures, and makes a baseline of it that has a process for each factor of the cycles.

        `selected`: of those tests alone, as -k has it.
        """
        self.measure_processes("accepted.json", *cycles, kernels=kernels, selected=selected)
        assert self.update("accepted.json") == 0

    def measure_processes(
        self, name: str, *cycles: float, kernels: bool = False, selected: str = ""
    ) -> None:
        """Measures, and makes a run of it that has a process for each factor of the cycles.

        `kernels`: the first of them has a kernel table.
        """
        when = "always" if kernels else "never"
        measured = self.run(
            "--gpuperf-no-judge",
            f"--gpuperf-run={name}",
            f"--gpuperf-kernels={when}",
            "-k",
            selected,
        )
        assert measured.ret == 0
        file = self.root / name
        data = json.loads(file.read_text(encoding="utf-8"))
        once = data["measurements"]
        data["measurements"] = []
        for number, factor in enumerate(cycles):
            for measurement in copy.deepcopy(once):
                measurement["process"] = f"p{number}"
                measurement["kernels"] = None if number else measurement["kernels"]
                for sample in measurement["samples"]:
                    if sample["metric"] == "cycles":
                        sample["values"] = [factor * value for value in sample["values"]]
                data["measurements"].append(measurement)
        file.write_text(json.dumps(data), encoding="utf-8")

    def replay(self, *arguments: str, factor: float = 1.0, **script: Any) -> pytest.RunResult:
        """Measures once as `script` says, and judges it as if three processes had measured that.

        What takes three processes to be seen needs no fresh ones here. `factor` is that of cycles.
        """
        self.device(**script)
        self.measure_processes("replayed.json", *[factor] * 3, kernels=bool(script.get("kernels")))
        return self.run(
            "--gpuperf-replay=replayed.json", "--gpuperf-report=judged.json", *arguments
        )

    def update(self, *names: str) -> int:
        """Accepts runs as the baseline."""
        # One process is enough for a scripted device, which has no noise.
        reason = ("--reason", "accepted in a test", "--yes", "--force")
        return __main__.main(["update-baseline", *names, *reason])

    def run_files(self) -> list[Path]:
        """The runs that were saved in their default place."""
        return sorted((self.root / FOLDER).glob("*.json"))

    def saved(self, name: str | None = None) -> Run:
        """A run that was saved: the one of this name, or the only one in the default place."""
        if name is None:
            (file,) = self.run_files()
            return load(file)
        return load(self.root / name)

    def baseline_text(self, suite: str = "test_steps") -> str:
        """The baseline file of the scripted A100, as it is written."""
        return (self.root / BASELINE / f"{suite}.yaml").read_text(encoding="utf-8")

    def has_baseline(self, suite: str = "test_steps") -> bool:
        """Whether there is a baseline file of the scripted A100."""
        return (self.root / BASELINE / f"{suite}.yaml").exists()


def refused(result: pytest.RunResult) -> str:
    """What a usage error says. The exit code is 4, and no test has run."""
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = str(result.stderr) + str(result.stdout)
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    return " ".join(text.split())
