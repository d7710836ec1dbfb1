"""Configurations compose by name, compute what the baseline computes, and leave nothing behind."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.model import GaussianDiffusion3D
from suites.meddpm.model import layers as network_layers
from suites.meddpm.model.layers import Block, GroupNorm32, ResidualBlock, SelfAttention
from suites.meddpm.norm import fused
from suites.meddpm.optimizations import BEST, OPTIMIZATIONS, PAPER, composed
from suites.meddpm.parts import PARTS, base
from suites.meddpm.parts.execution import Compile
from suites.meddpm.quality import with_live_branches
from tests.meddpm import small
from tests.meddpm.test_optimizations import global_state

pytestmark = [
    # torch 2.9 and 2.10 say so whenever the older settings are read.
    pytest.mark.filterwarnings("ignore:Please use the new API settings"),
    # torch.compile makes an instance of a function to trace it, and then says not to.
    pytest.mark.filterwarnings("ignore:.*autograd.function.Function.* should not be instantiated"),
    # Lanes beyond a volume's end have any value; numpy, in Triton's interpreter, says so.
    pytest.mark.filterwarnings("ignore:(overflow|divide by zero|invalid value):RuntimeWarning"),
]


class TestNames:
    def test_parts_come_in_any_order_and_what_none_decides_is_the_baselines(self) -> None:
        for name, parts in (
            ("fused_norm+channels_last+tf32", ["tf32", "channels_last", "fused_norm"]),
            ("baseline", ["ieee", "contiguous"]),
            ("sdpa", ["ieee", "contiguous", "sdpa"]),
        ):
            assert [part.name for part in composed(name).parts] == parts

    def test_names_of_the_suite_are_compositions(self) -> None:
        assert tuple(OPTIMIZATIONS)[: len(PAPER)] == PAPER
        assert composed("tf32_channels_last").parts == composed("channels_last+tf32").parts
        assert composed("bf16_compile").parts == composed("bf16+compile").parts
        assert composed("best").parts == composed(BEST).parts
        for name, optimization in OPTIMIZATIONS.items():
            assert composed(name) is optimization
            assert optimization.summary

    def test_others_are_refused(self) -> None:
        for name, says in (
            ("", 'configuration "": there is no part "". There are ieee, tf32, bf16, '),
            ("tf32+fast", 'there is no part "fast".*as a whole name also baseline, tf32, '),
            ("sdpa+tf32+sdpa", "names sdpa twice"),
            ("tf32+sdpa+ieee", "ieee and tf32 contradict each other: .* the float32 precision"),
            ("contiguous+channels_last", "contradict each other: each decides the memory format"),
        ):
            with pytest.raises(UsageFailure, match=says):
                composed(name)


class TestRequirements:
    def test_say_where_it_cannot_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "missing", lambda: None)
        monkeypatch.setattr(fused, "interpreted", lambda: False)
        for name, arch, reason in (
            ("bf16", "sm75", "bf16: needs sm80+; this device is sm75"),
            ("compile", "sm70", "compile: needs sm80+; this device is sm70"),
            ("compile", "cpu", "compile: needs a GPU"),
            ("cuda_graph", "cpu", "cuda_graph: needs a GPU"),
            ("fused_norm", "cpu", "fused_norm: needs a GPU"),
            ("fused_norm", "sm75", "fused_norm: needs sm80+; this device is sm75"),
            ("tf32+channels_last+fused_norm", "sm75", "fused_norm: needs sm80+"),
        ):
            said = composed(name).unavailable(arch)
            assert said is not None, (name, arch)
            assert said.startswith(reason), (name, arch)
        for name, arch in (
            *(("bf16", "sm80"), ("bf16", "cpu"), ("compile", "sm100"), ("cuda_graph", "sm70")),
            *(("fused_norm", "sm90"), ("best", "sm90")),
            *(("padded_channels+sdpa+fused_adam", "cpu"), ("sdpa+fused_adam", "sm70")),
        ):
            assert composed(name).unavailable(arch) is None, (name, arch)

    @pytest.mark.parametrize("name", ["fused_norm", "compile"])
    def test_without_triton_they_say_so(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "triton", None)
        reason = composed(name).unavailable("sm90")
        assert reason is not None
        assert reason.startswith(f"{name}: its kernels need Triton, which is not installed")

    def test_triton_s_interpreter_needs_no_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "missing", lambda: None)
        monkeypatch.setattr(fused, "interpreted", lambda: True)
        assert composed("fused_norm").unavailable("cpu") is None


def test_a_compiled_network_is_traced_whole_and_answers_the_same() -> None:
    """By torch's own operators: what a GPU's compiler makes of it is no code for a CPU."""
    optimization = composed("channels_last+padded_channels+separable_upsampling+compile")
    traced = [Compile("aot_eager") if type(p) is Compile else p for p in optimization.parts]
    diffusion, volumes, t = (
        with_live_branches(small.network()),
        small.volumes(),
        torch.tensor([100]),
    )
    with torch.no_grad():
        expected = diffusion.predict_noise(volumes.image, t, volumes.mask)
        with replace(optimization, parts=tuple(traced)).applied(diffusion):
            answer = diffusion.predict_noise(volumes.image, t, volumes.mask)
    assert (answer - expected).norm() < 1e-5 * expected.norm()


def layers() -> tuple[nn.Module, Tensor, Tensor]:
    """What the fused norm changes, an input and an embedding: of 32 channels."""
    torch.manual_seed(6)
    made = Block([ResidualBlock(32, 32, 8), SelfAttention(32)])
    made.append(nn.Sequential(GroupNorm32(32), nn.SiLU(), nn.Conv3d(32, 1, 1)))
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0, 0.1)
    x = torch.randn(1, 32, 2, 3, 2).contiguous(memory_format=torch.channels_last_3d)
    return made, x, torch.randn(1, 8)


class TestFusedNorm:
    @pytest.fixture(autouse=True)
    def triton(self) -> None:
        if fused.missing():
            pytest.skip(f"fused norm: {fused.missing()}")
        if not fused.interpreted():
            pytest.skip("a GPU is tested with whole steps (tests/gpu)")

    def answer(self, made: nn.Module, x: Tensor, embedding: Tensor) -> list[Tensor]:
        inputs = [x.clone().requires_grad_(), embedding.clone().requires_grad_()]
        result = made(*inputs)
        gradients = torch.autograd.grad(result.square().mean(), [*inputs, *made.parameters()])
        return [result.detach(), *gradients]

    def test_layers_compute_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Each group is a program, for which an interpreter takes its time.
        monkeypatch.setattr(network_layers, "GROUPS", 4)
        made, x, embedding = layers()
        expected = self.answer(made, x, embedding)
        with PARTS["fused_norm"].applied(made):
            made.compile(backend="aot_eager", fullgraph=True)
            answered = self.answer(made, x, embedding)
        torch.compiler.reset()
        for one, other in zip(answered, expected, strict=True):
            # The key's bias moves all scores alike: its gradient is rounding and nothing else.
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)

    def test_every_norm_calls_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        calls: list[tuple[bool, bool]] = []

        def noted(x: Tensor, *_: object, silu: bool, shift: Tensor | None) -> Tensor:
            calls.append((silu, shift is not None))
            return x

        monkeypatch.setattr(fused, "group_norm", noted)
        made, x, embedding = layers()
        with PARTS["fused_norm"].applied(made), torch.no_grad():
            made(x, embedding)
        # SiLU, embedding: those of the residual block, of the attention, and of the output.
        assert calls == [(True, False), (True, True), (False, False), (True, False)]


def test_fused_adam_makes_the_same_step() -> None:
    weights = []
    for name in ("baseline", "fused_adam"):
        with small.training_step(name) as step:
            loss = step()
            weights.append([loss, *(weight.detach() for weight in step.diffusion.parameters())])
    torch.testing.assert_close(weights[1], weights[0], rtol=1e-5, atol=1e-8)


def test_attention_is_recomputed_in_the_precision_of_its_forward() -> None:
    """Backward is outside autocast: recomputed in float32, the gradients would be others."""
    torch.manual_seed(5)
    attention = SelfAttention(32)
    for parameter in attention.parameters():
        nn.init.normal_(parameter, 0, 0.2)
    x = torch.randn(1, 32, 4, 4, 4)
    gradients = []
    for forward in (attention, attention._attend):  # with recomputation, and without
        attention.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            result: Tensor = forward(x)
        result.float().square().sum().backward()  # type: ignore[no-untyped-call]
        gradients.append([parameter.grad for parameter in attention.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1], rtol=0, atol=0)


def state(diffusion: GaussianDiffusion3D) -> object:
    """Whatever a part may change, beside the numbers."""
    return (
        [(type(m), m._compiled_call_impl, set(vars(m))) for m in diffusion.modules()],
        [(weight.stride(), weight.dtype) for weight in diffusion.parameters()],
        global_state(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
    )


@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_checkpoints_load_inside_and_nothing_is_left_behind_when_the_block_raises(
    name: str,
) -> None:
    diffusion = small.network()
    before = state(diffusion)
    weights = {key: value.clone() for key, value in diffusion.state_dict().items()}

    def broken_off() -> None:
        with OPTIMIZATIONS[name].applied(diffusion):
            inside = {key: value.shape for key, value in diffusion.state_dict().items()}
            assert inside == {key: value.shape for key, value in weights.items()}
            diffusion.load_state_dict(weights, strict=True)
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        broken_off()
    assert state(diffusion) == before
    assert all(map(torch.equal, diffusion.state_dict().values(), weights.values()))
