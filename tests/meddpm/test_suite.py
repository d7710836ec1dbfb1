"""The Med-DDPM suite under pytest: on a scripted A100, on the CPU, and with bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.storage import run_files
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import ALONE, CHAIN, OPTIMIZATIONS, PAPER
from tests import ROOT
from tests.plugin import scripted
from tests.plugin.projects import Project, refused

CHECKOUT = ROOT
SMALL = ("suites/meddpm/test_training.py", "--meddpm-data=synthetic", "--meddpm-size=16")
TRAINED = len(OPTIMIZATIONS) + len(CLAIMS)
"""Tests of the training step and of claims about it."""
BASELINE = Path("baselines/sm80/nvidia-a100-sxm4-80gb/meddpm.yaml")


@pytest.fixture
def checkout(project: Project) -> Project:
    """A checkout of ours without baselines, whose suite has a network that is quick to train."""
    kept = shutil.ignore_patterns("__pycache__")
    shutil.copytree(CHECKOUT / "suites", project.root / "suites", ignore=kept)
    shutil.copy(CHECKOUT / "conftest.py", project.root)
    edit(
        project,
        "conftest.py",
        "diffusion = med_ddpm(NETWORK_SIZE)",
        """from suites.meddpm.model import GaussianDiffusion3D, UNet3D
    diffusion = GaussianDiffusion3D(
        UNet3D(3, 1, model_channels=32, channel_multipliers=(1, 2), attention_factors=(2,))
    )""",
    )
    return project


def edit(checkout: Project, name: str, old: str, new: str) -> None:
    """Changes the source of the checkout's suite."""
    file = checkout.root / "suites" / "meddpm" / name
    source = file.read_text(encoding="utf-8")
    assert source.count(old) == 1
    file.write_text(source.replace(old, new), encoding="utf-8")


def a100(checkout: Project, **script: Any) -> tuple[str, ...]:
    """Makes the machine an A100; returns pytest's arguments that measure on it."""
    shutil.copy(scripted.__file__, checkout.root / "scripted.py")
    # The step is a real one of torch; only its numbers are made up.
    device = json.dumps({"torch": True, **script})
    (checkout.root / "device.json").write_text(device, encoding="utf-8")
    # The claims are about real devices, and what is beyond the paper needs one.
    tests = ["test_claim"]
    tests += [f"test_training_step[{name}]" for name in OPTIMIZATIONS if name not in PAPER]
    others = [f"--deselect=suites/meddpm/test_training.py::{test}" for test in tests]
    return ("-p", "scripted", "--gpu-arch", "sm80", *SMALL, *others)


def test_on_an_a100_from_no_baseline_to_a_regression(checkout: Project) -> None:
    # Without a baseline every configuration fails and says which two commands make one.
    result = checkout.run_apart(*a100(checkout), "--gpuperf-run=first.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=len(PAPER))
    result.stdout.fnmatch_lines(
        [
            "*has no baseline on NVIDIA A100-SXM4-80GB (sm80)",
            f"*{BASELINE} does not exist",
            "*gpuperf record --processes 5 -- *--gpu-arch sm80 suites/meddpm*",
            '*gpuperf update-baseline --reason "first baseline"',
        ]
    )
    measured = checkout.saved("first.json").measurements
    assert [measurement.configuration for measurement in measured] == list(PAPER)
    (workload,) = {tuple(measurement.workload.items()) for measurement in measured}
    assert dict(workload) == {"size": 16, "batch": 1, "data": "synthetic", "weights": "seeded"}
    assert {sample.phase for sample in measured[0].samples} == {
        *("step", "forward", "backward", "optimizer")
    }

    # Accepted, it is what the next run is compared with.
    assert checkout.update("first.json") == 0
    result = checkout.run_apart(*a100(checkout))
    assert result.ret == 0
    result.assert_outcomes(passed=len(PAPER))

    # TF32 that does nothing is named by configuration, metric and numbers.
    broken = {"factors": {"[tf32]": {"cycles": 5}}}
    result = checkout.run_apart(*a100(checkout, **broken))
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=len(PAPER) - 1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_training_step[[]tf32[]] regressed on NVIDIA A100-SXM4-80GB (sm80)",
            "configuration: tf32",
            "*metric*baseline*measured*change*tolerance*verdict",
            "*cycles*400.00 M*2.0000 G*x5*0.5 %*regressed",
            "  cycles by phase: forward x5, backward x5, optimizer x5",
        ]
    )


def test_on_the_cpu_a_conversion_too_many_is_a_regression(checkout: Project) -> None:
    one = ("--gpu-arch=cpu", *SMALL, "-k", "test_training_step[channels_last]")
    assert checkout.run_apart(*one, "--gpuperf-missing=record").ret == 0
    result = checkout.run_apart(*one)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*on portable (cpu)", "*flops*unchanged", "*layout_copies*unchanged"]
    )

    converted = "self.in_layers(x.contiguous(memory_format=torch.channels_last_3d))"
    edit(checkout, "model/layers.py", "self.in_layers(x)", converted)
    result = checkout.run_apart(*one)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_training_step[[]channels_last[]] regressed on portable (cpu)",
            "configuration: channels_last",
            "*layout_copies*regressed",
        ]
    )


