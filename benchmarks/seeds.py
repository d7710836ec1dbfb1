"""Losses put into the Med-DDPM step on purpose, to see whether the judge finds them.

    pytest suites/meddpm -p benchmarks.seeds --seed conv-fp32 -k "[tf32]"

A pytest plugin, so that the step is measured, judged and repeated exactly as without a loss. The
losses are those of losses.py: the ten of which attribution has to find the cause (causes.py), and

    none              identical code
    instructions      one more kernel of `--seed-share` of the tf32 step's instructions, which takes
                      next to no time
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar

import pytest

from benchmarks.losses import CAUSES, Loss, instructions

if TYPE_CHECKING:
    from _pytest.fixtures import SubRequest

STEP = "training_step"
"""The suite's fixture that makes the step."""

SEEDS = ("none", *(loss.name for loss in CAUSES), "instructions")

Value = TypeVar("Value")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the flags."""
    group = parser.getgroup("seeds", "losses on purpose")
    group.addoption("--seed", choices=SEEDS, default="none", help="which loss")
    group.addoption(
        "--seed-share",
        type=float,
        default=0.005,
        help="of the step's instructions, for --seed instructions; default: %(default)s",
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
    known = (*CAUSES, instructions(config.getoption("--seed-share")))
    return next((loss for loss in known if loss.name == name), None)
