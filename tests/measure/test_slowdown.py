"""Slowdowns in a step: where they are put in, what they do there, and that nothing stays behind."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.measure.instrument import PROVING
from pytest_gpuperf.measure.slowdown import (
    CPU,
    GPU,
    SLOWDOWNS,
    SlowedStep,
    in_tf32,
    layers_of,
    slowed_steps,
)
from pytest_gpuperf.model.measurement import SLOWDOWN_AT
from suites.precision import float32_precision
from tests import ROOT
from tests.examples import measurement


class Model(nn.Module):
    """Two layers, of which the second has the larger product."""

    def __init__(self) -> None:
        super().__init__()
        self.small, self.large = nn.Linear(8, 4), nn.Linear(4, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.large(self.small(x))  # type: ignore[no-any-return]


def _slowed(step: Callable[[], object], name: str, amount: float = 0.0) -> SlowedStep:
    work = Work(step, Phases(), test="t")
    return SlowedStep((name, 0.0, amount), work, layers_of(step), CPU, ROOT)


@pytest.mark.parametrize(
    ("device", "metric", "step", "first"),
    [
        (CPU, "flops", Model(), ["again", "kept tensor", "layout", "saved"]),
        # Nothing can be computed again; what is compiled can be compiled again.
        (CPU, "compiled_graphs", torch.neg, ["kept tensor", "layout", "saved", "recompilation"]),
        (GPU, "step_time", torch.neg, ["spin 3 %", "synchronisation", "kept tensor", "wait 3 %"]),
    ],
)
def test_what_a_step_cannot_have_is_not_chosen(
    device: str,
    metric: str,
    step: Callable[[Tensor], Tensor],
    first: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sample begins where the last ended, and a fresh process reads it without measuring."""
    monkeypatch.setenv(PROVING, f"2 {tmp_path}")
    measured, chosen = iter([measurement({metric: [1.0]})] * 2), list[str]()
    for name in ("one", "two", "two"):
        work = Work(lambda: step(torch.ones(2, 8)), Phases(), test="t", name=name)
        chosen += map(str, slowed_steps(work, device, ROOT, partial(next, measured)))
    assert chosen == [*first, *first[2:]]


def test_the_layers_of_a_step() -> None:
    """With the multiplications of weight and result, in all calls; other modules are none."""
    model, relu = Model(), nn.ReLU()
    found = layers_of(lambda: model(relu(model.small(torch.ones(2, 8)).repeat(1, 2))))
    assert [(layer.module, layer.calls, layer.products) for layer in found] == [
        (model.small, 2, 2 * 2 * 4 * 8),
        (model.large, 1, 2 * 64 * 4),
    ]


def test_a_layer_is_computed_again_at_its_line() -> None:
    """The largest product, once in each execution; the model stays as it was."""
    model, seen = Model(), list[int]()
    slowed = _slowed(lambda: model(torch.ones(2, 8)), "again")
    model.large.register_forward_pre_hook(lambda *_: seen.append(0))
    forward, before = model.large.forward, {*vars(model.large)}

    def noted(x: Tensor) -> Tensor:
        seen.append(1)
        return forward(x)

    model.large.forward = noted  # type: ignore[method-assign, assignment]
    slowed.step()
    assert seen == [0, 1, 1]
    assert model.large.forward is noted
    del model.large.forward
    slowed.step()
    assert {*vars(model.large)} == before
    line = next(n for n, text in enumerate(_source(), 1) if "return self.large" in text)
    assert slowed.settings()[SLOWDOWN_AT] == f"tests/measure/test_slowdown.py:{line}"


def test_what_a_layer_was_given_is_not_kept() -> None:
    """It would be memory of a line that nothing was put into."""
    given: list[weakref.ref[Tensor]] = []
    layer = nn.Linear(4, 4)

    def step() -> None:
        x = torch.ones(2, 4)
        given.append(weakref.ref(x))
        layer(x)

    slowed = _slowed(step, "kept tensor", 64.0)
    slowed.step()
    assert [one() for one in given] == [None, None]


def test_a_leak_ends_with_the_reset() -> None:
    """Each execution keeps as much more, and a layer that is called twice half at each call."""
    layer = nn.Linear(8, 8)
    for step, kept in ((lambda: None, [30, 30]), (lambda: layer(layer(torch.ones(8))), [15] * 4)):
        slowed = _slowed(step, "kept tensor", 30)
        slowed.step()
        slowed.step()
        assert [tensor.numel() for tensor in slowed.kept] == kept  # type: ignore[attr-defined]
        slowed.reset()
        assert slowed.kept == []


def test_a_spinning_kernel_is_an_operator_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after the first of them is gone."""
    spun: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", spun.append)
    for amount in (30, 10):
        _slowed(lambda: None, "spin", amount).step()
    assert spun == [30, 10]


def test_float32_is_for_one_layer() -> None:
    """The setting of its products is put back after the layer."""
    layer, seen = nn.Linear(2, 2), list[bool]()
    layer.register_forward_pre_hook(lambda *_: seen.append(in_tf32(layer)))
    forward = layer.forward

    def noted(x: Tensor) -> Tensor:
        seen.append(in_tf32(layer))
        return forward(x)

    layer.forward = noted  # type: ignore[method-assign, assignment]
    kind = SLOWDOWNS["float32"]
    assert not kind.fitting(layers_of(lambda: layer(torch.ones(2))))
    with float32_precision("tf32"):
        slowed = _slowed(lambda: layer(torch.ones(2)), "float32")
        seen.clear()
        slowed.step()
        assert [*seen, in_tf32(layer)] == [True, False, True]


def _source() -> list[str]:
    return Path(__file__).read_text(encoding="utf-8").splitlines()
