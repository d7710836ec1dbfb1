"""The scripted CUDA driver, compiled and loaded once per session."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.measure.device.fake_gpu import FakeGpu


@pytest.fixture(scope="session")
def loaded_gpu(tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("needs a C compiler (cc or gcc)")
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_cuda.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    return FakeGpu(library)


@pytest.fixture
def gpu(loaded_gpu: FakeGpu) -> Iterator[FakeGpu]:
    """A GPU of eight SMs, as if its driver had just been loaded."""
    yield loaded_gpu
    loaded_gpu.reset()
