"""The documentation of the ConvNeXt DDPM suite names all that there is."""

from __future__ import annotations

from suites.convnext_ddpm.configurations import CONFIGURATIONS, LOADINGS
from tests import ROOT

PAGE = ROOT / "docs" / "convnext.md"
SUITE = ROOT / "suites" / "convnext_ddpm"


def test_every_configuration_and_every_flag_has_an_item() -> None:
    page, flags = PAGE.read_text(encoding="utf-8"), ("size", "widths", "batch", "steps")
    items = {item.split(":")[0] for item in page.splitlines() if item.startswith("- `")}
    assert items >= {f"- `{name}`" for name in (*CONFIGURATIONS, *LOADINGS)}
    for flag in flags:
        assert f'"--convnext-{flag}"' in (SUITE / "conftest.py").read_text(encoding="utf-8")
        assert f"- `--convnext-{flag} " in page, flag


def test_the_bounds_are_those_of_the_configurations() -> None:
    page = PAGE.read_text(encoding="utf-8")
    said = [float(part) for part in ("1e-5", "1e-2", "5e-2") if part in page]
    assert said == sorted({configuration.bound for configuration in CONFIGURATIONS.values()})
