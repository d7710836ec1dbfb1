"""The scripted CUDA driver, compiled and loaded once per session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_gpuperf.measure.device import driver
from tests.measure.device.fake_gpu import FakeGpu
from tests.measure.stand_ins import compiled


@pytest.fixture(scope="session")
def loaded_gpu(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    return FakeGpu(compiled(Path(__file__).with_name("fake_cuda.c"), library))


@pytest.fixture
def gpu(loaded_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A GPU of eight SMs, as if its driver had just been loaded."""
    monkeypatch.setattr(driver, "load", lambda: loaded_gpu.cuda)
    yield loaded_gpu
    loaded_gpu.reset()
