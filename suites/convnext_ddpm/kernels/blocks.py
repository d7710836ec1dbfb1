"""A whole ConvNeXt block at once: in one kernel where it fits, in few otherwise."""

from __future__ import annotations

from torch import Tensor

from pytest_gpuperf.catalogue.architectures import matches
from suites.convnext_ddpm.kernels.launches import Launch, Launcher, ceiling, check, named
from suites.convnext_ddpm.operators import BlockParameters, Epilogue, Operators

SHARED_BYTES = 48 * 1024
"""What a block of threads has of shared memory without asking for more."""
_RANKS = 8
"""Blocks of a cluster, at most: as many as every GPU of sm90 can have."""
_CHUNK, _STRIP, _THREADS = 8, 2, 512
"""As in block.cu."""


class Blocks:
    """A ConvNeXt block, by the kernels of `operators`; see FusedBlocks.block.

    It is one kernel where its maps fit into the shared memory of a cluster and each block of
    threads has at most `largest_work` multiplications, if that is given: a cluster has eight of a
    GPU's processors, and with more work the others are missed. Otherwise it is what the reports
    call fused: every epilogue in its convolution's kernel.
    """

    def __init__(self, operators: Operators, launcher: Launcher, largest_work: int | None) -> None:
        self._operators = operators
        self._launcher = launcher
        self._largest_work = largest_work

    def __call__(self, x: Tensor, shift: Tensor | None, parameters: BlockParameters) -> Tensor:
        """From x [N, C, H, W] to [N, O, H, W]; shift [N, C] or None."""
        p, of = parameters, self._operators
        if p.depthwise_weight.shape[-1] == 7 and self._in_one_kernel(x, p):
            return self._one_kernel(x, shift, p)
        hidden = of.convolution(
            x,
            p.depthwise_weight,
            p.depthwise_bias,
            padding=p.depthwise_weight.shape[-1] // 2,
            groups=x.shape[1],
            addend=None if shift is None else shift[:, :, None, None],
        )
        hidden = of.layer_norm(hidden, p.norm1_weight, p.norm1_bias, p.epsilon)
        hidden = of.convolution(
            hidden, p.conv1_weight, p.conv1_bias, padding=1, epilogue=Epilogue.GELU
        )
        hidden = of.layer_norm(hidden, p.norm2_weight, p.norm2_bias, p.epsilon)
        if p.residual_weight is not None:
            x = of.convolution(x, p.residual_weight, p.residual_bias)
        return of.convolution(hidden, p.conv2_weight, p.conv2_bias, padding=1, addend=x)

    def _in_one_kernel(self, x: Tensor, p: BlockParameters) -> bool:
        middle, channels, outputs = *p.conv1_weight.shape[:2], p.conv2_weight.shape[0]
        ranks = self._ranks(middle)
        work = 9 * x.shape[2] * x.shape[3] * middle * (channels + outputs) // ranks
        fits = 4 * self._shared_floats(x, p) <= SHARED_BYTES
        return fits and (self._largest_work is None or work <= self._largest_work)

    def _ranks(self, middle: int) -> int:
        """Blocks of an image's cluster, none of them with fewer than four channels."""
        if not matches("sm90+", self._launcher.arch):
            return 1
        return next((n for n in (_RANKS, 4, 2) if middle >= 4 * n), 1)

    def _shared_floats(self, x: Tensor, p: BlockParameters) -> int:
        _, channels, rows, columns = x.shape
        middle, outputs = p.conv1_weight.shape[0], p.conv2_weight.shape[0]
        each = [ceiling(n, self._ranks(middle)) for n in (channels, middle, outputs)]
        strips = ceiling(rows, _STRIP)

        def padded(outputs_each: int) -> int:
            group = 8 if strips * columns * ceiling(outputs_each, 8) >= _THREADS // 2 else 4
            return ceiling(outputs_each, group) * group

        most = max(padded(n) for n in each[1:])
        weights = max(_CHUNK * 9 * (most + 4), strips * _STRIP * columns * most)
        sums = 8 + 32
        patch = _CHUNK * (strips * _STRIP + 2) * (columns + 2)
        return sums + weights + patch + (each[0] + each[1]) * rows * columns

    def _one_kernel(self, x: Tensor, shift: Tensor | None, p: BlockParameters) -> Tensor:
        check(x=x, shift=shift, **{n: v for n, v in vars(p).items() if n != "epsilon"})
        images, channels, rows, columns = x.shape
        middle, outputs = p.conv1_weight.shape[0], p.conv2_weight.shape[0]
        ranks = self._ranks(middle)
        out = x.new_empty(images, outputs, rows, columns)
        launch = Launch(
            "block.cu",
            named("convnext_block", channels, middle, outputs, rows, columns, ranks),
            (images * ranks, 1, 1),
            _THREADS,
            cluster=ranks,
            shared_bytes=4 * self._shared_floats(x, p),
        )
        self._launcher.launch(
            launch,
            *(x, shift, p.depthwise_weight, p.depthwise_bias, p.norm1_weight, p.norm1_bias),
            *(p.conv1_weight, p.conv1_bias, p.norm2_weight, p.norm2_bias),
            *(p.conv2_weight, p.conv2_bias, p.residual_weight, p.residual_bias),
            *(out, float(p.epsilon)),
        )
        return out
