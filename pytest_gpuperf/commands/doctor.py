"""`gpuperf doctor`: can this machine be measured, and if not, why not."""

from __future__ import annotations

import argparse

from pytest_gpuperf.errors import FAILED, OK

NAME = "doctor"
HELP = "can this machine be measured, and if not, why not"
USAGE: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no flags."""


def act(options: argparse.Namespace) -> int:  # noqa: ARG001
    """Prints every check and its remedy; returns 1 where something that is needed is missing."""
    from pytest_gpuperf.measure.device.checks import examine

    checks = examine()
    for check in checks:
        print(f"{'yes' if check.ok else 'no ':3}  {check.name}: {check.detail}")
        if check.remedy and not check.ok:
            print(f"     -> {check.remedy}")
    return OK if all(check.ok or check.optional for check in checks) else FAILED
