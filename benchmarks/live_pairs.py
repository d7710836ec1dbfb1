"""How often `gpuperf ab` is right of processes that ran: Med-DDPM's tf32 step, with known changes.

    python -m benchmarks.live_pairs --record [--out DIR] [--rounds 9] [--limit SECONDS]
    python -m benchmarks.live_pairs --from DIR [--trials 20]

A round is five processes: the step as it is, twice, and with one more kernel that takes 0.5 % of
its time, that executes 0.05 % of its instructions, or that takes 1 % of its time; every second
round the other way round. What was measured is kept after each process, and the same command goes
on with it. A trial is one order of the rounds, drawn at random, looked at as `gpuperf ab` does
until it is decided. It sees the one metric that the change is about: the launch more, which is
exact, would decide every trial at the first look that may fail. Of the last side the baseline is
the slower one, so that it has to be called improved. A round that was cut in two, and went on on
another GPU, is no pair. Exits with 1 where a
trial is wrong, and with 4 where too little was measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.pairs import decided
from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import run_files

ROOT = Path(__file__).resolve().parent.parent
TEST = "suites/meddpm/test_training.py::test_training_step[tf32]"
SIDES: Mapping[str, tuple[str, float]] = {
    "as-is": ("none", 0.0),
    "longer": ("time", 0.005),
    "again": ("none", 0.0),
    "instructions": ("instructions", 0.0005),
    "longest": ("time", 0.01),
}
"""The processes of a round, in order: which seed of benchmarks/seeds.py, and how large."""


@dataclass(frozen=True)
class Effect:
    """What two sides of a round are held against each other for."""

    name: str
    before: str
    after: str
    metric: str
    """The only one that a trial sees; "" for all of them."""
    right: Outcome


EFFECTS = (
    Effect("identical", "as-is", "again", "", Outcome.UNCHANGED),
    Effect("cycles +0.5 %", "as-is", "longer", "cycles", Outcome.REGRESSED),
    Effect("instructions +0.05 %", "again", "instructions", "instructions", Outcome.REGRESSED),
    Effect("cycles -1 %", "longest", "again", "cycles", Outcome.IMPROVED),
)
_NOTHING = 4


def record(folder: Path, rounds: int, arch: str, limit: float) -> None:
    """Records what is missing, as long as the next process will probably end within `limit` s."""
    folder.mkdir(parents=True, exist_ok=True)
    begun, longest = time.monotonic(), 0.0
    for number in range(rounds):
        sides = list(SIDES)[:: -1 if number % 2 else 1]
        for side in sides:
            file = folder / f"{side}-{number}.json.xz"
            before = time.monotonic()
            if file.exists():
                continue
            if before + longest - begun > limit:
                print(f"{file.stem} and what follows is left out: {limit:g} s", file=sys.stderr)
                return
            seed, share = SIDES[side]
            flags = ["-p", "benchmarks.seeds", "--seed", seed, "--seed-share", str(share)]
            measuring = ["--gpuperf-run", str(file), "--gpuperf-no-judge", "--gpu-arch", arch]
            command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", TEST, *flags, *measuring]
            subprocess.run([sys.executable, *command], cwd=ROOT, check=False)
            longest = max(longest, time.monotonic() - before)


def recorded(folder: Path, side: str) -> dict[int, Measurement]:
    """The measurements of one side, by round."""
    found = {}
    for file in folder.glob(f"{side}-*.json.xz"):
        number = file.name.removeprefix(f"{side}-").partition(".")[0]
        (found[int(number)],) = run_files.load(file).measurements
    return found


def _only(metric: str, measurement: Measurement) -> Measurement:
    samples = tuple(s for s in measurement.samples if metric in ("", s.metric))
    return replace(measurement, samples=samples)


def trials(folder: Path, effect: Effect, count: int) -> tuple[Counter[str], list[int]]:
    """What the trials of one effect came to, and how many pairs each of them took.

    Raises BadFile where nothing was recorded.
    """
    before, after = recorded(folder, effect.before), recorded(folder, effect.after)
    pairs = [
        (_only(effect.metric, before[number]), _only(effect.metric, after[number]))
        for number in sorted({*before} & {*after})
        if before[number].fingerprint.device == after[number].fingerprint.device
    ]
    if not pairs:
        remedy = "Record it: --record"
        raise BadFile(folder, effect.name, "no round has both sides on one GPU", remedy)
    said: Counter[str] = Counter()
    looks = []
    for number in range(count):
        order = np.random.default_rng([20261123, number]).permutation(len(pairs))
        verdicts, took = decided([pairs[place] for place in order], in_pairs=True)
        looks.append(took)
        outcomes = {v.outcome for v in verdicts if v.phase == STEP} - {Outcome.REPORTED}
        said["right" if outcomes == {effect.right} else "wrong"] += 1
        said.update(outcome.value for outcome in outcomes)
    return said, looks


def table(folder: Path, count: int = 20) -> tuple[str, int]:
    """A row per effect, as Markdown, and how many trials were wrong.

    Raises BadFile where nothing was recorded.
    """
    rows = ["| effect | right | outcomes | pairs, on average | at most |"]
    rows.append("| --- | ---: | --- | ---: | ---: |")
    wrong = 0
    for effect in EFFECTS:
        said, looks = trials(folder, effect, count)
        right = said.pop("right", 0)
        wrong += said.pop("wrong", 0)
        outcomes = ", ".join(f"{name} {times}" for name, times in said.most_common())
        cells = (f"{right} of {count}", outcomes, f"{fmean(looks):.1f}", str(max(looks)))
        rows.append(f"| {effect.name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n", wrong


def main(arguments: Sequence[str] | None = None) -> int:
    """Records, or says how often it is right."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--record", action="store_true", help="measure")
    what.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="judge what is there")
    parser.add_argument("--out", type=Path, default=Path(".gpuperf") / "pairs", metavar="DIR")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--gpu-arch", default="auto", metavar="ARCH")
    parser.add_argument("--limit", type=float, default=540.0, metavar="SECONDS")
    options = parser.parse_args(arguments)
    if options.record:
        record(options.out.resolve(), options.rounds, options.gpu_arch, options.limit)
        return 0
    try:
        lines, wrong = table(options.folder, options.trials)
    except BadFile as error:
        print(error, file=sys.stderr)
        return _NOTHING
    print(lines, end="")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
