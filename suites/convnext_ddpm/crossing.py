"""The way between the host and a device, and operators whose activations take it every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from suites.convnext_ddpm.execution import concatenated
from suites.convnext_ddpm.operators import Epilogue, Operators


@dataclass(frozen=True)
class Crossing:
    """How tensors are copied to a device and back.

    On a CPU they are copied as well, within its memory: what is counted there counts the copies.
    """

    device: torch.device
    pinned: bool
    """The host's side lies in page-locked memory, which a GPU reads and writes by itself."""
    non_blocking: bool
    """A copy is only enqueued. What it reads and writes is in order with what else is on the
    device's current stream; the host has to `wait` before it looks."""

    def up(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """`tensor` of the host on the device, in `out` where that is given."""
        if self._pins and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        target = torch.empty_like(tensor, device=self.device) if out is None else out
        return target.copy_(tensor, non_blocking=self.non_blocking)

    def down(self, tensor: Tensor, out: Tensor | None = None) -> Tensor:
        """`tensor` of the device on the host, in `out` where that is given."""
        if out is None:
            out = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._pins)
        return out.copy_(tensor, non_blocking=self.non_blocking)

    def wait(self) -> None:
        """Until what is on the current stream is done."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @property
    def _pins(self) -> bool:
        return self.pinned and self.device.type == "cuda"


class CopyStream:
    """A second stream of a device, for copies beside its kernels. On a CPU, all is in order."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @contextmanager
    def copying(self) -> Iterator[None]:
        """What is enqueued inside comes after what the current stream has by now, and beside it."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            yield

    def arrival(self) -> torch.cuda.Event | None:
        """Comes about when all that was enqueued by now has been copied."""
        return None if self._stream is None else self._stream.record_event()

    def wait_for(self, arrival: torch.cuda.Event | None) -> None:
        """Has what is enqueued on the current stream from now on wait; the host does not."""
        if self._stream is not None and arrival is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(arrival)


class HostActivations:
    """Operators that take activations from the host and leave them there. Weights stay put."""

    def __init__(self, inner: Operators, crossing: Crossing) -> None:
        """`inner` computes on the crossing's device."""
        self._inner = inner
        self._crossing = crossing

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        padding: int = 0,
        groups: int = 1,
        addend: Tensor | None = None,
        epilogue: Epilogue = Epilogue.NONE,
        out: Tensor | None = None,
    ) -> Tensor:
        """See Operators."""
        up = self._crossing.up
        result = self._inner.convolution(
            up(x),
            weight,
            bias,
            padding=padding,
            groups=groups,
            addend=None if addend is None else up(addend),
            epilogue=epilogue,
        )
        return self._crossing.down(result, out)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """See Operators."""
        crossing = self._crossing
        return crossing.down(self._inner.layer_norm(crossing.up(x), weight, bias, epsilon))

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor, *, gelu_first: bool = False
    ) -> Tensor:
        """See Operators."""
        up = self._crossing.up
        return self._crossing.down(self._inner.linear(up(x), weight, bias, gelu_first=gelu_first))

    def gate(self, x: Tensor, attention: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See Operators."""
        up = self._crossing.up
        return self._crossing.down(self._inner.gate(up(x), up(attention)), out)

    def upsample(self, x: Tensor) -> Tensor:
        """See Operators."""
        return self._crossing.down(self._inner.upsample(self._crossing.up(x)))

    def space_to_depth(self, x: Tensor) -> Tensor:
        """See Operators."""
        return self._crossing.down(self._inner.space_to_depth(self._crossing.up(x)))

    def concatenate(self, maps: Sequence[Tensor]) -> Tensor:
        """See `Execution.concatenate`. On the device: the host has not waited for the maps."""
        return self._crossing.down(concatenated([self._crossing.up(one) for one in maps]))
