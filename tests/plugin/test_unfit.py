"""On a device that was throttled or shared nothing is judged: the test is skipped, and says why.

`test_judged.py` has what becomes of the session.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.plugin.projects import Project
from tests.scripted_nvml import Gpu, Library

COUNTED = """
    from pathlib import Path

    def step():
        with Path("steps.txt").open("a") as log:
            log.write("x")

    def test_step(gpuperf):
        gpuperf.measure(step)
"""


# Machine or code


def slow_host(project: Project, factor: float) -> str:
    """A flag: a run whose cycles are 1.2 times those of a baseline with a canary, as its DRAM's."""

    def canary(part: float) -> dict[str, Any]:
        return {"canary": {"code": "sm80-1", "readings": {"dram_cycles": part * 4e6}}}

    for name, times, read in (("first", 1.0, 1.0), ("second", 1.2, factor)):
        project.measure_processes(f"{name}.json", *[times] * 3)
        file = project.root / f"{name}.json"
        data = json.loads(file.read_text(encoding="utf-8"))
        for own in data["measurements"]:
            own["fingerprint"]["conditions"] = {"before": canary(read), "after": canary(read)}
        file.write_text(json.dumps(data), encoding="utf-8")
    assert project.update("first.json") == 0
    (project.root / "device.json").unlink()
    return "--gpuperf-replay=second.json"


def test_what_the_canary_explains_is_skipped_and_fails_where_verdicts_are_required(
    a100: Project,
) -> None:
    replay = slow_host(a100, 1.25)
    result = a100.run(replay, "-rs", "--gpuperf-report=report.json")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED  # nothing at all was judged
    says = "gpuperf's reference kernels (canary) changed too: dram_cycles +25 % (4e+06 -> 5e+06) *"
    result.stdout.fnmatch_lines(
        [
            "test_step  * +20.00 %  *machine changed",
            "failed: no measurement was compared (1 machine changed). *",
            "1 not compared (machine changed)",
            f"SKIPPED*: gpuperf: not compared, as the machine changed: cycles +20.00 %; {says}",
        ]
    )
    by_metric = {v.metric: v for v in a100.saved("report.json").verdicts}
    assert by_metric["cycles"].outcome.value == "machine"
    assert by_metric["instructions"].outcome.value == "unchanged"
    result = a100.run(replay, "--gpuperf-require-judged")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpuperf: test_step was not compared*", f"*{says}"])


# A device


def test_an_unfit_device_is_measured_twice_and_not_judged(
    a100: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    a100.tests(COUNTED)
    a100.accept()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    a100.device(factors={"": {"cycles": 2}})
    # At its power cap (0x04) it is fit.
    for bits, steps, outcome in ((0x40, 2, "skipped"), (0x08, 2, "skipped"), (0x04, 1, "failed")):
        (a100.root / "steps.txt").unlink()
        monkeypatch.setitem(sys.modules, "pynvml", Library([Gpu(reasons=bits)]))
        result = a100.run("--gpuperf-processes=1")
        result.assert_outcomes(**{outcome: 1})
        assert (a100.root / "steps.txt").read_text(encoding="utf-8") == "x" * steps


def test_an_unfit_device_gets_no_baseline(a100: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", Library([Gpu(reasons=0x40)]))
    result = a100.run("--gpuperf-missing=record")
    result.assert_outcomes(skipped=1)
    assert result.ret == 0  # there was nothing to be judged against
    assert not a100.has_baseline()
    (verdict,) = (v for v in a100.saved().verdicts if v.metric == "cycles")
    assert (verdict.outcome.value, verdict.reason) == ("unfit", "device-unfit")
