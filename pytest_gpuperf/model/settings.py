"""How one invocation of pytest measures and judges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


# Made at each start of pytest, whoever measures: so without what nobody asks of it.
@dataclass(frozen=True, eq=False, repr=False)
class Settings:
    """How this invocation measures and judges."""

    root: Path
    """pytest's root directory: node ids and default folders are relative to it."""
    arch: str
    """An architecture of `catalogue/architectures.py`, or "auto"."""
    arch_is_flag: bool
    """Whether the architecture was asked for on the command line, not in the ini file."""
    collector: str
    ncu: Path | None
    """The ncu to run; None for the one that is found."""
    ncu_replay: str
    ncu_clocks: str
    ncu_caches: str
    protocol: str
    """Whether the paper's window is counted beside the whole step."""
    replay: Path | None
    metrics: str
    rounds: int
    processes: int
    """The most processes, this one included, that a test is looked at in."""
    time_limit: float
    """Seconds that a fresh process may take."""
    kernels: str
    """When the step's kernels are counted one by one: never, on-regression, always."""
    missing: str
    inconclusive: str
    require_counters: bool
    require_judged: bool
    """Whether every measurement without a verdict fails its test."""
    judge: bool
    run: Path | None
    """Where the run is saved; None for a new file under `.gpuperf/runs`."""
    reports: tuple[Path, ...]
    github: str
    """Whether GitHub Actions gets a job summary and annotations: auto (where it runs), never."""
    baselines: Path
