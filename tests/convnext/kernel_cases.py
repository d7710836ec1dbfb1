"""What the kernels have to compute, and how near they have to come to float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from suites.convnext_ddpm.kernels.launches import Launcher
from suites.convnext_ddpm.kernels.operators import KernelOperators
from suites.convnext_ddpm.operators import (
    BlockParameters,
    Epilogue,
    FusedBlocks,
    Operators,
    TorchOperators,
)

BOUNDS = {"float32": 1e-5, "bfloat16": 1e-2}
"""The largest error of an element, as a share of the largest element of the result in float64.

float32: sums of up to some thousand products, each rounded to 24 bits (6e-8). Rounding errors of
independent signs grow with the root of their number: 3e-6 for 2304 products, of the typical sum,
which is a quarter of the largest. Of a whole block, five sums follow one another.
bfloat16: both factors are rounded to 8 bits, by up to 2e-3 and on average 1.1e-3 each; the errors
of a sum of independent products are 1.6e-3 of the typical sum, the largest of thousands five times
that, and the largest sum four times the typical one. A block has two convolutions in a row.
"""

Composition = Callable[[Launcher], KernelOperators]
COMPOSITIONS: dict[str, Composition] = {
    "naive": lambda on: KernelOperators(on, convolution="naive", norm="naive"),
    "naive, unfused": lambda on: KernelOperators(
        on, convolution="naive", norm="naive", fused=False
    ),
    "tiled": lambda on: KernelOperators(on, convolution="tiled", norm="warp_shuffle"),
    "im2col_bf16": lambda on: KernelOperators(on, convolution="im2col_bf16", norm="three_kernel"),
    "one kernel": lambda on: KernelOperators(on, blocks=True),
    "few kernels": lambda on: KernelOperators(on, blocks=True, largest_work=0),
}
"""Ways to compose operators of kernels. The last two do blocks."""

Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One call of an operator, with random inputs of these shapes."""

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[[Operators, Inputs], Tensor]
    rounded: tuple[str, ...] = ()
    """What a convolution in bfloat16 rounds, where it is one convolution."""


def inputs(case: Case) -> dict[str, Tensor]:
    """The same for every call: results of some size whatever the shapes, as a network has them."""
    generator = torch.Generator().manual_seed(len(case.name))

    def drawn(name: str, shape: torch.Size) -> Tensor:
        weighs = name.endswith("weight") and len(shape) > 1
        scale = shape[1:].numel() ** -0.5 if weighs else 1.0
        return torch.randn(shape, generator=generator) * scale

    return {name: drawn(name, torch.Size(shape)) for name, shape in case.shapes.items()}


def rounded(case: Case) -> dict[str, Tensor]:
    """The same inputs, the factors of a convolution in bfloat16 rounded already."""
    given = inputs(case)
    return given | {name: given[name].bfloat16().float() for name in case.rounded}


def error(case: Case, given: Inputs, result: Tensor) -> float:
    """The largest of an element, as a share of the largest element in float64."""
    wanted = case.call(Whole(), {name: tensor.double() for name, tensor in given.items()})
    return float((result.double().cpu() - wanted).abs().max() / wanted.abs().max())


def bound(composition: str, case: Case) -> float:
    """How large its error may be under one of COMPOSITIONS."""
    rounds = composition == "im2col_bf16" and bool(case.rounded)
    return BOUNDS["bfloat16" if rounds else "float32"]


class Whole(TorchOperators):
    """torch's operators, and a block of them."""

    def block(self, x: Tensor, shift: Tensor | None, parameters: BlockParameters) -> Tensor:
        p = parameters
        hidden = self.convolution(
            x, p.depthwise_weight, p.depthwise_bias, padding=3, groups=x.shape[1]
        )
        if shift is not None:
            hidden = hidden + shift[:, :, None, None]
        hidden = self.layer_norm(hidden, p.norm1_weight, p.norm1_bias, p.epsilon)
        hidden = self.convolution(
            hidden, p.conv1_weight, p.conv1_bias, padding=1, epilogue=Epilogue.GELU
        )
        hidden = self.layer_norm(hidden, p.norm2_weight, p.norm2_bias, p.epsilon)
        if p.residual_weight is not None:
            x = self.convolution(x, p.residual_weight, p.residual_bias)
        return self.convolution(hidden, p.conv2_weight, p.conv2_bias, padding=1, addend=x)


