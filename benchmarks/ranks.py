"""What counting a step over ranks costs, how it repeats, and whether a slower rank is named.

    python -m benchmarks.ranks --record DIR [--ranks 2] [--rounds 25] [--trials 20] [--limit S]
    python -m benchmarks.ranks --from DIR

Records on the GPUs of this machine, and keeps each part in DIR as soon as it is there; the same
command goes on with what is missing. First each of Med-DDPM's steps over ranks, in rounds of one
pass. Then, under torchrun, a smaller one of them again and again: each rank in turn has a kernel
more that takes 2 % of what it works by itself, and in between nobody has. Exits with 1 where a
bound is missed, and with 4 where nothing was recorded.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.projects import ROOT, environment, project
from pytest_gpuperf.baselines.judgement import slower_ranks
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.measurement import STEP, Measurement, Peer
from pytest_gpuperf.storage import run_files

STEPS = tuple((sharding, name) for name in ("tf32", "best") for sharding in ("ddp", "fsdp2"))
TRIALS = "trials"
SLOWED = 0.02
"""Of a rank's own time."""
COST_SHARE, COST_S = 1.3, 3.0
"""Counting may take so many times the passes' own time, and so long beside that."""
NAMED_SHARE = 0.95
_NOTHING = 4

_TESTS = """
import os
from contextlib import nullcontext
from pathlib import Path

import pytest

own_ms = 0.0


@pytest.fixture(scope="module")
def step():
    import torch

    from suites.meddpm import data, sharding
    from suites.meddpm.model import med_ddpm
    from suites.meddpm.optimizations import composed

    sharding.join("cuda")
    torch.manual_seed(0)
    volumes = data.load("synthetic", {size}, Path("data", os.environ["RANK"]))
    configuration = composed("tf32")
    network = med_ddpm(128)
    with configuration.applied(network):
        yield sharding.ShardedStep("ddp", network, volumes, configuration, unmarked, "cuda")


def unmarked(name):
    return nullcontext()


def cycles_per_ms():
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    cycles = 100_000_000
    torch.cuda._sleep(cycles)
    begin.record()
    torch.cuda._sleep(cycles)
    end.record()
    torch.cuda.synchronize()
    return cycles / begin.elapsed_time(end)


@pytest.mark.parametrize("number", range({trials}))
def test_trial(gpuperf, step, number):
    import torch

    global own_ms
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The first round of trials begins with nobody: what it works by itself is known after that.
    slowed = number % (ranks + 1) - 1
    longer = int({slowed} * own_ms * cycles_per_ms()) if slowed == rank else 0

    def one_step():
        loss = step()
        if longer:
            torch.cuda._sleep(longer)
        return loss

    measured = gpuperf.measure(one_step, reset=step.reset, workload={{"slowed": slowed}})
    if not own_ms:
        own = measured.peers[rank if len(measured.peers) > 1 else 0]
        (times,) = (s.values for s in own.samples if s.metric == "own_time" and s.phase == "step")
        own_ms = sorted(times)[len(times) // 2] / 1e6
"""
_SIZE = 96
"""Edge of the trials' volume."""


