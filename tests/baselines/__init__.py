"""Tests of decisions with a baseline."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.baselines import acceptance
from pytest_gpuperf.model.measurement import Measurement


def accept(root: Path, *measurements: Measurement) -> None:
    """Makes them the baselines of their tests in the default folder, whatever is objected."""
    request = acceptance.AcceptanceRequest(
        root / "baselines", "because", "2026-03-01T00:00:00Z", force=True
    )
    acceptance.accept(acceptance.proposals(measurements, request))
