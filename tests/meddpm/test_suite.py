"""The Med-DDPM suite under pytest: on a scripted A100, on the CPU, and with bad input."""

from __future__ import annotations

import shutil

import pytest

from pytest_gpuperf.storage import run_files
from suites.meddpm import conftest, data, model, optimizations
from suites.meddpm.claims import CLAIMS
from suites.meddpm.optimizations import OPTIMIZATIONS
from tests.claims import groups_of
from tests.meddpm import small
from tests.one_flag import one_flag
from tests.plugin import scripted
from tests.plugin.projects import Project

TRAINING, SAMPLING, QUALITY = (
    f"suites/meddpm/test_{name}.py" for name in ("training", "sampling", "quality")
)
SMALL = ("--everything", "--meddpm-data=synthetic", "--meddpm-size=16")


@pytest.fixture(autouse=True)
def small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite has a network that is quick to train."""
    monkeypatch.setattr(model, "med_ddpm", lambda _: small.network())


@pytest.fixture
def small_volumes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And volumes, whatever the flags say."""
    monkeypatch.setattr(data, "load", lambda *_: small.volumes())


def a100(checkout: Project) -> tuple[str, ...]:
    """Makes the machine an A100; returns pytest's arguments that measure on it."""
    shutil.copy(scripted.__file__, checkout.root / "scripted.py")
    checkout.pytester.syspathinsert()
    # The step is a real one of torch; only its numbers are made up.
    (checkout.root / "device.json").write_text('{"torch": true}', encoding="utf-8")
    return ("-p", "scripted", "--gpu-arch", "sm80", *SMALL)


def steps(*names: str) -> list[str]:
    """The tests of these configurations' training steps."""
    return [f"{TRAINING}::test_training_step[{name}]" for name in names]


def test_what_is_asked_for_is_measured_as_its_configuration(checkout: Project) -> None:
    asked = "channels_last+sdpa"
    tests = [
        *steps("tf32_channels_last", asked),
        *(f"{SAMPLING}::test_sampling_{what}[tf32]" for what in ("step", "chain")),
        f"{SAMPLING}::test_sampling_step[tf32+fused_adam]",
        f"{QUALITY}::test_errors_against_float64[baseline]",
    ]
    flags = (f"--meddpm-configuration={asked}", "--meddpm-steps=3", "--gpuperf-no-judge", "-rs")
    result = checkout.run(*tests, *a100(checkout), *flags, "--gpuperf-run=run.json")
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*tf32+fused_adam: without an optimizer it is tf32*",
            "SKIPPED*only a device computes them",  # what is replayed or scripted has numbers only
        ]
    )
    measured = {m.configuration: m for m in checkout.saved("run.json").measurements}
    assert [*measured] == ["tf32_channels_last", asked, "tf32_sampling", "tf32_chain"]
    phases = {sample.phase for sample in measured[asked].samples}
    assert phases == {"step", "forward", "backward", "optimizer"}
    seconds = measured[asked].fingerprint.settings["first_call_s"]
    assert isinstance(seconds, float)
    assert seconds > 0
    workload = {"size": 16, "batch": 1, "data": "synthetic", "weights": "seeded"}
    for name in ("tf32_channels_last", "tf32_sampling"):
        assert measured[name].workload == workload
    assert measured["tf32_chain"].workload == {**workload, "steps": 3}


@pytest.mark.usefixtures("small_volumes")
def test_on_a_cpu_what_needs_a_gpu_is_skipped_with_the_reason_and_quality_is_not(
    checkout: Project,
) -> None:
    tests = [
        *steps("tf32+sdpa", "tf32+cuda_graph"),
        f"{TRAINING}::test_claim",
        f"{SAMPLING}::test_sampling_step[tf32]",
        f"{QUALITY}::test_errors_against_float64[tf32]",
    ]
    result = checkout.run(*tests, "--gpu-arch=cpu", *SMALL, "-rs")
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=3 + len(CLAIMS))
    result.stdout.fnmatch_lines_random(
        [
            "SKIPPED*: cuda_graph: needs a GPU",
            "SKIPPED*: tf32+sdpa: what it changes is how a GPU works; a CPU counts baseline, *",
            "SKIPPED*runs only on sm80+, but this device is cpu*",
        ]
    )
    assert "expected of" not in str(result.stdout)


def test_weights_that_cannot_be_read_are_a_usage_error_that_names_the_file(
    checkout: Project,
) -> None:
    (checkout.root / "broken.pt").write_bytes(b"PK\x03\x04 no weights")
    flag = "--meddpm-weights=broken.pt"
    result = checkout.run(*steps("baseline"), *a100(checkout), flag)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(errors=1)
    said = "broken.pt: cannot be read as weights"
    result.stdout.fnmatch_lines([f"gpuperf: *{said}*", "ERROR *"])
    assert not (checkout.root / run_files.FOLDER).exists()


def test_a_flag_that_the_suite_cannot_take_is_a_usage_error() -> None:
    for flag, value, says in (
        ("size", 17, " 17: a multiple of 16 is needed, from 16 on"),
        ("size", 0, " 0: a multiple of 16 is needed, from 16 on"),
        ("steps", 0, " 0: the process has 1 to 250"),
        ("steps", 251, " 251: the process has 1 to 250"),
        ("curve-steps", 0, " 0: at least 1 is needed"),
        ("configuration", ["tf33"], ': configuration "tf33": there is no part "tf33"'),
        ("configuration", ["ieee+tf32"], ': configuration "ieee+tf32": ieee and tf32 contradict'),
    ):
        with pytest.raises(pytest.UsageError) as refused:
            conftest.pytest_configure(one_flag(f"--meddpm-{flag}", value))
        assert str(refused.value).startswith(f"--meddpm-{flag}{says}")


@pytest.mark.parametrize("device", ["cpu", "meta"])  # meta for a GPU
def test_every_configuration_has_a_network_of_its_own(device: str) -> None:
    """What one of them does to its weights, the next one does not begin with."""
    network = small.network()
    copied = conftest._copied(network, device)
    ours, its = network.state_dict(), copied.state_dict()
    assert {name: (value.shape, value.dtype) for name, value in its.items()} == {
        name: (value.shape, value.dtype) for name, value in ours.items()
    }
    assert {value.device.type for value in its.values()} == {device}
    assert {value.device.type for value in ours.values()} == {"cpu"}
    assert {weight.requires_grad for weight in copied.parameters()} == {True}
    if device == "cpu":
        assert not any(its[name].data_ptr() == value.data_ptr() for name, value in ours.items())


def test_workers_keep_compared_steps_together_and_all_that_is_asked_of_a_network(
    checkout: Project,
) -> None:
    """Quality and ranks need not wait for steps, nor one configuration's quality for another's."""
    groups = groups_of(checkout, "suites/meddpm")
    alone = {name.partition("[")[0] for name in groups.pop("")}
    assert alone == {
        *("test_training_step", "test_training_step_over_ranks"),
        *("test_sampling_step", "test_sampling_chain"),
    }
    quality = {name: tests for name, tests in groups.items() if name.startswith("quality of ")}
    asked = ("test_errors_against_float64", "test_loss_curve", "test_samples_look_alike")
    assert quality == {
        **{f"quality of {name}": {f"{test}[{name}]" for test in asked} for name in OPTIMIZATIONS},
        **{f"quality of {name}": {f"{asked[0]}[{name}]"} for name in optimizations.ALONE},
    }
    steps = {test for name, tests in groups.items() if name not in quality for test in tests}
    assert {test.partition("[")[0] for test in steps} == {"test_training_step", "test_claim"}
