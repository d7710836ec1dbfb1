"""Each configuration sets what it names, and leaves torch as it found it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
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

backends: Any = torch.backends

GETTERS: dict[str, Callable[[], object]] = {
    "matmul precision": torch.get_float32_matmul_precision,
    "matmul allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
    "cudnn allow_tf32": lambda: backends.cudnn.allow_tf32,
}
if HAS_FP32_PRECISION:
    GETTERS |= {
        "everything": lambda: backends.fp32_precision,
        "cuda": lambda: backends.cudnn.fp32_precision,
        "cuda matmul": lambda: backends.cuda.matmul.fp32_precision,
        "cudnn conv": lambda: backends.cudnn.conv.fp32_precision,
        "cudnn rnn": lambda: backends.cudnn.rnn.fp32_precision,
        "mkldnn": lambda: backends.mkldnn.fp32_precision,
        "mkldnn matmul": lambda: backends.mkldnn.matmul.fp32_precision,
        "mkldnn conv": lambda: backends.mkldnn.conv.fp32_precision,
    }


def global_state() -> dict[str, object]:
    """What every getter answers, or that it raises: some do while the two APIs disagree."""

    def answer(get: Callable[[], object]) -> object:
        try:
            return get()
        except RuntimeError:
            return "raises"

    return {name: answer(get) for name, get in GETTERS.items()}


def effective() -> set[str]:
    """The precision of matrix products and convolutions."""
    if HAS_FP32_PRECISION:
        return {
            backends.cuda.matmul.fp32_precision,
            backends.cudnn.conv.fp32_precision,
            backends.cudnn.rnn.fp32_precision,
        }
    return {
        "tf32" if allowed else "ieee"
        for allowed in (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32)
    }


def set_older(matmul: bool, cudnn: bool) -> None:
    backends.cuda.matmul.allow_tf32 = matmul
    backends.cudnn.allow_tf32 = cudnn


def set_newer(**precisions: str) -> None:
    targets = {
        "everything": backends,
        "cuda": backends.cudnn,
        "matmul": backends.cuda.matmul,
        "conv": backends.cudnn.conv,
        "rnn": backends.cudnn.rnn,
    }
    for name, precision in precisions.items():
        targets[name].fp32_precision = precision


def set_both() -> None:
    set_older(True, True)
    set_newer(matmul="ieee", conv="ieee")


PRIOR: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "older, all on": lambda: set_older(True, True),
    "older, mixed": lambda: set_older(True, False),
    "older, matmul medium": lambda: torch.set_float32_matmul_precision("medium"),
}
if HAS_FP32_PRECISION:
    PRIOR |= {
        "newer, operations mixed": lambda: set_newer(matmul="tf32", conv="ieee", rnn="none"),
        "newer, cuda": lambda: set_newer(cuda="tf32", matmul="ieee"),
        "newer, everything bf16": lambda: set_newer(everything="bf16"),
        "newer, everything off, cuda on": lambda: set_newer(everything="ieee", cuda="tf32"),
        "both, so that the older getters raise": set_both,
    }


@pytest.fixture
def torch_defaults() -> Iterator[None]:
    """Puts the settings back to torch's defaults after a test that makes some of its own."""
    yield
    torch.set_float32_matmul_precision("highest")
    set_older(False, True)
    if HAS_FP32_PRECISION:
        set_newer(everything="none", cuda="none", matmul="none")
        backends.mkldnn.matmul.fp32_precision = "none"


@pytest.fixture(params=PRIOR)
def prior_state(request: pytest.FixtureRequest) -> dict[str, object]:
    """A state that a user's program may have left torch in."""
    request.getfixturevalue("torch_defaults")
    PRIOR[request.param]()
    return global_state()


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Conv3d(2, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(32, 1))


def test_the_papers_four_configurations() -> None:
    parts = {
        name: (optimization.float32_precision, optimization.memory_format)
        for name, optimization in OPTIMIZATIONS.items()
        if name in PAPER
    }
    assert parts == {
        "baseline": ("ieee", torch.contiguous_format),
        "tf32": ("tf32", torch.contiguous_format),
        "channels_last": ("ieee", torch.channels_last_3d),
        "tf32_channels_last": ("tf32", torch.channels_last_3d),
    }
    assert all(name == optimization.name for name, optimization in OPTIMIZATIONS.items())
    assert all(optimization.summary for optimization in OPTIMIZATIONS.values())


class TestPrecision:
    def test_is_set_whatever_was_set_before_and_put_back_also_when_the_block_raises(
        self, model: nn.Module, prior_state: dict[str, object]
    ) -> None:
        """For products and for convolutions."""
        for name in PAPER:
            optimization = OPTIMIZATIONS[name]
            with optimization.applied(model):
                assert effective() == {optimization.float32_precision}, name
            assert global_state() == prior_state, name
            with pytest.raises(RuntimeError, match="out of memory"):
                with optimization.applied(model):
                    raise RuntimeError("out of memory")
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


class TestMemoryLayout:
    def test_weights_and_batches_have_channels_innermost_where_it_is_asked_for(
        self, model: nn.Module
    ) -> None:
        batch = torch.randn(1, 2, 4, 4, 4)
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

    def test_the_weights_keep_their_values_and_return_to_contiguous(self, model: nn.Module) -> None:
        before = [parameter.clone() for parameter in model.parameters()]
        with OPTIMIZATIONS["channels_last"].applied(model):
            pass
        assert all(parameter.is_contiguous() for parameter in model.parameters())
        assert all(map(torch.equal, model.parameters(), before))
