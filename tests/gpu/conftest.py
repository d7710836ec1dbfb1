"""The order of the tests on a GPU, and that they are skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import nvml

_FIRST = Path(__file__).with_name("test_soundness.py")
"""It measures peak memory, in which the pools of CUDA graphs count that earlier tests captured."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of memory come first: a process keeps a graph's pool as long as cuBLAS works in it."""
    items.sort(key=lambda item: item.path != _FIRST)
    if nvml.detect_device() is None:
        for item in items:
            if item.path.is_relative_to(_FIRST.parent):
                item.add_marker(pytest.mark.skip(reason="needs a GPU; there is none here"))