def record(folder: Path, ranks: int, rounds: int, trials: int, limit: float) -> None:
    """Records what is missing; nothing is begun after `limit` seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    measuring = ["--gpuperf-no-judge", f"--gpuperf-rounds={rounds}", "-p", "no:cacheprovider"]
    for sharding, name in STEPS:
        run = folder / f"{sharding}-{name}.json.xz"
        test = "suites/meddpm/test_ranks.py::test_training_step_over_ranks"
        command = ["-m", "pytest", "-q", f"{test}[{sharding}-{name}-{ranks}]", *measuring]
        if not run.exists() and time.monotonic() - begun < limit:
            _run([*command, f"--gpuperf-run={run}"], ROOT)
    run = folder / f"{TRIALS}.json.xz"
    if run.exists() or time.monotonic() - begun >= limit:
        return
    # Each rank is slowed in its turn, and then nobody: so many that `trials` have one.
    count = -(-trials * (ranks + 1) // ranks)
    tests = _TESTS.format(size=_SIZE, trials=count, slowed=SLOWED)
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    # In one order on all ranks, the first trial first.
    command = [*torchrun, "-m", "pytest", "-q", "-p", "no:randomly", *measuring]
    _run([*command, f"--gpuperf-run={run}"], project(folder / "project", tests))


def _run(command: Sequence[str], folder: Path) -> None:
    subprocess.run([sys.executable, *command], cwd=folder, env=environment(), check=False)


def _values(of: Measurement | Peer, metric: str) -> tuple[float, ...]:
    found = [s.values for s in of.samples if (s.phase, s.metric) == (STEP, metric)]
    return found[0] if found else ()


def counted(measured: Measurement) -> tuple[int, float, float, float]:
    """Passes, ms of a step, seconds that counting took, and those that it may take.

    With the pass over the step's phases.
    """
    settings = measured.fingerprint.settings
    passes, took = int(settings["counter_passes"]), float(settings["counters_s"])
    step_ms = median(_values(measured, "step_time"))
    return passes, step_ms, took, COST_SHARE * passes * step_ms / 1e3 + COST_S


def named(trials: Sequence[Measurement]) -> Mapping[str, tuple[int, int]]:
    """Of those with a slowed rank in how many it alone was named; of the others in how many any."""
    slowed = [one for one in trials if int(one.workload["slowed"]) >= 0]
    others = [one for one in trials if int(one.workload["slowed"]) < 0]
    right = 0
    for one in slowed:
        notes = slower_ranks(one)
        right += len(notes) == 1 and notes[0].startswith(f"rank {one.workload['slowed']} ")
    return {
        "slowed": (right, len(slowed)),
        "others": (sum(bool(slower_ranks(one)) for one in others), len(others)),
    }


def table(folder: Path) -> tuple[str, bool]:
    """A row per step, as Markdown, then what came of the trials; and whether every bound is met.

    Raises BadFile where nothing was recorded.
    """
    good, rows = True, []
    for sharding, name in STEPS:
        file = folder / f"{sharding}-{name}.json.xz"
        measurements = run_files.load(file).measurements if file.exists() else ()
        for measured in measurements:
            passes, step_ms, took, most = counted(measured)
            good &= took <= most
            cells = (
                f"{sharding}, {name}",
                str(len(measured.peers)),
                str(passes),
                f"{step_ms:.4g}",
                f"{took:.1f}",
                f"{most:.1f}",
            )
            rows.append(f"| {' | '.join(cells)} |")
    file = folder / f"{TRIALS}.json.xz"
    trials = run_files.load(file).measurements if file.exists() else ()
    if not rows and not trials:
        raise BadFile(folder, "", "nothing was recorded here", "Record it: --record DIR")
    heading = (
        "step",
        "ranks",
        "passes",
        "step, ms",
        "counting took, s",
        "limit, s",
    )
    lines = []
    if rows:
        lines += [
            f"| {' | '.join(heading)} |",
            f"| --- |{' ---: |' * (len(heading) - 1)}",
            *rows,
            "",
        ]
    if trials:
        said = named(trials)
        right, of = said["slowed"]
        wrong, of_others = said["others"]
        late = sum(took > most for _, _, took, most in map(counted, trials))
        good &= right >= NAMED_SHARE * of and not wrong and not late
        device = trials[0].peers[0].device.name
        lines += [
            f"{device}, {len(trials[0].peers)} ranks under torchrun, {len(trials)} measurements: "
            f"gpuperf named the rank slowed by {100 * SLOWED:g} % in {right} of {of}, and a "
            f"rank in {wrong} of {of_others} measurements without a slowed one.",
            f"Counting exceeded its limit in {late}.",
        ]
    return "\n".join(lines) + "\n", good


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or prints what was recorded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", type=Path, metavar="DIR", help="measure what is missing there")
    what.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="print what is there")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    if options.record:
        folder = options.record.resolve()
        record(folder, options.ranks, options.rounds, options.trials, options.limit)
    try:
        lines, good = table(options.folder or options.record)
    except BadFile as error:
        print(error, file=sys.stderr)
        return _NOTHING
    print(lines, end="")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
