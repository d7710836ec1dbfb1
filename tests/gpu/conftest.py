"""The order of the tests on a GPU, and that they are skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import nvml

_FIRST = tuple(
    map(Path(__file__).with_name, ("test_shared_gpu.py", "test_ranks.py", "test_soundness.py"))
)
"""Sessions of their own would find this process on the GPU once it has used that; then peaks of
memory, in which the pools of CUDA graphs count that earlier tests captured."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of memory come first: a process keeps a graph's pool as long as cuBLAS works in it."""
    places = {path: place for place, path in enumerate(_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    if nvml.detect_device() is None:
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(pytest.mark.skip(reason="needs a GPU; there is none here"))
