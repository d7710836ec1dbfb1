"""A library of another version than the baseline's is named before any line of the user's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import fingerprint
from tests.plugin.projects import Project

LIBRARY = """
import torch

def loss(x):
    return {} * x.sum()
"""
USER = """
    import lossy
    import torch

    def test_step(gpuperf):
        x = torch.ones(4)
        gpuperf.measure(lambda: lossy.loss(x))
"""


def installed(project: Project, version: str, factor: str) -> None:
    """Installs a release of the library, in place of another."""
    folder: Path = project.root / "site-packages"
    metadata = folder / "lossy_nets.dist-info"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "METADATA").write_text(f"Name: lossy-nets\nVersion: {version}\n")
    (metadata / "top_level.txt").write_text("lossy\n")
    (folder / "lossy.py").write_text(LIBRARY.format(factor))
    fingerprint._libraries.cache_clear()
    fingerprint._of_package.cache_clear()
    fingerprint._by_package.cache_clear()


def test_an_upgrade_comes_before_the_line_with_what_its_code_does_more(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a library that is installed, as the distribution lossy-nets, and called by the step."""
    project.ini("gpu_arch = cpu", "gpuperf_baselines = baselines")
    monkeypatch.syspath_prepend(str(project.root / "site-packages"))
    installed(project, "1.0", "2")
    project.tests(USER)
    project.accept_processes(1, 1, 1, kernels=True)
    installed(project, "2.0", "2 * torch.relu(x).mean()")
    project.measure_processes("replayed.json", 1, 1, 1, kernels=True)
    result = project.run("--gpuperf-replay=replayed.json", "--gpuperf-report=judged.md")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = " ".join(str(result.stdout).split())
    assert "(cpu): lossy-nets 1.0 -> 2.0 (its code calls 5 operators; were 2), called at " in said
    assert "versions changed" not in said
    assert "lossy-nets 1.0 -\\> 2.0" in (project.root / "judged.md").read_text("utf-8")
