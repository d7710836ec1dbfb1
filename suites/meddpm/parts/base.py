"""What a part of a configuration is: one independent change of the training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import ClassVar

import torch
from torch import nn

from pytest_gpuperf.catalogue import architectures
from suites.meddpm.norm.fused import missing
from suites.precision import Float32Precision


class Part:
    """One change. A subclass says what it is and which of these it sets."""

    name: ClassVar[str]
    summary: ClassVar[str]
    """One sentence: what it changes."""
    least_arch: ClassVar[str] = ""
    """The first GPU architecture that it can run on, "" for any."""
    gpu: ClassVar[bool] = False
    """Whether a CPU has no such thing."""
    triton: ClassVar[bool] = False
    """Whether it runs kernels that are written in Triton."""

    # What the step is built with. None, empty and False leave it to the other parts.
    float32_precision: ClassVar[Float32Precision | None] = None
    """Of matrix products (cuBLAS) and of convolutions (cuDNN)."""
    memory_format: ClassVar[torch.memory_format | None] = None
    """Of the weights and of every batch."""
    adam: ClassVar[dict[str, bool]] = {}
    """Arguments of torch's Adam."""
    captured: ClassVar[bool] = False
    """Whether the step becomes one CUDA graph."""
    trains_only: ClassVar[bool] = False
    """Whether it is of the optimizer, which sampling has none of."""

    @property
    def requirements(self) -> str:
        """What it needs to run, in a few words; "" where it runs everywhere."""
        device = f"{self.least_arch}+" if self.least_arch else "a GPU" if self.gpu else ""
        return f"{device}, Triton" if self.triton else device

    def unavailable(self, arch: str) -> str | None:
        """Why it cannot run on `arch` with what is installed, or None where it can."""
        if self.triton and missing():
            return f"{self.name}: {missing()}"
        if arch == architectures.CPU:
            return f"{self.name}: needs a GPU" if self.gpu else None
        if self.least_arch and not architectures.matches(f"{self.least_arch}+", arch):
            return f"{self.name}: needs {self.least_arch}+; this device is {arch}"
        return None

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Changes `model` and torch's global state for a block; both are as before afterwards."""
        return nullcontext()


@contextmanager
def classes_changed(changes: Iterable[tuple[nn.Module, type[nn.Module]]]) -> Iterator[None]:
    """Gives modules other classes for a block: their parameters and their names stay.

    The classes may differ from those before in their methods only.
    """
    before: list[tuple[nn.Module, type[nn.Module]]] = []
    try:
        for module, changed in list(changes):
            before.append((module, type(module)))
            module.__class__ = changed
        yield
    finally:
        for module, original in reversed(before):
            module.__class__ = original
