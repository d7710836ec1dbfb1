"""What tests of measuring share."""

from __future__ import annotations

import sys

import pytest

from tests.scripted_nvml import Install, Library


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a scripted NVML in place of the real one, or none; CUDA_VISIBLE_DEVICES is unset."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(library: Library | None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", library)

    return put
