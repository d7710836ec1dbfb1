"""What tests of measuring share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from tests.scripted_nvml import Install, Library


@pytest.fixture(scope="module", autouse=True)
def modules_frozen() -> Iterator[None]:
    """Measuring collects garbage first, which need not look through torch every time.

    Torch comes with the first test that needs it, so what there is then is set aside per file.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a scripted NVML in place of the real one, or none; CUDA_VISIBLE_DEVICES is unset."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(library: Library | None) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", library)

    return put
