"""Each configuration sets what it names, and leaves torch as it found it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

import pytest
import torch
from torch import nn

from suites.meddpm.optimizations import OPTIMIZATIONS, PAPER
from suites.precision import float32_precision
from tests import ROOT

HAS_FP32_PRECISION = hasattr(torch.backends.cuda.matmul, "fp32_precision")
"""torch 2.9 and later."""

# torch 2.9 and 2.10 say so whenever the older settings are used, which these tests do on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Please use the new API settings")

OLDER = ("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32")
NEWER = (
    "backends.cuda.matmul.fp32_precision",
    "backends.cudnn.conv.fp32_precision",
    "backends.cudnn.rnn.fp32_precision",
)
INHERITED = (
    "backends.fp32_precision",
    "backends.cudnn.fp32_precision",  # in spite of its name the setting of all of CUDA
    "backends.mkldnn.fp32_precision",
    "backends.mkldnn.matmul.fp32_precision",
    "backends.mkldnn.conv.fp32_precision",
)
EVERYTHING, CUDA = INHERITED[:2]
MATMUL, CONV, RNN = NEWER


def global_state() -> dict[str, object]:
    """What every getter answers, or that it raises: some do while the two APIs disagree."""

    def answer(name: str) -> object:
        try:
            value = attrgetter(name)(torch)
            return value() if callable(value) else value
        except RuntimeError:
            return "raises"

    newer = (*NEWER, *INHERITED) if HAS_FP32_PRECISION else ()
    return {name: answer(name) for name in ("get_float32_matmul_precision", *OLDER, *newer)}


def effective() -> set[Any]:
    """The precision of matrix products and convolutions."""
    if HAS_FP32_PRECISION:
        return {attrgetter(name)(torch) for name in NEWER}
    return {"tf32" if attrgetter(name)(torch) else "ieee" for name in OLDER}


def make(settings: dict[str, Any]) -> None:
    """Makes settings, in this order."""
    for name, value in settings.items():
        of, _, setting = name.rpartition(".")
        setattr(attrgetter(of)(torch), setting, value)


PRIOR: dict[str, dict[str, Any]] = {
    "nothing": {},
    "older, all on": dict.fromkeys(OLDER, True),
    "older, mixed": {OLDER[0]: True, OLDER[1]: False},
}
if HAS_FP32_PRECISION:
    PRIOR |= {
        "newer, operations mixed": {MATMUL: "tf32", CONV: "ieee", RNN: "none"},
        "newer, cuda": {CUDA: "tf32", MATMUL: "ieee"},
        "newer, everything bf16": {EVERYTHING: "bf16"},
        "newer, everything off, cuda on": {EVERYTHING: "ieee", CUDA: "tf32"},
        "both, so that the older getters raise": {
            **dict.fromkeys(OLDER, True),
            MATMUL: "ieee",
            CONV: "ieee",
        },
    }


@pytest.fixture(params=[*PRIOR, "older, matmul medium"])
def prior_state(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """A state that a user's program may have left torch in; torch's defaults afterwards."""
    make(PRIOR.get(request.param, {}))
    if request.param not in PRIOR:
        torch.set_float32_matmul_precision("medium")
    yield global_state()
    torch.set_float32_matmul_precision("highest")
    make({OLDER[0]: False, OLDER[1]: True})
    if HAS_FP32_PRECISION:
        make(dict.fromkeys((EVERYTHING, CUDA, MATMUL, INHERITED[3]), "none"))


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(32, 1))


def test_the_papers_four_configurations() -> None:
    parts = {
        name: (OPTIMIZATIONS[name].float32_precision, OPTIMIZATIONS[name].memory_format)
        for name in PAPER
    }
    assert parts == {
        "baseline": ("ieee", torch.contiguous_format),
        "tf32": ("tf32", torch.contiguous_format),
        "channels_last": ("ieee", torch.channels_last_3d),
        "tf32_channels_last": ("tf32", torch.channels_last_3d),
    }


class TestPrecision:
    def test_is_set_whatever_was_set_before_and_put_back_also_when_the_block_raises(
        self, model: nn.Module, prior_state: dict[str, object]
    ) -> None:
        """For products and for convolutions."""
        for name in PAPER:
            optimization = OPTIMIZATIONS[name]
            with suppress(MemoryError), optimization.applied(model):
                assert effective() == {optimization.float32_precision}, name
                raise MemoryError
            assert global_state() == prior_state, name

    def test_blocks_can_be_nested(self, prior_state: dict[str, object]) -> None:
        with float32_precision("tf32"):
            with float32_precision("ieee"):
                assert effective() == {"ieee"}
            assert effective() == {"tf32"}
        assert global_state() == prior_state

    @pytest.mark.skipif(not HAS_FP32_PRECISION, reason="torch before 2.9 has no inheritance")
    def test_a_setting_that_was_never_made_still_follows_its_backend(self) -> None:
        """In a fresh process, because nothing can bring torch back to that state."""
        program = (
            "import torch\n"
            "from suites.precision import float32_precision\n"
            "cudnn = torch.backends.cudnn\n"
            "def settings():\n"
            "    seen = []\n"
            "    for precision in ('none', 'ieee', 'tf32', 'none'):\n"
            "        cudnn.fp32_precision = precision\n"
            "        seen += [cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision,\n"
            "                 torch.backends.cuda.matmul.fp32_precision]\n"
            "    return seen\n"
            "before = settings()\n"
            "for precision in ('ieee', 'tf32'):\n"
            "    with float32_precision(precision):\n"
            "        pass\n"
            "    assert settings() == before, (precision, before, settings())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_weights_and_batches_have_channels_innermost_where_it_is_asked_for(
    model: nn.Module,
) -> None:
    """The weights keep their values, and are contiguous again afterwards."""
    batch = torch.randn(1, 2, 4, 4, 4)
    before = [parameter.clone() for parameter in model.parameters()]
    for name in PAPER:
        optimization = OPTIMIZATIONS[name]
        with optimization.applied(model):
            weight = model.get_parameter("0.weight")
            assert weight.is_contiguous(memory_format=optimization.memory_format), name
            prepared = optimization.prepare(batch)
        if optimization.memory_format is torch.channels_last_3d:
            assert prepared.stride() == (128, 1, 32, 8, 2)
            assert torch.equal(prepared, batch)
        else:
            assert prepared is batch
        assert all(parameter.is_contiguous() for parameter in model.parameters())
        assert all(map(torch.equal, model.parameters(), before))
