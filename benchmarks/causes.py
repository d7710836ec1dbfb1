"""Ten losses put into the Med-DDPM step, one after the other: does attribution name each cause.

    python -m benchmarks.causes [--out DIR] [--only NAME ...]     on a GPU, about two minutes
    python -m benchmarks.causes --from DIR                      again, from the saved tables

In one process, per configuration: a kernel table of the step as it is, one with each loss
(losses.py), and one without any again, for which nothing may be blamed. A table is saved as soon as
it is there. Exits with 1 when fewer than nine of the ten are found (with --only: when one is not),
or when something is blamed for a step without a loss; with 4 where there is no GPU.
"""

from __future__ import annotations

import argparse
import gc
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import suspects
from benchmarks.losses import CAUSES, Loss
from benchmarks.suspects import NONE, Recorded, Result
from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import GpuperfError, UsageFailure
from pytest_gpuperf.report.text import kernel_lines as report
from pytest_gpuperf.report.text.table import wrapped

if TYPE_CHECKING:
    from pytest_gpuperf.measure.collector import Collector, KernelCollector, Phases
    from pytest_gpuperf.model.measurement import KernelTable, Scalar
    from pytest_gpuperf.model.metric import Metric
    from suites.meddpm.data import Volumes
    from suites.meddpm.model import GaussianDiffusion3D
    from suites.meddpm.step import TrainingStep

SIZE = 128
"""The suite's volume, and the published network's, which is used for every size."""
WARMUP = 2
"""Executions before each table: what torch and cuDNN choose and allocate, they do in the first."""
MAY_BE_MISSED = 1
"""Of the ten."""
_OUT = Path(".gpuperf") / "causes"
_CACHE = Path(".gpuperf") / "data"
_INDENT = "  "

Say = Callable[[str], object]


class Bench:
    """Measures the network's steps on one device, with and without losses."""

    def __init__(
        self,
        diffusion: GaussianDiffusion3D,
        volumes: Volumes,
        collector: KernelCollector,
        metrics: Sequence[Metric],
        device: str,
        *,
        keep: Callable[[str, KernelTable], object],
        say: Say,
    ) -> None:
        """`keep` is given every table as soon as it is there, `say` a line on each."""
        self._diffusion = diffusion
        self._volumes = volumes
        self._collector = collector
        self._metrics = metrics
        self._device = device
        self._keep = keep
        self._say = say
        self.tables: dict[str, KernelTable] = {}
        self.errors: dict[str, str] = {}

    def measure(self, losses: Iterable[Loss]) -> None:
        """One table per loss, and two clean ones per configuration; what fails is in `errors`."""
        losses = list(losses)
        for configuration in dict.fromkeys(loss.configuration for loss in losses):
            chosen = [loss for loss in losses if loss.configuration == configuration]
            try:
                self._measure(configuration, chosen)
            except Exception as error:
                self.errors[suspects.clean(configuration)] = _in_a_line(error)
                missing = (loss.name for loss in chosen if loss.name not in self.tables)
                self.errors |= dict.fromkeys(missing, _in_a_line(error))
                self._say(f"{configuration}: {_in_a_line(error)}")

    def _measure(self, configuration: str, losses: Sequence[Loss]) -> None:
        import torch

        from pytest_gpuperf.measure.collector import Phases
        from suites.meddpm.optimizations import OPTIMIZATIONS
        from suites.meddpm.step import TrainingStep

        optimization = OPTIMIZATIONS[configuration]
        phases = Phases()
        torch.manual_seed(0)
        with optimization.applied(self._diffusion):
            step = TrainingStep(
                self._diffusion, self._volumes, optimization, phases.mark, self._device
            )

            def table(name: str, applied: AbstractContextManager[None]) -> None:
                begun = time.perf_counter()
                try:
                    with applied:
                        launched = self._table(step, phases)
                    self.tables[name] = launched
                    self._keep(name, launched)
                    said = launched.mismatch or f"{len(launched.launches):,} launches"
                except Exception as error:
                    # One loss that cannot be measured is no reason to lose the others.
                    said = self.errors[name] = _in_a_line(error)
                self._free()
                self._say(f"{name}: {said}, {time.perf_counter() - begun:.1f} s")

            table(suspects.clean(configuration), nullcontext())
            for loss in losses:
                table(loss.name, loss.applied(step))
            table(suspects.again(configuration), nullcontext())
            # The next configuration starts from the same weights.
            step.reset()

    def _table(self, step: TrainingStep, phases: Phases) -> KernelTable:
        from pytest_gpuperf.measure.collector import Work

        for _ in range(WARMUP):
            step.reset()
            float(step())  # waits for the device
        return self._collector.kernels(Work(step, phases, step.reset), self._metrics)

    def _free(self) -> None:
        """Gives back what the allocator holds, such as the workspaces of other algorithms."""
        import torch

        gc.collect()
        if torch.device(self._device).type == "cuda":
            torch.cuda.empty_cache()


