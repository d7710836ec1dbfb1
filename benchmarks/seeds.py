"""Losses put into the Med-DDPM step on purpose, to see whether the judge finds them.

    pytest suites/meddpm -p benchmarks.seeds --seed conv-fp32 -k "[tf32]"

A pytest plugin, so that the step is measured, judged and repeated exactly as without a loss. Beside
those of LOSSES there are

    none              identical code
    instructions      one more kernel of `--seed-share` of the tf32 step's instructions, which takes
                      next to no time
    time              one more kernel of `--seed-share` of the tf32 step's time

Whether a line of code is named for a loss is asked elsewhere, of others: benchmarks/causes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pytest

from benchmarks import changes

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest

    from suites.meddpm.step import TrainingStep

STEP = "training_step"
"""The suite's fixture that makes the step."""

_INSTRUCTIONS_OF_THE_STEP = 61.6e9
"""Of the tf32 configuration on 128 x 128 x 128 voxels (docs/runs/h200-meddpm.json)."""


@dataclass(frozen=True)
class Loss:
    """A change of the training step that makes it slower."""

    name: str
    summary: str
    """One sentence: what it changes."""
    configuration: str
    """Where it is a loss: a name of `optimizations.py`."""
    applied: Callable[[TrainingStep], AbstractContextManager[None]]
    """Puts it into a step for a block."""


LOSSES = (
    Loss(  # 7 ms
        "conv-fp32",
        "one convolution computed without TF32, in forward only",
        "tf32",
        changes.convolution_in_float32,
    ),
    Loss(  # 20 ms of 335
        "contiguous",
        "a redundant `.contiguous()` at the end of every residual block",
        "tf32_channels_last",
        changes.contiguous_blocks,
    ),
    Loss(
        "conv-algorithm",
        "cuDNN takes the fastest deterministic plan of those it tries, not what its heuristics say",
        "tf32",
        changes.other_plans,
    ),
    Loss(  # 2.3 ms
        "extra-kernel",
        "one more elementwise operation at the end of the step, over 4.8 GB",
        "tf32",
        changes.extra_kernel,
    ),
    Loss(  # 4 to 10 ms
        "norm-layout",
        "one norm given its volume in channels_last, where all others are contiguous",
        "tf32",
        changes.norm_in_channels_last,
    ),
    Loss(  # 2.5 ms
        "attention-fp32",
        "the attention without TF32, in forward, recomputation and backward",
        "tf32",
        changes.attention_in_float32,
    ),
    Loss(  # 1.5 ms, and 4 ms in which the GPU waits
        "adam-loop",
        "Adam goes over the weights one by one (`foreach=False`)",
        "tf32",
        changes.adam_without_foreach,
    ),
    Loss(  # 2 to 8 ms
        "host-copy",
        "the network's input, 25 MB, copied to the host in every step",
        "tf32",
        changes.host_copy,
    ),
    Loss(  # 1 to 5 ms
        "synchronise",
        "the host waits for the GPU after each layer of the forward pass",
        "tf32",
        changes.synchronised,
    ),
    Loss(  # 1.7 ms
        "conv-twice",
        "one convolution computed a second time in forward, for nothing",
        "tf32",
        changes.convolution_twice,
    ),
)


def instructions(share: float) -> Loss:
    """One more kernel of this share of the tf32 step's instructions.

    For the judge of the step's counters: in a comparison of times there is nothing to see.
    """
    return Loss(
        "instructions",
        f"one more kernel of {share:.3g} of the step's instructions, which takes no time",
        "tf32",
        partial(changes.extra_instructions, count=share * _INSTRUCTIONS_OF_THE_STEP),
    )


def time(share: float) -> Loss:
    """One more kernel of this share of the tf32 step's time."""
    return Loss(
        "time",
        f"one more kernel of {share:.3g} of the step's time",
        "tf32",
        partial(changes.extra_kernel, share=share),
    )


SEEDS = ("none", *(loss.name for loss in LOSSES), "instructions", "time")

Value = TypeVar("Value")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the flags."""
    group = parser.getgroup("seeds", "losses on purpose")
    group.addoption("--seed", choices=SEEDS, default="none", help="which loss")
    group.addoption(
        "--seed-share",
        type=float,
        default=0.005,
        help="of the step, for --seed instructions and time; default: %(default)s",
    )


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Value], request: SubRequest
) -> Generator[None, Value, Value]:
    """Puts the loss into every step that the suite makes, until the step is taken down."""
    made = yield
    loss = chosen(request.config)
    if loss and fixturedef.argname == STEP:
        applied = ExitStack()
        applied.enter_context(loss.applied(made))  # type: ignore[arg-type]
        request.addfinalizer(applied.close)
    return made


def chosen(config: pytest.Config) -> Loss | None:
    """The loss that the flags ask for."""
    name = config.getoption("--seed")
    share = config.getoption("--seed-share")
    known = (*LOSSES, instructions(share), time(share))
    return next((loss for loss in known if loss.name == name), None)
