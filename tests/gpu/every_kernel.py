"""Launches every kernel of the ConvNeXt suite, for script/sanitize to look at.

    python -m tests.gpu.every_kernel

Exits with 1 when one of them is further from float64 than it may be.
"""

from __future__ import annotations

import sys

from suites.convnext_ddpm.kernels.device import DeviceLauncher
from suites.convnext_ddpm.kernels.launches import Argument, Launch
from tests.convnext import kernel_cases as cases
from tests.convnext.kernel_cases import COMPOSITIONS, bound, error


class _Counting(DeviceLauncher):
    """Knows which kernels it has launched."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: set[str] = set()

    def launch(self, launch: Launch, *arguments: Argument) -> None:
        self.kernels.add(launch.kernel)
        super().launch(launch, *arguments)


def main() -> int:
    """Launches them, and says how many there were and which are wrong."""
    launcher, wrong = _Counting(), 0
    for name, composition in COMPOSITIONS.items():
        operators = composition(launcher)
        blocks = cases.BLOCKS if name.endswith(("one kernel", "few kernels")) else ()
        for case in (*cases.CONVOLUTIONS, *cases.NORMS, *cases.OTHERS, *blocks):
            given = cases.inputs(case)
            result = case.call(operators, {key: value.cuda() for key, value in given.items()})
            apart = error(case, given, result)
            if not apart < bound(name, case):
                print(f"{name}: {case.name}: error {apart:.2g}", file=sys.stderr)
                wrong += 1
    print(f"{len(launcher.kernels)} kernels on {launcher.arch}, {wrong} results wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