def test_other_compositions_are_measured_when_they_are_asked_for(checkout: Project) -> None:
    name = "channels_last+sdpa"
    flags = (f"--meddpm-configuration={name}", "--gpuperf-missing=warn", "--gpuperf-run=run.json")
    result = checkout.run_apart(*a100(checkout), *flags, "-k", f"[{name}]")
    assert result.ret == 0
    (measured,) = checkout.saved("run.json").measurements
    assert measured.configuration == name
    seconds = measured.fingerprint.settings["first_call_s"]
    assert isinstance(seconds, float)
    assert seconds > 0


def test_on_a_cpu_those_beyond_the_paper_are_skipped_with_the_reason(checkout: Project) -> None:
    arguments = ("--gpu-arch=cpu", *SMALL, "-rs", "-k", "sdpa or cuda_graph")
    result = checkout.run_apart(*arguments)
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*: cuda_graph: needs a GPU",
            "SKIPPED*: tf32+sdpa: what it changes is how a GPU works; a CPU counts baseline, *",
        ]
    )


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tf33", 'configuration "tf33": there is no part "tf33"'),
        ("ieee+tf32", 'configuration "ieee+tf32": ieee and tf32 contradict each other'),
    ],
)
def test_a_composition_that_makes_no_sense_is_a_usage_error(
    name: str, says: str, checkout: Project
) -> None:
    text = refused(checkout.run_apart("suites/meddpm", f"--meddpm-configuration={name}"))
    assert f"--meddpm-configuration: {says}" in text


def test_sampling_is_measured_by_the_step_and_by_the_chain(checkout: Project) -> None:
    arguments = a100(checkout, counters={"cycles": 1e6})
    sampling = ("suites/meddpm/test_sampling.py", "--meddpm-steps=3", "-k", "[tf32]")
    arguments = (*(a for a in arguments if a != SMALL[0]), *sampling)
    result = checkout.run_apart(*arguments, "--gpuperf-no-judge", "--gpuperf-run=sampled.json")
    result.assert_outcomes(passed=2, deselected=len(OPTIMIZATIONS) + len(CHAIN) - 2)
    step, chain = checkout.saved("sampled.json").measurements
    workload = {"size": 16, "batch": 1, "data": "synthetic", "weights": "seeded"}
    assert (dict(step.workload), step.configuration) == (workload, "tf32_sampling")
    assert dict(chain.workload) == {**workload, "steps": 3}
    assert chain.configuration == "tf32_chain"


def test_without_a_gpu_sampling_is_skipped_and_quality_is_not(checkout: Project) -> None:
    short = ("--meddpm-data=synthetic", "--meddpm-steps=2", "--meddpm-curve-steps=2", "-rs")
    names = "(sampling or quality) and [tf32]"
    result = checkout.run_apart("suites/meddpm", "--gpu-arch=cpu", *short, "-k", names)
    others = 4 * len(OPTIMIZATIONS) + len(ALONE) + len(CHAIN) - 5 + TRAINED
    result.assert_outcomes(passed=3, skipped=2, deselected=others)
    assert str(result.stdout).count("needs a GPU") == 2


def test_an_optimizer_has_nothing_to_do_with_sampling(checkout: Project) -> None:
    arguments = a100(checkout)
    sampling = ("suites/meddpm/test_sampling.py", "-k", "[tf32+fused_adam]", "-rs")
    result = checkout.run_apart(*(a for a in arguments if a != SMALL[0]), *sampling)
    result.assert_outcomes(skipped=1, deselected=len(OPTIMIZATIONS) + len(CHAIN) - 1)
    result.stdout.fnmatch_lines(["SKIPPED*tf32+fused_adam: without an optimizer it is tf32*"])


def test_a_recorded_run_has_no_quality_to_look_at(checkout: Project) -> None:
    """Its numbers are there, the network's are not."""
    a100(checkout)
    quality = ("suites/meddpm/test_quality.py", "-k", "[baseline]", "-rs")
    result = checkout.run_apart("-p", "scripted", *quality)
    result.assert_outcomes(skipped=3, deselected=3 * len(OPTIMIZATIONS) + len(ALONE) - 3)
    result.stdout.fnmatch_lines(["SKIPPED*only a device computes them"])


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--meddpm-size=17", "--meddpm-size 17: a multiple of 16 is needed, from 16 on"),
        ("--meddpm-size=0", "--meddpm-size 0: a multiple of 16 is needed, from 16 on"),
        ("--meddpm-steps=0", "--meddpm-steps 0: the process has 1 to 250"),
        ("--meddpm-steps=251", "--meddpm-steps 251: the process has 1 to 250"),
        ("--meddpm-curve-steps=0", "--meddpm-curve-steps 0: at least 1 is needed"),
    ],
)
def test_a_number_that_the_suite_cannot_take_is_a_usage_error(
    flag: str, says: str, checkout: Project
) -> None:
    assert says in refused(checkout.run_apart("suites/meddpm", flag))


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--meddpm-data=nowhere", "nowhere: "),
        ("--meddpm-weights=nowhere.pt", "nowhere.pt: there is no such file"),
        ("--meddpm-weights=broken.pt", "broken.pt: cannot be read as weights"),
    ],
)
def test_bad_input_is_a_usage_error_that_names_the_file(
    flag: str, says: str, checkout: Project
) -> None:
    (checkout.root / "broken.pt").write_bytes(b"PK\x03\x04 no weights")
    result = checkout.run_apart(*a100(checkout), "-k", "test_training_step[baseline]", flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(errors=1, deselected=len(OPTIMIZATIONS) - 1 + len(CLAIMS))
    result.stdout.fnmatch_lines([f"gpuperf: *{says}*", f"refused: *{says}*"])
    assert not (checkout.root / run_files.FOLDER).exists()
