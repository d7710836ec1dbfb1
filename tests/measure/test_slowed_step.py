"""Slowdowns in a step: where they are put in, what they do there, and that nothing stays behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.measure.slowdown import CPU, SLOWDOWNS, Call, Dose, Injection, in_tf32
from pytest_gpuperf.measure.slowed_step import SlowedStep, modules_of
from pytest_gpuperf.model.measurement import SLOWDOWN_ABSENT, SLOWDOWN_AT
from suites.precision import float32_precision
from tests import ROOT


class Layers(nn.Module):
    """Two layers, of which the second has the larger product."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(8, 4), nn.Linear(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.large(self.small(x))  # type: ignore[no-any-return]


def _slowed(step: Callable[[], object], name: str, **amounts: float) -> SlowedStep:
    return SlowedStep(Dose(name, **amounts), Work(step, Phases(), test="t"), CPU, ROOT, [])


def _executed(step: SlowedStep) -> str:
    step.step()
    return str(step.settings().get(SLOWDOWN_AT, ""))


def test_the_innermost_modules_are_places() -> None:
    """With the multiplications of weight and result."""
    model = Layers()
    places = modules_of(lambda: model(torch.ones(2, 8)))
    assert [(place.of, place.products) for place in places] == [
        (model.small, 2 * 4 * 8),
        (model.large, 2 * 64 * 4),
    ]


def test_a_layer_is_computed_again_at_its_line() -> None:
    """The largest product, once in each execution; the model keeps no hook."""
    model, seen = Layers(), list[int]()
    forward = model.large.forward

    def noted(x: Tensor) -> Tensor:
        seen.append(1)
        return forward(x)

    model.large.forward = noted  # type: ignore[method-assign, assignment]
    slowed = _slowed(lambda: model(torch.ones(2, 8)), "again")
    line = next(n for n, text in enumerate(_source(), 1) if "return self.large" in text)
    assert _executed(slowed) == f"tests/measure/test_slowed_step.py:{line}"
    assert len(seen) == 3  # once to find the place
    slowed.step()
    assert len(seen) == 5
    assert not model.large._forward_hooks
    assert not model.large._forward_pre_hooks


def test_a_step_without_a_place_says_so() -> None:
    """Nothing of the step can be computed again, and it runs as it is."""
    slowed = _slowed(lambda: 5.0, "again")
    assert slowed.step() == 5.0
    assert SLOWDOWN_ABSENT in slowed.settings()


def test_a_leak_ends_with_the_reset() -> None:
    """Each execution keeps 3 % of the peak more."""
    slowed = _slowed(lambda: None, "kept tensor", peak_bytes=1000)
    slowed.step()
    slowed.step()
    assert [tensor.numel() for tensor in slowed._put.kept] == [30, 30]  # type: ignore[attr-defined]
    slowed.reset()
    assert slowed._put.kept == []


def test_a_spinning_kernel_is_an_operator_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the first of them is gone."""
    spun: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    act = SLOWDOWNS["spin"].act
    assert act is not None
    for share in (0.03, 0.01):
        act(Injection(Dose("spin", share, cycles=1000), CPU), Call(None))
    assert spun == [30, 10]


def test_float32_is_for_one_layer() -> None:
    """The setting of its products is put back after the layer."""
    around, layer, seen = SLOWDOWNS["float32"].around, nn.Linear(2, 2), list[bool]()
    assert around is not None
    with float32_precision("tf32"):
        with around(layer):
            seen.append(in_tf32(layer))
        assert [*seen, in_tf32(layer)] == [False, True]


def _source() -> list[str]:
    return Path(__file__).read_text(encoding="utf-8").splitlines()
