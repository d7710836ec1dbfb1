"""The tutorial: every command as it stands, typed by somebody new."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests import EVERY, ROOT
from tests.plugin.test_conditions import AT_NIGHT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCKS = re.findall(r"```sh( exits with 1)?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
_OURS = ("PYTHONPATH", "PYTEST_", "VIRTUAL_ENV", EVERY, "COV_", "GITHUB_")
"""What this session has in its environment, and nobody new has."""


def typed(block: str, code: int, folder: Path) -> str:
    """What a shell says to a block, in which the environment is the tutorial's."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_OURS)}
    environment["CHECKOUT"] = str(ROOT)
    activate = ". .venv/bin/activate\n" if (folder / ".venv").exists() else ""
    done = subprocess.run(
        ["bash", "-e", "-c", activate + block],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{block}\n{said}"
    return said


def test_each_block_is_a_command_line() -> None:
    assert [bool(fails) for fails, _ in BLOCKS].count(True) == 2
    for _, block in BLOCKS:
        subprocess.run(["bash", "-n", "-c", block], check=True)


@AT_NIGHT
def test_it_leads_somebody_new_from_nothing_to_a_night(tmp_path: Path) -> None:
    said = [typed(block, 1 if fails else 0, tmp_path) for fails, block in BLOCKS]
    missing, worse = (text for text, (fails, _) in zip(said, BLOCKS, strict=True) if fails)
    assert "gpuperf record " in missing
    assert "gpuperf update-baseline " in missing
    assert "training.py:12 Block.forward" in worse
    assert "runs in float64" in worse
    assert "3 runs. No level changed" in said[-1]
    assert {"history.html", "report.html"} <= {file.name for file in tmp_path.iterdir()}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count('<svg class="nights spark"') == 1


def test_the_pages_link_to_it() -> None:
    assert "docs/tutorial.md" in (ROOT / "README.md").read_text(encoding="utf-8")
