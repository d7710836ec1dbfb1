"""The losses that benchmarks put into the step: each is what it says, and gone afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import seeds
from benchmarks.seeds import Loss, instructions, time
from suites.meddpm.model import layers
from suites.meddpm.optimizations import OPTIMIZATIONS
from suites.meddpm.step import TrainingStep
from tests.meddpm import small
from tests.meddpm.test_optimizations import effective, global_state
from tests.meddpm.test_step import operators
from tests.plugin.projects import Project
from tests.plugin.test_conditions import AT_NIGHT

# torch 2.9 and 2.10 say so whenever the older settings are read.
pytestmark = pytest.mark.filterwarnings("ignore:Please use the new API settings")

LOSSES = (*seeds.LOSSES, instructions(1e-9), time(1e-9))
NAMED = {loss.name: loss for loss in LOSSES}
ATTENTIONS = 4
"""Of the small network."""
LAYERS = (layers.ResidualBlock, layers.SelfAttention, layers.Downsample, layers.Upsample)

cudnn: Any = torch.backends.cudnn


@pytest.fixture(params=LOSSES, ids=list(NAMED))
def loss(request: pytest.FixtureRequest) -> Loss:
    """Each of them."""
    each: Loss = request.param
    return each


@pytest.fixture
def step(loss: Loss) -> Iterator[TrainingStep]:
    """A step of the configuration that the loss is for."""
    with small.training_step(loss.configuration) as made:
        yield made


@pytest.fixture
def tf32() -> Iterator[TrainingStep]:
    with small.training_step("tf32") as made:
        yield made


class Watched(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the precision in which each of some operators is computed."""

    def __init__(self, *names: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        name = func.overloadpacket.__name__
        if name in self._names:
            (precision,) = effective()
            self.seen.append((name, precision))
        return func(*args, **(kwargs or {}))


def precisions(step: TrainingStep, *names: str) -> Counter[tuple[str, str]]:
    """How often each operator is computed in each precision."""
    watched = Watched(*names)
    step.reset()
    with watched:
        step()
    return Counter(watched.seen)


def trained(step: TrainingStep) -> list[Tensor]:
    """The losses of two steps from the start, and the weights after them."""
    step.reset()
    losses = [step(), step()]
    return [*losses, *(weight.detach().clone() for weight in step.diffusion.parameters())]


def state(step: TrainingStep) -> object:
    """All that a loss may hook into or set, beside the numbers."""
    return (
        dict(vars(TrainingStep)),
        sorted(vars(step)),
        [
            (sorted(vars(m)), *(len(h) for name, h in vars(m).items() if name.endswith("_hooks")))
            for m in step.diffusion.modules()
        ],
        len(step.adam._optimizer_step_post_hooks),
        [{k: v for k, v in group.items() if k != "params"} for group in step.adam.param_groups],
        global_state(),
        (cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic),
    )


def of(step: TrainingStep, *types: type[nn.Module]) -> list[nn.Module]:
    return [module for module in step.diffusion.modules() if isinstance(module, types)]


def change(name: str, step: TrainingStep) -> Counter[str]:
    """By how many calls of operators the loss changes a step."""
    step.reset()
    before = Counter(operators(step))
    step.reset()
    with NAMED[name].applied(step):
        after = Counter(operators(step))
    assert not before - after
    return after - before


def test_there_are_ten_each_of_a_configuration() -> None:
    assert len({loss.name for loss in seeds.LOSSES}) == 10
    assert {loss.configuration for loss in seeds.LOSSES} <= {*OPTIMIZATIONS}


@pytest.mark.parametrize(
    "loss",
    [
        each if number % 4 == 0 else pytest.param(each, marks=AT_NIGHT)
        for number, each in enumerate(LOSSES)
    ],
)
def test_afterwards_the_step_is_the_one_it_was_also_when_it_failed(
    loss: Loss, step: TrainingStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, settings = trained(step), state(step)
    with loss.applied(step):
        assert loss.name in ("synchronise", "instructions") or state(step) != settings
        step.reset()
        assert step().isfinite()
    assert state(step) == settings

    def failing(*_: object, **__: object) -> Tensor:
        raise RuntimeError("out of memory")

    def fails() -> None:
        with loss.applied(step):
            step()

    with monkeypatch.context() as broken:
        broken.setattr(torch, "bmm", failing)
        with pytest.raises(RuntimeError, match="out of memory"):
            fails()
    assert state(step) == settings
    assert all(map(torch.equal, trained(step), numbers))


@pytest.mark.parametrize(
    ("name", "operators_more"),
    [
        ("extra-kernel", {"aten.mul_.Tensor": 1}),
        ("host-copy", {"aten._to_copy.default": 1}),
        ("instructions", {"aten.lgamma.out": 1}),
        # The volume in forward and, on a CPU, its gradient.
        ("norm-layout", {"aten.clone.default": 2}),
        ("conv-fp32", {}),
        # Of the hooks, at both ends of each attention; they launch nothing.
        ("attention-fp32", {"aten.view.default": 2 * ATTENTIONS}),
        ("conv-algorithm", {}),
        ("synchronise", {}),
    ],
)
def test_what_is_launched_besides(
    name: str, operators_more: dict[str, int], tf32: TrainingStep
) -> None:
    assert change(name, tf32) == operators_more


def test_a_convolution_is_computed_twice_in_forward_alone(tf32: TrainingStep) -> None:
    more = change("conv-twice", tf32)
    assert more.pop("aten.convolution.default") == 1
    assert set(more) <= {"aten.detach.default"}  # no_grad wraps what it is given


def test_every_residual_block_ends_in_a_copy() -> None:
    with small.training_step("tf32_channels_last") as step:
        block = of(step, layers.ResidualBlock)[0]
        x = torch.randn(1, 32, 4, 4, 4).to(memory_format=torch.channels_last_3d)
        embedding = torch.randn(1, 128)
        # A convolution on a GPU keeps this layout, one on a CPU need not.
        before = block(x, embedding)
        assert before.is_contiguous(memory_format=torch.channels_last_3d)
        with NAMED["contiguous"].applied(step):
            after = block(x, embedding)
            assert all(len(b._forward_hooks) == 1 for b in of(step, layers.ResidualBlock))
    assert after.is_contiguous()
    assert torch.equal(before, after)


def test_one_norm_is_given_channels_last(tf32: TrainingStep) -> None:
    given: list[Tensor] = []
    with NAMED["norm-layout"].applied(tf32):
        for norm in of(tf32, layers.GroupNorm32):
            norm.register_forward_pre_hook(lambda _norm, inputs: given.append(inputs[0]))
        tf32()
    volumes = [volume for volume in given if volume.dim() == 5]
    assert [volume.is_contiguous() for volume in volumes] == [False] + [True] * (len(volumes) - 1)
    assert volumes[0].is_contiguous(memory_format=torch.channels_last_3d)
    assert volumes[0].shape[2:] == tf32.image.shape[2:]


def test_one_convolution_without_tf32_in_forward_alone(tf32: TrainingStep) -> None:
    names = ("convolution", "convolution_backward")
    before = precisions(tf32, *names)
    assert {precision for _, precision in before} == {"tf32"}
    with NAMED["conv-fp32"].applied(tf32):
        after = precisions(tf32, *names)
    assert after - before == {("convolution", "ieee"): 1}
    assert before - after == {("convolution", "tf32"): 1}


def test_attention_without_tf32_in_forward_and_backward(tf32: TrainingStep) -> None:
    names = ("bmm", "convolution", "convolution_backward", "addmm", "mm")
    before = precisions(tf32, *names)
    with NAMED["attention-fp32"].applied(tf32):
        after = precisions(tf32, *names)
    # Two products in forward, two when that is computed again, four in backward; and the two
    # projections, the second of which need not be computed again.
    assert after - before == {
        ("bmm", "ieee"): 8 * ATTENTIONS,
        ("convolution", "ieee"): 3 * ATTENTIONS,
        ("convolution_backward", "ieee"): 2 * ATTENTIONS,
    }
    assert ("bmm", "tf32") not in after
    assert {precision for name, precision in after if name.endswith("mm") and name != "bmm"} == {
        "tf32"
    }


def test_adam_goes_over_the_weights_one_by_one(tf32: TrainingStep) -> None:
    (group,) = tf32.adam.param_groups
    assert group["foreach"] is None
    group["foreach"] = True  # what None means on a GPU
    tf32.reset()
    together = operators(tf32)
    tf32.reset()
    with NAMED["adam-loop"].applied(tf32):
        apart = operators(tf32)
    assert group["foreach"] is True
    assert any("_foreach_" in name for name in together)
    assert not any("_foreach_" in name for name in apart)
    weights = len(list(tf32.diffusion.parameters()))
    assert apart.count("aten.addcdiv_.default") == weights


def test_other_plans_are_asked_for_in_a_way_that_torch_does_not_know_yet(
    tf32: TrainingStep,
) -> None:
    before = (cudnn.deterministic, cudnn.benchmark)
    with NAMED["conv-algorithm"].applied(tf32):
        assert (cudnn.deterministic, cudnn.benchmark) == (True, True)
    assert (cudnn.deterministic, cudnn.benchmark) == before


def test_the_host_waits_after_every_layer(
    tf32: TrainingStep, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[None] = []
    monkeypatch.setattr(torch.cpu, "synchronize", lambda: waited.append(None))
    tf32()
    assert not waited
    with NAMED["synchronise"].applied(tf32):
        tf32()
    assert len(waited) == len(of(tf32, *LAYERS))


SUITE = """
    import pytest
    from tests.meddpm import small

    made = []

    @pytest.fixture
    def training_step():
        with small.training_step("tf32") as step:
            made.append(step)
            yield step
            assert hooks(step) == 0  # before the configuration is taken back

    def hooks(step):
        return sum(len(m._forward_hooks) for m in step.diffusion.modules())

    def test_with(training_step):
        assert hooks(training_step) == 1
"""


def run_with(seed: str, project: Project) -> pytest.RunResult:
    """Runs the tests with the plugin, which is asked for this loss."""
    return project.pytester.runpytest_inprocess("--seed", seed, plugins=[seeds])


def test_the_plugin_puts_a_loss_into_the_step_that_the_suite_makes(project: Project) -> None:
    project.tests(SUITE)
    run_with("conv-twice", project).assert_outcomes(passed=1)


def test_an_unknown_loss_is_refused_with_the_known_ones(project: Project) -> None:
    result = run_with("slow", project)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--seed*slow*choose from*none*conv-fp32*instructions*"])
    assert set(seeds.SEEDS) == {"none", *NAMED}
