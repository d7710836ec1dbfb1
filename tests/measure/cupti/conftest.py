"""The scripted CUPTI, compiled and loaded once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_gpuperf.measure.cupti import library as library_module
from pytest_gpuperf.measure.cupti import paper_window
from pytest_gpuperf.measure.cupti.library import load
from pytest_gpuperf.measure.device import driver
from tests.measure.cupti.fake import Fake, FakeTimer
from tests.measure.stand_ins import compiled


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fake_cupti.c, compiled."""
    source = Path(__file__).with_name("fake_cupti.c")
    return compiled(source, tmp_path_factory.mktemp("cupti") / "libcupti.so.13", "-lm")


@pytest.fixture(scope="session")
def loaded(fake_library: Path) -> Fake:
    return Fake(fake_library)


@pytest.fixture
def fake(loaded: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The scripted CUPTI, as if it had just been loaded; a test leaves nothing open in it."""
    monkeypatch.setattr(library_module, "load", lambda: loaded.cupti)
    monkeypatch.setattr(driver, "load", lambda: loaded.cuda)
    monkeypatch.setattr(paper_window, "CudaTimer", lambda: FakeTimer(loaded))
    loaded.patch = monkeypatch
    yield loaded
    loaded.reset()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A machine without any CUPTI; gives the place of its toolkit."""
    monkeypatch.setattr(library_module, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(library_module, "_TOOLKIT", tmp_path / "cuda")
    monkeypatch.setattr(library_module, "_SONAMES", ())
    monkeypatch.setattr(library_module, "find_spec", lambda _: None)
    monkeypatch.setattr(driver, "load", lambda: SimpleNamespace(device_count=lambda: 1))
    load.cache_clear()
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "cuda"
    load.cache_clear()
