"""The fused norm against float64, on the GPU where there is one, else in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from suites.meddpm.norm import fused

if fused.missing():
    pytest.skip(f"fused norm: {fused.missing()}", allow_module_level=True)

# Lanes beyond a volume's end have any value; numpy, in the interpreter, says so.
pytestmark = pytest.mark.filterwarnings(
    "ignore:(overflow|divide by zero|invalid value):RuntimeWarning"
)

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPS = 1e-5

# Relative to the largest value: of the result, and of each gradient.
BOUNDS = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 8e-3}
"""A dtype's rounding (2^-53, 2^-24, 2^-9) times what sums and the two factors of SiLU add."""


@dataclass(frozen=True)
class Case:
    """A norm, and a volume for it."""

    shape: tuple[int, ...]
    groups: int
    dtype: torch.dtype = torch.float64
    channels_last: bool = True
    silu: bool = True
    shifted: bool = True

    def inputs(self, mean: float = 0.5) -> list[Tensor]:
        """Volume, weight, bias, and the shift if there is one; parameters are never bfloat16."""
        generator = torch.Generator().manual_seed(3)

        def drawn(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

        x = drawn(self.dtype, *self.shape) + mean
        if self.channels_last:
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        parameters = torch.float64 if self.dtype == torch.float64 else torch.float32
        made = [x, drawn(parameters, self.shape[1]), drawn(parameters, self.shape[1])]
        if self.shifted:
            made.append(drawn(self.dtype, *self.shape[:2]))
        return [tensor.requires_grad_() for tensor in made]

    def fused(self, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None = None) -> Tensor:
        return fused.group_norm(x, weight, bias, self.groups, EPS, silu=self.silu, shift=shift)

    def reference(
        self, x: Tensor, weight: Tensor, bias: Tensor, shift: Tensor | None = None
    ) -> Tensor:
        """The same, by torch's operators."""
        if shift is not None:
            x = x + shift.reshape(*shift.shape, *(1 for _ in x.shape[2:]))
        result = functional.group_norm(x, self.groups, weight, bias, EPS)
        return functional.silu(result) if self.silu else result


def check(case: Case, inputs: list[Tensor], bound: float) -> None:
    """Result and gradients are within `bound` of float64's, and lie in memory as the volume."""
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    result, expected = case.fused(*inputs), case.reference(*exact)
    dy = torch.randn(case.shape, generator=torch.Generator().manual_seed(4))
    dy = dy.to(DEVICE, result.dtype)
    gradients = torch.autograd.grad(result, inputs, dy)
    pairs = [(result.detach(), expected.detach())]
    pairs += zip(gradients, torch.autograd.grad(expected, exact, dy.double()), strict=True)
    assert result.dtype == inputs[0].dtype
    assert result.stride() == gradients[0].stride() == inputs[0].stride()
    errors = [float((one - other).abs().max() / other.abs().max()) for one, other in pairs]
    assert max(errors) < bound, errors


EXACT = [
    Case((2, 12, 5, 7, 3), groups=4),
    Case((2, 12, 5, 7, 3), groups=4, channels_last=False),
    Case((2, 12, 5, 7, 3), groups=4, silu=False, shifted=False),
    Case((1, 96, 3, 2, 2), groups=32),  # three channels in a group; more than a line of them
    Case((1, 6, 3, 1, 1), groups=6, channels_last=False, shifted=False),
    Case((1, 4, 1, 1, 1), groups=1),
    Case((2, 8, 11), groups=2, silu=False, shifted=False),  # the attention's
]


# Statistics and sums of a bfloat16 volume are float32: only what is written is rounded.
ROUNDED = [
    Case((2, 12, 5, 7, 3), 4, dtype, channels_last)
    for dtype in (torch.float32, torch.bfloat16)
    for channels_last in (True, False)
]


@pytest.mark.parametrize("case", [*EXACT, *ROUNDED], ids=repr)
def test_computes_group_norm_and_its_gradients(case: Case) -> None:
    check(case, case.inputs(), BOUNDS[case.dtype])


@pytest.mark.parametrize(
    ("programs", "channels_last"), [(1, True), (24, True), (24, False), (100, False)]
)
def test_however_many_programs_share_a_volume(
    programs: int, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Splits of several tiles, of one, and with a tile that is only partly there."""
    monkeypatch.setattr(fused, "_planned", fused._Plan)  # what other tests planned is forgotten
    monkeypatch.setattr(fused, "TILE", 64)
    monkeypatch.setattr(fused, "LINE", 8)
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    monkeypatch.setattr(fused, "PART", 2)
    case = Case((2, 12, 5, 3, 3), 4, channels_last=channels_last)
    check(case, case.inputs(), BOUNDS[case.dtype])


def test_volumes_far_from_zero_keep_their_variance() -> None:
    """In float32 a sum of squares would have no digit of it left."""
    case = Case((1, 8, 6, 6, 6), 4, torch.float32, shifted=False)
    # Float32 has the mean to 2^-24 of 1000, which is 6e-5 of the deviation.
    check(case, case.inputs(mean=1e3), 3e-4)


@pytest.mark.parametrize("channels_last", [True, False])
def test_is_an_operator_as_torch_wants_it(channels_last: bool) -> None:
    """Its schema, the strides it promises to torch.compile, and its gradient's registration."""
    case = Case((1, 4, 3, 2), 2, channels_last=channels_last)
    arguments = (*case.inputs(), case.groups, EPS, True)
    results = torch.library.opcheck(fused._forward, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("of", ["expanded", "other layout"])
def test_takes_a_gradient_of_any_layout(of: str) -> None:
    case = Case((2, 4, 3, 2, 2), 2)
    inputs = case.inputs()
    dy = torch.ones(case.shape, dtype=case.dtype, device=DEVICE)
    other = dy[:1, :1].expand(case.shape) if of == "expanded" else dy.contiguous()
    for one, expected in zip(
        torch.autograd.grad(case.fused(*inputs), inputs, other),
        torch.autograd.grad(case.reference(*inputs), inputs, dy),
        strict=True,
    ):
        torch.testing.assert_close(one, expected, rtol=1e-10, atol=1e-12)


def test_a_part_of_a_volume_becomes_contiguous() -> None:
    case = Case((1, 4, 3, 3, 3), 2, shifted=False)
    x, *parameters = case.inputs()
    part = x.detach()[..., 1:]
    result = case.fused(part, *parameters)
    assert result.is_contiguous()
    torch.testing.assert_close(result, case.reference(part, *parameters))


def test_keeps_nothing_of_the_volumes_size_beside_the_volume() -> None:
    case = Case((1, 8, 4, 4, 4), 2)
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    inputs = case.inputs()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        case.fused(*inputs)
    large = {tensor.data_ptr() for tensor in kept if tensor.numel() > 8 * 8}
    assert large == {inputs[0].data_ptr()}


def test_channels_that_do_not_divide_into_groups_are_refused() -> None:
    x = torch.zeros(1, 6, 2, device=DEVICE)
    with pytest.raises(ValueError, match="6 channels cannot be divided into 4 groups"):
        fused.group_norm(x, x[0, :, 0], x[0, :, 0], 4, EPS)