def _written(
    sliced: bool, x: Tensor, shape: tuple[int, ...], computed: Callable[[Tensor | None], Tensor]
) -> Tensor:
    """What is computed; if `sliced` into the middle of a larger map, and nowhere else in that."""
    if not sliced:
        return computed(None)
    images, channels, *size = shape
    buffer = x.new_full((images, channels + 5, *size), torch.nan)
    result = computed(buffer[:, 2:-3])
    assert result.data_ptr() == buffer[:, 2:-3].data_ptr()
    assert buffer[:, :2].isnan().all()
    assert buffer[:, -3:].isnan().all()
    return result


def _convolution(
    name: str,
    x: tuple[int, int, int, int],
    weight: tuple[int, int, int],
    *,
    epilogue: Epilogue = Epilogue.NONE,
    addend: str = "",
    plain: bool = False,
    sliced: bool = False,
) -> Case:
    """`weight`: outputs, inputs of a group, and rows, which are as many as columns.

    The map keeps its size; of a `plain` one it shrinks, and there is no bias.
    """
    images, channels, rows, columns = x
    outputs, depth, size = weight
    padding = 0 if plain else size // 2
    grown = 2 * padding - size + 1
    result = (images, outputs, rows + grown, columns + grown)
    shapes: dict[str, tuple[int, ...]] = {"x": x, "weight": (outputs, depth, size, size)}
    if not plain:
        shapes["bias"] = (outputs,)
    if addend:
        shapes["addend"] = result if addend == "map" else (images, outputs, 1, 1)

    def call(operators: Operators, given: Inputs) -> Tensor:
        return _written(
            sliced,
            given["x"],
            result,
            lambda out: operators.convolution(
                given["x"],
                given["weight"],
                given.get("bias"),
                padding=padding,
                groups=channels // depth,
                addend=given.get("addend"),
                epilogue=epilogue,
                out=out,
            ),
        )

    return Case(f"convolution: {name}", shapes, call, ("x", "weight"))


def _norm(name: str, x: tuple[int, int, int, int], shifted: float = 0.0) -> Case:
    def call(operators: Operators, given: Inputs) -> Tensor:
        return operators.layer_norm(given["x"] + shifted, given["weight"], given["bias"], 1e-5)

    return Case(f"norm: {name}", {"x": x, "weight": (x[1],), "bias": (x[1],)}, call)


def _linear(x: tuple[int, int], outputs: int, *, gelu_first: bool) -> Case:
    def call(operators: Operators, given: Inputs) -> Tensor:
        return operators.linear(given["x"], given["weight"], given["bias"], gelu_first=gelu_first)

    shapes = {"x": x, "weight": (outputs, x[1]), "bias": (outputs,)}
    return Case(f"linear: {x[1]} to {outputs}{', GELU first' * gelu_first}", shapes, call)


def _gate(x: tuple[int, int, int, int], *, sliced: bool) -> Case:
    def call(operators: Operators, given: Inputs) -> Tensor:
        return _written(
            sliced,
            given["x"],
            x,
            lambda out: operators.gate(given["x"], given["attention"], out=out),
        )

    shapes = {"x": x, "attention": (x[0], 1, *x[2:])}
    return Case(f"gate: {'into a slice' if sliced else 'new'}", shapes, call)


