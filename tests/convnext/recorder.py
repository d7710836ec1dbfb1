"""A launcher of the ConvNeXt suite's kernels that notes what it is asked for."""

from __future__ import annotations

from suites.convnext_ddpm.kernels.launches import Argument, Launch


class Recorder:
    """A launcher that launches nothing, and knows what it was asked for."""

    def __init__(self, processors: int, arch: str = "sm90") -> None:
        self.processors = processors
        self.arch = arch
        self.launches: list[Launch] = []

    def launch(self, launch: Launch, *_arguments: Argument) -> None:
        self.launches.append(launch)