def measured(losses: Sequence[Loss], size: int, source: str, folder: Path, say: Say) -> Recorded:
    """Measures on the GPU and saves everything in `folder`.

    Raises UsageFailure without a GPU, for a volume that cannot be had, and for a folder that has
    tables already: those of two processes are not to be compared.
    """
    import torch

    from pytest_gpuperf.catalogue.metric_catalogue import catalogue
    from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
    from suites.meddpm import data
    from suites.meddpm.model import med_ddpm

    if size < 16 or size % 16:
        raise UsageFailure(f"--size {size}: a multiple of 16 is needed, from 16 on")
    if not torch.cuda.is_available():
        raise UsageFailure(
            "no CUDA device: the losses are of a step on a GPU. Run this on a machine that has "
            "one, or judge saved tables with --from DIR"
        )
    if folder.exists() and any(folder.iterdir()):
        raise UsageFailure(f"{folder} is not empty. Give another folder with --out")
    volumes = data.load(source, size, _CACHE)
    collector = CuptiCollector()
    conditions = about(collector, volumes.source, size)
    torch.manual_seed(0)
    bench = Bench(
        med_ddpm(SIZE),
        volumes,
        collector,
        catalogue().hardware_set("core"),
        "cuda",
        keep=lambda name, table: suspects.save_table(folder, name, table),
        say=say,
    )
    begun = time.perf_counter()
    bench.measure(losses)
    conditions["seconds"] = round(time.perf_counter() - begun, 1)
    recorded = Recorded(bench.tables, conditions, bench.errors)
    suspects.save(folder, recorded)
    return recorded


def about(collector: Collector, source: str, size: int) -> dict[str, Scalar]:
    """What the tables depend on. Raises CountersUnavailable without a device."""
    from pytest_gpuperf.measure.device import fingerprint
    from pytest_gpuperf.storage import files

    device = collector.device()
    return {
        "device": device.name,
        "identity": device.identity,
        **fingerprint.software(),
        **collector.software(),
        "revision": fingerprint.revision(Path.cwd()),
        "measured": files.utc_now(),
        "data": source,
        "size": size,
    }


def lines(results: Sequence[Result], width: int) -> list[str]:
    """What was put in, and what was blamed for it."""
    return [line for result in results for line in _lines(result, width)]


def _lines(result: Result, width: int) -> list[str]:
    head = [f"{result.name} ({result.configuration}):"]
    expected = wrapped([f"expected {result.expected}"], width, _INDENT)
    if result.error:
        return [*wrapped([*head, f"not measured: {result.error}"], width, ""), *expected]
    moved = "" if result.relative is None else f" ({units.moved(result.relative)})"
    head += [f"{report.duration(result.change)}{moved},", _outcome(result)]
    # What comes after the guilty one is of no interest.
    rows = [one.row for one in result.suspects[: result.rank]]
    named = [line for block in report.laid_out(rows, width) for line in block]
    return [*wrapped(head, width, ""), *expected, *named]


def _outcome(result: Result) -> str:
    if result.name == NONE:
        return "nothing blamed" if result.as_expected else "BLAMED ALL THE SAME"
    if result.rank is None:
        alike = "; the same kernels were launched" if result.same_launches else ""
        return f"NOT FOUND{alike}"
    hidden = "" if result.shown else ", summed up with others under a failing test"
    return f"found as number {result.rank}{hidden}"


def verdict(results: Sequence[Result]) -> str:
    """The last line: how many were found."""
    losses = [result for result in results if result.name != NONE]
    missed = suspects.missed(losses)
    which = f" (not: {', '.join(result.name for result in missed)})" if missed else ""
    unclear = len(suspects.missed(results)) - len(missed)
    plain = f"; {unclear} of {len(results) - len(losses)} steps without a loss not clear"
    return (
        f"{len(losses) - len(missed)} of {len(losses)} causes found by family and kernel among the "
        f"{suspects.TOP} kernels that changed most{which}{plain if unclear else ''}"
    )


def failed(results: Sequence[Result]) -> bool:
    """Whether fewer were found than have to be, or something was blamed for no loss."""
    losses = [result for result in results if result.name != NONE]
    missed = suspects.missed(losses)
    allowed = MAY_BE_MISSED if len(losses) == len(CAUSES) else 0
    return not losses or len(missed) > allowed or len(suspects.missed(results)) > len(missed)


def main(arguments: list[str] | None = None) -> int:
    """Measures, or reads tables, and prints what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    every = [loss.name for loss in CAUSES]
    parser.add_argument(
        "--only", nargs="+", choices=every, default=every, metavar="NAME", help=", ".join(every)
    )
    parser.add_argument(
        "--size", type=int, default=SIZE, metavar="N", help="of the volume; default: %(default)s"
    )
    parser.add_argument(
        "--synthetic", action="store_true", help="a phantom, in place of the MNI152 template"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, default=_OUT, metavar="DIR", help="default: %(default)s")
    where.add_argument(
        "--from", type=Path, dest="tables", metavar="DIR", help="judge tables saved earlier"
    )
    options = parser.parse_args(arguments)
    losses = [loss for loss in CAUSES if loss.name in options.only]
    try:
        if options.tables:
            recorded = suspects.load(options.tables)
        else:
            source = "synthetic" if options.synthetic else "mni152"
            recorded = measured(losses, options.size, source, options.out, _say)
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    chosen = {NONE, *options.only}
    results = [result for result in suspects.results(recorded) if result.name in chosen]
    width = shutil.get_terminal_size().columns
    print(*lines(results, width), sep="\n")
    print(*wrapped([verdict(results)], width, ""), sep="\n")
    return int(failed(results))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _in_a_line(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
