"""Deriving needs nothing that takes long to import."""

from __future__ import annotations

import subprocess
import sys


def test_nothing_heavy_is_imported() -> None:
    program = (
        "import sys; from pytest_gpuperf.analysis import launch_totals, mix, priority, roofline; "
        "heavy = {'pydantic', 'pytest', 'scipy', 'torch', 'yaml'} & {*sys.modules}; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