def block(
    name: str, x: tuple[int, int, int, int], middle: int, outputs: int, *, shifted: bool = True
) -> Case:
    channels = x[1]
    weights: dict[str, tuple[int, ...]] = {
        "depthwise": (channels, 1, 7, 7),
        "norm1": (channels,),
        "conv1": (middle, channels, 3, 3),
        "norm2": (middle,),
        "conv2": (outputs, middle, 3, 3),
    }
    if channels != outputs:
        weights["residual"] = (outputs, channels, 1, 1)
    shapes: dict[str, tuple[int, ...]] = {"x": x}
    for layer, shape in weights.items():
        shapes |= {f"{layer}_weight": shape, f"{layer}_bias": shape[:1]}
    if shifted:
        shapes["shift"] = x[:2]

    def call(operators: Operators, given: Inputs) -> Tensor:
        assert isinstance(operators, FusedBlocks)
        parameters = {n: given.get(n) for n in BlockParameters.__annotations__ if n != "epsilon"}
        return operators.block(
            given["x"],
            given.get("shift"),
            BlockParameters(**parameters, epsilon=1e-5),  # type: ignore[arg-type]
        )

    return Case(f"block: {name}", shapes, call)


GELU, RELU = Epilogue.GELU, Epilogue.RELU
CONVOLUTIONS = (
    _convolution("all", (2, 5, 7, 9), (33, 5, 3), epilogue=GELU, addend="map", sliced=True),
    _convolution("per channel", (2, 33, 7, 8), (5, 33, 3), epilogue=RELU, addend="channels"),
    _convolution("3x3 without padding or bias", (1, 3, 7, 9), (33, 3, 3), plain=True),
    _convolution("3x3, 17 columns", (1, 20, 5, 17), (40, 20, 3)),
    _convolution("3x3, one pixel", (2, 5, 1, 1), (3, 5, 3)),
    _convolution("1x1, 35 columns", (2, 33, 3, 35), (5, 33, 1), addend="map"),
    _convolution("1x1 to one channel", (2, 5, 7, 9), (1, 5, 1)),
    _convolution("7x7 of the image", (2, 3, 7, 9), (5, 3, 7)),
    _convolution("depthwise 7x7", (2, 5, 7, 9), (5, 1, 7), addend="channels", sliced=True),
    _convolution("depthwise 7x7, 8 columns", (2, 3, 9, 8), (3, 1, 7)),
    _convolution("depthwise 7x7, 35 columns", (1, 3, 33, 35), (3, 1, 7)),
    _convolution("two groups", (2, 6, 7, 9), (4, 3, 3)),
)
NORMS = (
    _norm("odd", (2, 5, 7, 9)),
    _norm("one element", (2, 1, 1, 1)),
    _norm("one block", (2, 33, 8, 8)),
    _norm("several slices", (2, 33, 24, 24)),
    _norm("several slices, odd", (1, 53, 17, 19)),
)
OFF_CENTRE = _norm("far off centre", (1, 33, 24, 24), shifted=1000.0)
OTHERS = (
    _linear((3, 37), 33, gelu_first=False),
    _linear((2, 32), 128, gelu_first=True),
    _gate((2, 5, 7, 9), sliced=False),
    _gate((2, 5, 7, 9), sliced=True),
    Case("upsample", {"x": (2, 3, 5, 7)}, lambda on, given: on.upsample(given["x"])),
    Case("space to depth", {"x": (2, 3, 6, 10)}, lambda on, given: on.space_to_depth(given["x"])),
)
LAYERS = (
    _convolution("64 channels, 64x64", (2, 64, 64, 64), (64, 64, 3)),
    _convolution("256 to 512 channels, 8x8", (1, 256, 8, 8), (512, 256, 3)),
    _convolution("1x1, 96 to 32 channels", (1, 96, 64, 64), (32, 96, 1)),
    _convolution("depthwise 7x7, 64x64", (2, 64, 64, 64), (64, 1, 7), addend="channels"),
    _norm("64 channels, 64x64", (3, 64, 64, 64)),
    _norm("256 channels, 8x8", (3, 256, 8, 8)),
)
"""Of the network as it is by default: too large for an emulator."""
LARGE_BLOCKS = (
    block("64 channels, 8x8", (2, 64, 8, 8), 128, 64),
    block("256 channels, 8x8", (1, 256, 8, 8), 512, 256),
)
BLOCKS = (
    block("as many channels", (2, 5, 5, 7), 10, 5),
    block("more channels", (1, 3, 7, 8), 17, 9),
    block("without a shift", (1, 8, 4, 4), 16, 8, shifted=False),
)
