"""The documentation of the ConvNeXt DDPM suite names all that there is."""

from __future__ import annotations

import pytest

from suites.convnext_ddpm.configurations import CONFIGURATIONS, LOADINGS
from tests import ROOT

PAGE = ROOT / "docs" / "convnext.md"
SUITE = ROOT / "suites" / "convnext_ddpm"


@pytest.mark.parametrize("name", [*CONFIGURATIONS, *LOADINGS])
def test_every_configuration_has_a_row(name: str) -> None:
    rows = PAGE.read_text(encoding="utf-8").splitlines()
    assert any(row.startswith(f"| `{name}` |") for row in rows)


@pytest.mark.parametrize("flag", ["size", "widths", "batch", "steps"])
def test_every_flag_has_a_row(flag: str) -> None:
    assert f'"--convnext-{flag}"' in (SUITE / "conftest.py").read_text(encoding="utf-8")
    assert f"| `--convnext-{flag} " in PAGE.read_text(encoding="utf-8")


def test_the_bounds_are_those_of_the_configurations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    said = [float(part) for part in ("1e-5", "1e-2", "5e-2") if part in page]
    assert said == sorted({configuration.bound for configuration in CONFIGURATIONS.values()})
