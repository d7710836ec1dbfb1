"""`gpuperf metrics`, with the scripted CUPTI and without any."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from tests.measure.cupti.fake import Fake

GPUS = [name for name in architectures.ARCHITECTURES if name != architectures.CPU]
Ask = Callable[..., str]


@pytest.fixture
def ask(fake: Fake, fake_library: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs the command with the scripted CUPTI, and returns what it printed."""
    assert fake.alive == 0

    def run(*arguments: str) -> str:
        assert __main__.main(["metrics", "--library", str(fake_library), *arguments]) == errors.OK
        return capsys.readouterr().out

    return run


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the command says against these arguments; it prints nothing else."""
    assert __main__.main(["metrics", *arguments]) == errors.BAD_CONFIGURATION
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


def test_the_whole_catalogue_and_the_passes_of_all_sets(ask: Ask, fake: Fake) -> None:
    fake.set("passes", 7)
    printed = ask()
    for name in catalogue().metrics:
        assert f"  {name} " in printed or f"  {name}:" in printed
    lines = printed.splitlines()
    assert "        core  reference  paper  full" in lines
    assert "  sm80     7          7      7     7" in lines
    assert "  sm90     7          7      7     7" in lines
    others = ", ".join(name for name in GPUS if name not in ("sm80", "sm90"))
    assert lines[-1] == f"note: this CUPTI knows no chip of {others}"


def test_a_part_of_it(ask: Ask) -> None:
    printed = ask("--gpu-arch", "sm90", "--set", "core,l2_hit_rate")
    assert "lts__t_sector_hit_rate.pct" in printed
    assert "dram" not in printed
    assert printed.splitlines()[-2:] == ["        core,l2_hit_rate", "  sm90                 1"]


def test_several_architectures_in_the_order_of_their_mention(ask: Ask) -> None:
    for words in (["--gpu-arch", "sm90", "sm80"], ["--gpu-arch", "sm90", "--gpu-arch", "sm80"]):
        rows = ask(*words, "--set", "core").splitlines()
        assert rows[-2:] == ["  sm90     1", "  sm80     1"]


def test_nothing_is_counted_in_passes_on_a_cpu(ask: Ask) -> None:
    printed = ask("--gpu-arch", "cpu")
    assert printed.splitlines()[-1] == "passes: none, counts on a CPU are taken while the step runs"
    assert "sm__" not in printed


def test_what_the_library_denies_is_noted(ask: Ask, fake: Fake) -> None:
    fake.set("unknown", "sm__cycles_elapsed.max")
    notes = [line for line in ask("--set", "core").splitlines() if line.startswith("note: sm")]
    assert notes == [
        "note: sm80: sm__cycles_elapsed.max does not exist on GA100",
        "note: sm90: sm__cycles_elapsed.max does not exist on GH100",
    ]


def test_as_json(ask: Ask) -> None:
    found: dict[str, Any] = json.loads(ask("--format", "json", "--gpu-arch", "sm90", "sm75"))
    assert (found["schema"], found["cupti"]) == (1, "13.0.1")
    assert found["passes"] == {"sm90": dict.fromkeys(catalogue().counter_sets, 1), "sm75": None}
    entries = {entry["name"]: entry for entry in found["metrics"]}
    assert list(entries) == list(catalogue().metrics)
    assert entries["pipe_tma"]["hardware"] == {
        "sm90": "sm__inst_executed_pipe_tma.sum",
        "sm75": None,
    }
    assert entries["pipe_tma"]["sets"] == ["paper", "full"]
    assert entries["step_time"]["hardware"] is None


def test_without_cupti_the_catalogue_is_printed_all_the_same(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not bare.exists()
    assert __main__.main(["metrics", "--gpu-arch", "sm90", "--set", "core"]) == errors.OK
    printed = capsys.readouterr().out
    assert "sm__cycles_elapsed.max" in printed
    assert "passes: not known here: CUPTI (libcupti) was not found." in printed

    assert __main__.main(["metrics", "--format", "json"]) == errors.OK
    found = json.loads(capsys.readouterr().out)
    assert (found["cupti"], found["passes"]) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpu-arch", "sm91"], 'unknown architecture "sm91". Did you mean "sm90"?'),
        (["--gpu-arch", "sm90", "SM80"], 'unknown architecture "SM80". Did you mean "sm80"?'),
        (["--gpu-arch"], "expected at least one argument"),
        (["--set", "papers"], 'named "papers". Did you mean "paper"? Sets are core, reference'),
        (["--set", "core,step_time"], '"step_time" is no hardware counter'),
        (["--library", "nowhere/libcupti.so.13"], "nowhere/libcupti.so.13: no such file"),
    ],
)
def test_bad_arguments_are_named(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, *arguments)


def test_a_library_that_was_named_and_cannot_be_used_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "libcupti.so.13"
    file.write_text("not a library")
    said = refused(capsys, "--library", str(file))
    assert "gpuperf: --library: CUPTI cannot be loaded" in said
    assert "CUPTI of CUDA 13.0 tells the passes without a driver" in said
