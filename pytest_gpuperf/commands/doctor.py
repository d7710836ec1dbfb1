"""`gpuperf doctor`: whether this machine can be measured, the reasons if not, and its GPU."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from pytest_gpuperf.commands import say_json, tell
from pytest_gpuperf.errors import FAILED, OK
from pytest_gpuperf.model.measurement import Canary, Machine

if TYPE_CHECKING:
    from pytest_gpuperf.measure.device.checks import Check

USAGE: str | None = None
EXAMPLES = ("gpuperf doctor", "gpuperf doctor --format json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flag of `gpuperf doctor`."""
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")


def act(options: argparse.Namespace) -> int:
    """Prints every check and its remedy; returns 1 where a necessary part is missing.

    Then prints more facts on the GPU than its name, and its canary.
    """
    from pytest_gpuperf.measure.device import canary, checks, fingerprint, nvml

    answers = checks.examine()
    if options.format == "text":
        tell(*_check_lines(answers))
    machine, read, device = None, None, nvml.detect_device()
    if device:
        machine = fingerprint.machine() or Machine()
        read = canary.read(device.arch)
    measurable = all(check.ok or check.optional for check in answers)
    if options.format == "json":
        all_of_it = checks.Examination(
            checks.SCHEMA, measurable, tuple(answers), device, machine, read
        )
        say_json(asdict(all_of_it))
    elif machine and read:
        tell(*_machine_lines(machine), *_canary_lines(read))
    return OK if measurable else FAILED


def _check_lines(answers: Iterable[Check]) -> Iterator[str]:
    for check in answers:
        yield f"{'yes' if check.ok else 'no ':3}  {check.name}: {check.detail}"
        if check.remedy and not check.ok:
            yield f"     -> {check.remedy}"


def _machine_lines(machine: Machine) -> Iterator[str]:
    """The driver's facts on the GPU, by the names that runs have; others are left out."""
    yield ""
    yield "Properties of this GPU:"
    for name, value in asdict(machine).items():
        if value not in (None, "", ()):
            yield f"  {name:26}  {value}"


def _canary_lines(read: Canary) -> Iterator[str]:
    """Each reading and how far its repeats were from it."""
    yield f"Speed of reference kernels (canary{f', {read.code}' if read.code else ''}):"
    for name, value in read.readings.items():
        yield f"  {name:18} {value:16,.3f}  +- {read.spreads[name]:.3%}"
    if read.obstacle:
        yield f"  not measured: {read.obstacle}"
