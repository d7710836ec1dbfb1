"""Whether the rank that was slowed is named, and its line: a user's step over two ranks.

    python -m benchmarks.user_ranks --record DIR [--sharding ddp] [--trials 40] [--limit S]
    python -m benchmarks.user_ranks --from DIR

The step is a small GPT's (`gpt_step.py`). One session of torchrun measures it again and again with
the kernels of each rank: first as it is, which is the baseline, then in turn with three kernels
more, with one, with a sleep of the host, each 2 % of the step, on each rank, and as it is. Each
trial is attributed against the first as `--gpuperf-kernels always` has it; no verdict withholds
anything. Exits with 1 where fewer than 9 in 10 are named, or anybody of those as they were.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.projects import environment, project
from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.storage import data_files, run_files

SLOWED = 0.02
"""Of the step."""
NAMED_SHARE = 0.9
FUNCTION = "Trainer.log"
"""Where a rank is slowed."""

_TESTS = """
import os
import time

import pytest

from benchmarks import gpt_step

END = time.monotonic() + {limit}
RANK = int(os.environ["RANK"])


@pytest.fixture(scope="module")
def trainer():
    import torch

    on_gpu = torch.cuda.is_available()
    made = gpt_step.Trainer("{sharding}", "cuda" if on_gpu else "cpu")
    slowdowns = {{kind: made.slowed(kind, {slowed}) for kind in gpt_step.KINDS}}
    return made, slowdowns


def late(device):
    "Whether there is no time for another: all ranks say the same."
    import torch

    said = torch.tensor([float(time.monotonic() > END)], device=device)
    torch.distributed.all_reduce(said, torch.distributed.ReduceOp.MAX)
    return bool(said.item())


@pytest.mark.parametrize("number", range({trials} + 1))
def test_trial(gpuperf, trainer, number):
    made, slowdowns = trainer
    if late(made.device):
        pytest.skip("no time left")
    kind = (*gpt_step.KINDS, "")[(number - 1) % 4] if number else ""
    slowed = (number - 1) // 4 % 2 if kind else -1
    made.slowdown = slowdowns[kind] if slowed == RANK else gpt_step.Slowdown()
    begun = time.monotonic()
    workload = {{"kind": kind, "slowed": slowed}}
    gpuperf.measure(made, workload=workload)
    if RANK == 0:
        print(f"trial {{number}}: {{kind or 'as it is'}}, {{time.monotonic() - begun:.1f}} s")
"""


def record(folder: Path, sharding: str, trials: int, limit: float) -> None:
    """Records the trials, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    run = folder / f"{sharding}.json.xz"
    if run.exists():
        return
    tests = _TESTS.format(limit=limit, sharding=sharding, slowed=SLOWED, trials=trials)
    place = project(folder / f"project-{sharding}", tests)
    (place / "pytest.ini").write_text("[pytest]\naddopts = -p no:randomly\n", encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    flags = ["--gpuperf-no-judge", "--gpuperf-kernels=always", "--gpuperf-rounds=5"]
    command = [*torchrun, "-m", "pytest", "-q", "-s", *flags, f"--gpuperf-run={run}"]
    subprocess.run([sys.executable, *command], cwd=place, env=environment(), check=False)


def said(trial: Measurement, before: Measurement) -> tuple[int | None, str, str]:
    """The rank that is named, the function of its line, and that line."""
    baseline = data_files.chosen([before])
    if trial.kernels is None or baseline is None:
        return None, "", "no kernel table"
    naming = Naming(*kernel_families.NAMING)
    found = attribute(trial.kernels, baseline, naming)
    cause = found.cause
    return found.rank, cause.function if cause else "", cause.line if cause else ""


def _step(measured: Measurement) -> float:
    """The median time of its steps; on a CPU of those that were timed."""
    by_metric = {s.metric: s.values for s in measured.samples if s.phase == STEP}
    return median(by_metric.get("step_time", by_metric["wall_time"]))


def table(folder: Path) -> tuple[str, bool]:
    """A row per trial, and then how many were right; and whether that is enough."""
    rows, right, slowed, wrong, others = [], 0, 0, 0, 0
    for file in sorted(folder.glob("*.json.xz")):
        before, *trials = run_files.load(file).measurements
        for trial in trials:
            rank, function, line = said(trial, before)
            kind, meant = str(trial.workload["kind"]), int(trial.workload["slowed"])
            good = rank == meant and function == FUNCTION if kind else rank is None
            slowed, others = slowed + bool(kind), others + (not kind)
            right, wrong = right + (bool(kind) and good), wrong + (not kind and not good)
            named = "-" if rank is None else rank
            longer = f"{100 * (_step(trial) / _step(before) - 1):+.2f} %"
            sharding = file.name.partition(".")[0]
            cells = sharding, kind or "as it is", meant if kind else "-", longer, named
            place = f"{line} {function}".strip()
            rows.append(f"| {' | '.join(map(str, (*cells, place)))} |")
    lines = [
        "| sharding | slowed by | rank | step | rank named | its line |",
        "| --- | --- | ---: | ---: | ---: | --- |",
        *rows,
        "",
        f"Rank and line were named in {right} of {slowed}, and anybody in {wrong} of {others} of "
        "the step as it is.",
    ]
    return "\n".join(lines) + "\n", bool(slowed) and right >= NAMED_SHARE * slowed and not wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or prints what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="DIR", help="measure what is missing there")
    what.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="print what is there")
    parser.add_argument("--sharding", choices=("ddp", "fsdp2"), default="ddp")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--limit", type=float, default=240.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    if options.record:
        record(options.record.resolve(), options.sharding, options.trials, options.limit)
    lines, good = table(options.folder or options.record)
    print(lines, end="")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
