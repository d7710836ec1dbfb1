"""The generated parts of README and docs are those that the code and the committed runs give."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT


def test_generated_parts_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "script" / "docs"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
