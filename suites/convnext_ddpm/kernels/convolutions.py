"""Which kernel does a convolution, and with how many threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from suites.convnext_ddpm.kernels.compiler import unavailable
from suites.convnext_ddpm.kernels.launches import Launch, ceiling, named
from suites.convnext_ddpm.operators import Epilogue

Convolution = Literal["naive", "tiled", "im2col_bf16"]
EPILOGUES = {Epilogue.NONE: 0, Epilogue.GELU: 1, Epilogue.RELU: 2}
"""As common.cuh has them."""


@dataclass(frozen=True)
class Shape:
    """Of a convolution of stride 1."""

    images: int
    channels: int
    outputs: int
    rows: int
    columns: int
    size: int
    """Rows and columns of the weights."""
    padding: int
    groups: int

    @property
    def out_rows(self) -> int:
        """Rows of the result."""
        return self.rows + 2 * self.padding - self.size + 1

    @property
    def out_columns(self) -> int:
        """Columns of the result."""
        return self.columns + 2 * self.padding - self.size + 1

    def tiles(self, rows: int, columns: int) -> int:
        """How many tiles of so many pixels an image's result has."""
        return ceiling(self.out_rows, rows) * ceiling(self.out_columns, columns)


Chosen = Callable[[Shape, Epilogue, int], Launch]
"""The launch for a shape, an epilogue, and a device of so many multiprocessors."""


@cache
def naive(shape: Shape, epilogue: Epilogue, _processors: int) -> Launch:
    """A thread per element of the result."""
    constants = (shape.channels, shape.outputs, shape.size, shape.padding, shape.groups)
    blocks = ceiling(shape.out_rows * shape.out_columns, 256)
    return Launch(
        "convolution.cu",
        named("convolution_naive", *constants, EPILOGUES[epilogue]),
        (blocks, shape.outputs, shape.images),
        256,
    )


_ENOUGH = 0.75
"""Blocks for each processor: smaller tiles are slower by more than a quarter."""
_WARPS = ((8, 1), (8, 2), (8, 4), (4, 4))
"""Output channels of a thread, and how many of a block's four warps share the input channels: fewer
output channels to a block make more blocks."""


@cache
def tiled(shape: Shape, epilogue: Epilogue, processors: int) -> Launch:
    """Tiles in shared memory; a thread has several pixels of several output channels."""
    if shape.groups > 1:
        return _grouped(shape, epilogue)
    columns = _tile_columns(shape)
    strip = 2 if columns == 8 else 4
    rows = strip * (32 // columns)
    tiles = shape.tiles(rows, columns) * shape.images

    def blocks(outputs: int, channel_warps: int) -> int:
        return tiles * ceiling(shape.outputs, outputs * 4 // channel_warps)

    chosen = next((c for c in _WARPS if blocks(*c) >= _ENOUGH * processors), _WARPS[-1])
    per_block = chosen[0] * 4 // chosen[1]
    constants = (shape.channels, shape.outputs, shape.size, shape.padding, EPILOGUES[epilogue])
    return Launch(
        "convolution.cu",
        named("convolution_tiled", *constants, columns, strip, *chosen),
        (shape.tiles(rows, columns), ceiling(shape.outputs, per_block), shape.images),
        128,
    )


_FRAGMENTS = {
    32: ((8, 64, 4, 2), (4, 64, 4, 2), (2, 32, 4, 1), (4, 16, 8, 1)),
    16: ((8, 64, 4, 2), (4, 32, 2, 2), (4, 16, 4, 1)),
    8: ((8, 64, 2, 2), (8, 32, 2, 2), (8, 16, 4, 1)),
}
"""By the columns of a tile: its rows, its output channels, and the warps that share each."""
_LARGEST = 3
"""Rows and columns of the weights: those of more do not fit into shared memory."""


@cache
def im2col_bf16(shape: Shape, epilogue: Epilogue, processors: int) -> Launch:
    """The tensor cores, for weights of up to 3 x 3 in one group; otherwise as tiled."""
    if shape.groups > 1 or shape.size > _LARGEST:
        return tiled(shape, epilogue, processors)
    columns = _tile_columns(shape)

    def blocks(rows: int, outputs: int) -> int:
        return shape.tiles(rows, columns) * ceiling(shape.outputs, outputs) * shape.images

    choices = _FRAGMENTS[columns]
    fitting = [c for c in choices if c[1] <= ceiling(shape.outputs, 16) * 16] or [choices[-1]]
    rows, outputs, *warps = next(
        (c for c in fitting if blocks(c[0], c[1]) >= _ENOUGH * processors),
        max(fitting, key=lambda c: blocks(c[0], c[1])),
    )
    constants = (shape.channels, shape.outputs, shape.size, shape.padding, EPILOGUES[epilogue])
    return Launch(
        "convolution_bf16.cu",
        named("convolution_im2col_bf16", *constants, rows, columns, outputs, *warps),
        (shape.tiles(rows, columns), ceiling(shape.outputs, outputs), shape.images),
        32 * warps[0] * warps[1],
    )


def _grouped(shape: Shape, epilogue: Epilogue) -> Launch:
    columns = _tile_columns(shape)
    strip, strips = {8: (2, 4), 16: (4, 4), 32: (4, 8)}[columns]
    constants = (shape.channels, shape.outputs, shape.size, shape.padding, shape.groups)
    return Launch(
        "convolution.cu",
        named("convolution_grouped", *constants, EPILOGUES[epilogue], columns, strip, strips),
        (shape.tiles(strip * strips, columns), shape.outputs, shape.images),
        columns * strips,
    )


def _tile_columns(shape: Shape) -> int:
    return next((n for n in (8, 16) if shape.out_columns <= n), 32)


KERNELS: dict[Convolution, Chosen] = {"naive": naive, "tiled": tiled, "im2col_bf16": im2col_bf16}


def unavailable_convolution(name: Convolution, arch: str) -> str | None:
    """Why a convolution of KERNELS cannot run on an architecture, or None where it can."""
    return unavailable("convolution_bf16.cu" if name == "im2col_bf16" else "convolution.cu", arch)
