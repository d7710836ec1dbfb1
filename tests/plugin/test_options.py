"""Flags and their ini twins: the command line wins over the ini file, and that over defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.model.settings import Settings
from pytest_gpuperf.plugin.options import flags, read_settings
from tests.plugin.projects import STEP, Project, refused

ROOT = Path("ROOT")
"""Stands for the project's root directory below."""
DECLARED = {one.name: flag for one, flag in flags()}
FIELDS: dict[str, tuple[Any, ...]] = {
    "arch": ("auto", "sm80", "sm80", "sm90", "sm90"),
    "collector": ("auto", "cpu", "cpu", "cupti", "cupti"),
    "metrics": ("core", "paper", "paper", "core", "core"),
    "rounds": (5, "7", 7, "9", 9),
    "missing": ("fail", "warn", "warn", "record", "record"),
    "inconclusive": ("fail", "warn", "warn", "fail", "fail"),
    "require_counters": (False, "true", True, "", True),
    "require_judged": (False, "true", True, "", True),
    "judge": (True, "true", False, "", False),
    "run": (None, "a.json", ROOT / "a.json", "b.json", ROOT / "b.json"),
    "reports": ((), "a.md", (ROOT / "a.md",), "b.md", (ROOT / "b.md",)),
    "github": ("auto", "never", "never", "auto", "auto"),
    "baselines": (ROOT / "baselines", "a", ROOT / "a", "b", ROOT / "b"),
}
"""The default; in the ini file, and how that is read; typed ("" for a switch), and how."""


def settings(project: Project, *arguments: str) -> Settings:
    return read_settings(project.pytester.parseconfig(*arguments))


def check(project: Project, read: Settings, column: int) -> None:
    """Whether every field was read as this column of FIELDS says."""
    for field, row in FIELDS.items():
        expected = str(row[column]).replace("ROOT", str(project.root))
        assert str(getattr(read, field)) == expected, field


def test_the_flag_wins_over_the_ini_file_and_that_over_the_default(project: Project) -> None:
    check(project, settings(project), 0)
    project.ini(*(f"{DECLARED[field].ini} = {row[1]}" for field, row in FIELDS.items()))
    check(project, settings(project), 2)
    typed = (f"{DECLARED[field].name}={row[3]}".removesuffix("=") for field, row in FIELDS.items())
    check(project, settings(project, *typed), 4)


def test_paths_are_relative_to_where_they_were_written(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the ini file to the root directory, and typed to where one is."""
    names = {"run": "run.json", "baselines": "kept", "replay": "old.json", "reports": "a.md b.json"}
    project.ini("gpu_arch = sm80", *(f"{DECLARED[n].ini} = {text}" for n, text in names.items()))
    folder = project.pytester.mkdir("inside")
    monkeypatch.chdir(folder)
    typed = [f"{DECLARED[n].name}={word}" for n, text in names.items() for word in text.split()]
    for where, arguments in ((project.root, []), (folder, ["--gpu-arch=sm80", *typed])):
        read = settings(project, *arguments)
        assert read.root == project.root
        paths = (read.run, read.baselines, read.replay, *read.reports)
        assert paths == tuple(where / word for text in names.values() for word in text.split())


def test_help_names_every_flag_and_its_ini_twin(project: Project) -> None:
    result = project.run("--help")
    assert result.ret == 0
    shown = " ".join(str(result.stdout).split())
    for flag in DECLARED.values():
        assert flag.name in shown
        assert f"(ini: {flag.ini})" in shown


def test_a_bad_flag_is_a_usage_error_that_names_it(project: Project) -> None:
    for argument, says in (
        ("collector=nvprof", "--gpuperf-collector: invalid choice: 'nvprof'"),
        ("metrics=all", '--gpuperf-metrics: "all" is neither a set nor a metric'),
        ("metrics=core,cycle", '"cycle" is neither a set nor a metric. Did you mean "cycles"?'),
        ("metrics=step_time", '"step_time" is not a hardware counter'),
        ("rounds=0", "--gpuperf-rounds takes a whole number from 1 on, not '0'"),
        ("time-limit=1.5", "--gpuperf-time-limit takes a whole number from 1 on, not '1.5'"),
        ("report=report.pdf", '".pdf" is not a report format. Use the suffix .html, .md, .json'),
        ("collector=replay", "needs a run. Add --gpuperf-replay RUN"),
    ):
        with pytest.raises(pytest.UsageError) as refusal:
            settings(project, f"--gpuperf-{argument}")
        assert says in str(refusal.value)
    with pytest.raises(pytest.UsageError, match="so --gpuperf-collector cpu cannot measure too"):
        settings(project, "--gpuperf-replay=run.json", "--gpuperf-collector=cpu")


def test_a_flag_is_refused_before_any_test(project: Project) -> None:
    project.tests(STEP)
    for arguments, says in (
        ("--gpu-arch=SM90", 'Did you mean "sm90"?'),
        ("--gpuperf-replay=run.json", "run.json: no such run file"),
        (
            "--gpuperf-collector=cupti --gpu-arch=cpu",
            "but --gpu-arch cpu chooses the CPU. Leave one of the two flags out",
        ),
        ("--gpuperf-rounds=0", "--gpuperf-rounds takes a whole number"),
    ):
        assert says in refused(project.run(*arguments.split()))
    project.ini("gpu_arch = sm91")
    assert 'unknown architecture "sm91"' in refused(project.run())


def test_a_bad_ini_setting_is_a_usage_error_that_names_it(project: Project) -> None:
    for line, says in (
        ("collector = nvprof", "gpuperf_collector = nvprof: choose from auto, cupti, ncu, cpu"),
        ("metrics = all", 'ini setting gpuperf_metrics: "all" is neither a set nor a metric'),
        ("rounds = many", "ini setting gpuperf_rounds takes a whole number from 1 on"),
        ("report = a.pdf", '".pdf" is not a report format'),
        ("require_counters = perhaps", "ini setting gpuperf_require_counters"),
    ):
        project.ini(f"gpuperf_{line}")
        with pytest.raises(pytest.UsageError) as refusal:
            settings(project)
        assert says in str(refusal.value)
