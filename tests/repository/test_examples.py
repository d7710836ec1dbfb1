"""The examples: guards of thirty lines that find a loss, for who has installed their library.

No check of a commit installs these: they weigh 16 MB (MONAI) to 130 MB (transformers) beside torch.
The nightly does.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.plugin.projects import Project

EXAMPLES = ROOT / "examples"
GUARDS = sorted(EXAMPLES.glob("*/test_*.py"))
MOST_LINES, SCREEN = 30, 50
LOSSES = {
    "a third layer in each residual unit": (
        *("monai-unet", "num_res_units=2", "num_res_units=3"),
        "aten._prelu_kernel 9 -> 12",
    ),
    "a loss in float64, of images": (
        *("monai-unet", "model(image)", "model(image).double()"),
        "aten._to_copy 0 -> 2",
    ),
    "attention where the picture is large": (
        *("diffusers-unet", '("DownBlock2D", "Attn', '("AttnDownBlock2D", "Attn'),
        "does work again (aten.view, aten.t, aten.transpose",
    ),
    "a forward pass that nobody uses": (
        *("diffusers-unet", "optimizer.zero_grad()", "optimizer.zero_grad(), model(noisy, times)"),
        "kept_memory x13.6",
    ),
    "embeddings that are no longer frozen": (
        *("transformers-finetuning", "requires_grad_(False)", "requires_grad_(True)"),
        "aten.embedding_dense_backward 0 -> 3",
    ),
    "a loss in float64, of texts": (
        *("transformers-finetuning", "labels=labels).loss", "labels=labels).loss.double()"),
        "aten._to_copy 0 -> 2",
    ),
}
"""Each by its example, what the guard has, what it has then, and what the failure says."""


def libraries(example: str) -> list[str]:
    """What an example requires beside torch and the plugin."""
    text = (EXAMPLES / example / "requirements.txt").read_text(encoding="utf-8")
    return [re.split(r"\W", line)[0] for line in text.split()]


def test_there_is_a_guard_of_each_library() -> None:
    assert {name for guard in GUARDS for name in libraries(guard.parent.name)} == {
        *("diffusers", "monai", "transformers")
    }
    assert {example for example, *_ in LOSSES.values()} == {guard.parent.name for guard in GUARDS}


@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.parent.name)
def test_a_guard_has_thirty_lines_at_most_and_its_page_is_a_screen(guard: Path) -> None:
    assert len(guard.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert len((guard.parent / "README.md").read_text(encoding="utf-8").splitlines()) <= SCREEN


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_that_is_put_in_by_hand_is_found(loss: str, project: Project) -> None:
    example, good, bad, says = LOSSES[loss]
    for library in libraries(example):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed: examples/{example}/requirements.txt has it")
    (guard,) = (one for one in GUARDS if one.parent.name == example)
    source = guard.read_text(encoding="utf-8")
    place = project.root / "tests" / guard.name
    place.parent.mkdir()
    place.write_text(source, encoding="utf-8")
    project.run_apart("--gpuperf-missing=record").assert_outcomes(passed=1)
    project.run_apart("--gpuperf-require-judged").assert_outcomes(passed=1)
    assert source.count(good) == 1
    place.write_text(source.replace(good, bad), encoding="utf-8")
    result = project.run_apart("--gpuperf-require-judged")
    result.assert_outcomes(failed=1)
    # Whatever the terminal's width.
    assert says in " ".join(result.stdout.str().split())
