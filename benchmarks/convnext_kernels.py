"""The ConvNeXt suite's kernels against one another, against cuDNN and against a copy, in one run.

    python -m benchmarks.convnext_kernels [--rounds N] [--out FILE]      on a GPU, about a minute
    python -m benchmarks.convnext_kernels --from FILE                    what was saved there

Each line compares two ways to the same result, which take turns: how many times as fast the first
is. Times are those of a CUDA graph of many calls, so that launching costs neither anything. A norm
is compared with a copy of its input, which reads and writes as many bytes: the ratio is its share
of the bandwidth of a copy. Exits with 1 when a ratio is below what is wanted of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import BadFile, GpuperfError, UsageFailure
from pytest_gpuperf.storage import files

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from suites.convnext_ddpm.kernels.launches import Launcher
    from suites.convnext_ddpm.kernels.norms import Norm
    from suites.convnext_ddpm.operators import BlockParameters, Operators

ROUNDS = 11
BATCH, BATCHES = 64, (1, 16, 64)
"""Images, of the lines that something is wanted of, and of all. One image keeps few of a large
GPU's processors busy, and the norm of 64 does not fit into its cache."""
LEAST_TILED, LEAST_CUDNN, LEAST_COPY = 3.0, 0.3, 0.6
_ENOUGH_NS = 2e6
"""Of a graph, so that the clock of the events is fine enough."""
_SEED = 1


@dataclass(frozen=True)
class Ratio:
    """Two ways to one result: nanoseconds of a call, one value per round."""

    what: str
    other: str
    """What it is compared with."""
    ours_ns: tuple[float, ...]
    other_ns: tuple[float, ...]
    least: float | None = None
    """The ratio that is wanted."""
    work: float = 0.0
    """FLOP or bytes of a call."""
    unit: str = "FLOP"

    @property
    def ratio(self) -> float:
        """How many times as fast ours is: the median over rounds."""
        return median(b / a for a, b in zip(self.ours_ns, self.other_ns, strict=True))

    @property
    def good(self) -> bool:
        """Whether it is as fast as wanted."""
        return self.least is None or self.ratio >= self.least


@dataclass(frozen=True)
class Results:
    """The content of a file of `--out`."""

    about: dict[str, str]
    """The device and the versions of the software."""
    ratios: tuple[Ratio, ...]


Call = Callable[[], object]


@dataclass(frozen=True)
class Comparison:
    """What is to be measured of a Ratio."""

    what: str
    ours: Call
    other: str
    others: tuple[Call, ...]
    """Ways to do the other, of which the fastest counts."""
    least: float | None = None
    work: float = 0.0
    unit: str = "FLOP"


def measured(rounds: int) -> Results:
    """All of it. Raises UsageFailure where there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise UsageFailure(
            "times of kernels need a GPU, and torch sees none. Without one the kernels are "
            "compiled and compared with float64: pytest tests/convnext"
        )
    from pytest_gpuperf.measure.device import fingerprint, nvml
    from pytest_gpuperf.storage import files
    from suites.convnext_ddpm.kernels.device import DeviceLauncher

    device, launcher = nvml.detect_device(), DeviceLauncher()
    about = {
        "device": torch.cuda.get_device_name(),
        "identity": device.identity if device else "",
        **fingerprint.software(),
        "revision": fingerprint.revision(Path.cwd()),
        "measured": files.utc_now(),
    }
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        with torch.no_grad():
            ratios = [
                _ratio(comparison, rounds)
                for kind in (_convolutions, _norms, _fusion)
                for comparison in kind(launcher)
            ]
    finally:
        torch.backends.cudnn.benchmark = before
    return Results(about, tuple(ratios))


def _convolutions(launcher: Launcher) -> Iterator[Comparison]:
    from suites.convnext_ddpm.kernels.operators import KernelOperators

    for edge in (64, 32):
        for images in BATCHES:
            x, weight, bias = _random((images, 64, edge, edge), (64, 64, 3, 3), (64,))
            naive, tiled, im2col = (
                _convolution(KernelOperators(launcher, convolution=name), x, weight, bias)
                for name in ("naive", "tiled", "im2col_bf16")
            )
            shape = f"{images} x 64 channels, {edge}x{edge}"
            work, wanted = 2.0 * images * edge * edge * 64 * 64 * 9, images == BATCH
            least = LEAST_TILED if wanted else None
            yield Comparison(f"tiled 3x3, {shape}", tiled, "naive", (naive,), least, work)
            least = LEAST_CUDNN if wanted else None
            cudnn = _cudnn(x, weight, bias)
            yield Comparison(f"im2col_bf16 3x3, {shape}", im2col, "cuDNN bf16", cudnn, least, work)


def _norms(launcher: Launcher) -> Iterator[Comparison]:
    from suites.convnext_ddpm.kernels.operators import KernelOperators

    names: tuple[Norm, ...] = ("naive", "warp_shuffle", "three_kernel")
    for images in BATCHES:
        x, weight, bias = _random((images, 64, 64, 64), (64,), (64,))
        for name in names:
            yield Comparison(
                f"{name} norm, {images} x 64 channels, 64x64",
                _norm(KernelOperators(launcher, norm=name), x, weight, bias),
                "a copy",
                (x.clone,),
                LEAST_COPY if images == BATCH and name != "naive" else None,
                2.0 * x.numel() * x.element_size(),
                "bytes",
            )


def _fusion(launcher: Launcher) -> Iterator[Comparison]:
    from suites.convnext_ddpm.kernels.operators import KernelOperators

    x, weight, bias = _random((16, 64, 64, 64), (64, 64, 3, 3), (64,))
    fused, unfused = (
        _convolution(KernelOperators(launcher, fused=fused), x, weight, bias)
        for fused in (True, False)
    )
    what = "tiled 3x3 with bias and GELU fused, 16 x 64 channels, 64x64"
    yield Comparison(what, fused, "three kernels", (unfused,), 1.0, 2.0 * x.numel() * 64 * 9)
    for images, channels, edge in ((1, 64, 8), (1, 128, 4), (1, 128, 8), (1, 256, 8), (32, 128, 8)):
        x, parameters = _block(images, channels, edge)
        one, few = (
            partial(
                KernelOperators(launcher, blocks=True, largest_work=most).block, x, None, parameters
            )
            for most in (None, 0)
        )
        what = f"a block in one kernel, {images} x {channels} channels, {edge}x{edge}"
        work = 2.0 * x.numel() * 9 * 4 * channels
        yield Comparison(what, one, "few kernels", (few,), None, work)


def _convolution(operators: Operators, x: Tensor, weight: Tensor, bias: Tensor) -> Call:
    from suites.convnext_ddpm.operators import Epilogue

    call = operators.convolution
    return partial(call, x, weight, bias, padding=1, epilogue=Epilogue.GELU)


def _norm(operators: Operators, x: Tensor, weight: Tensor, bias: Tensor) -> Call:
    return partial(operators.layer_norm, x, weight, bias, 1e-5)


def _cudnn(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Call, ...]:
    import torch
    from torch.nn import functional

    def call(layout: torch.memory_format) -> Call:
        low = [t.bfloat16().contiguous(memory_format=layout) for t in (x, weight)]
        return partial(functional.conv2d, *low, bias.bfloat16(), padding=1)

    return call(torch.contiguous_format), call(torch.channels_last)


def _block(images: int, channels: int, edge: int) -> tuple[Tensor, BlockParameters]:
    from suites.convnext_ddpm.operators import BlockParameters

    middle = 2 * channels
    x, depthwise, conv1, conv2, narrow, wide = _random(
        (images, channels, edge, edge),
        (channels, 1, 7, 7),
        (middle, channels, 3, 3),
        (channels, middle, 3, 3),
        (channels,),
        (middle,),
    )
    return x, BlockParameters(
        *(depthwise, narrow, narrow, narrow, conv1, wide, wide, wide, conv2, narrow),
        *(None, None, 1e-5),
    )


def _random(*shapes: tuple[int, ...]) -> list[Tensor]:
    import torch

    generator = torch.Generator(device="cuda").manual_seed(_SEED)
    return [torch.randn(shape, generator=generator, device="cuda") for shape in shapes]


def _ratio(comparison: Comparison, rounds: int) -> Ratio:
    ours, *others = (_Timed(call) for call in (comparison.ours, *comparison.others))
    times = [[timed() for timed in (ours, *others)] for _ in range(rounds)]
    by_way = list(zip(*times, strict=True))
    return Ratio(
        comparison.what,
        comparison.other,
        by_way[0],
        min(by_way[1:], key=median),
        comparison.least,
        comparison.work,
        comparison.unit,
    )


class _Timed:
    """A call, as a CUDA graph of so many that it takes some milliseconds."""

    def __init__(self, call: Call) -> None:
        import torch

        # What is done but once: kernels are compiled, and cuDNN tries its algorithms.
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        self._calls = 1
        self._graph = self._captured(call)
        self()
        self._calls = max(1, min(200, round(_ENOUGH_NS / self())))
        self._graph = self._captured(call)
        self()

    def _captured(self, call: Call) -> torch.cuda.CUDAGraph:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(self._calls):
                call()
        return graph

    def __call__(self) -> float:
        """Nanoseconds of one call."""
        import torch

        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e6 / self._calls


HEADINGS = ("", "ours", "rate", "compared with", "", "ratio", "wanted")


def table(results: Results) -> Iterator[str]:
    """The lines that are printed."""
    about = results.about
    software = ", ".join(f"{k} {v}" for k, v in about.items() if k not in ("device", "identity"))
    yield f"{about.get('device', 'unknown device')} ({software})"
    rows = [HEADINGS, *map(_cells, results.ratios)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for what, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        yield "  ".join((what.ljust(widths[0]), *padded)).rstrip()


def markdown(results: Results) -> str:
    """The ratios that something is wanted of, as a table of the documentation."""
    rows = [("kernel", "compared with", "ratio", "wanted"), ("---",) * 4]
    for ratio in results.ratios:
        if ratio.least is not None:
            what, _, _, other, _, times, wanted = _cells(ratio)
            rows.append((what, other, times, wanted))
    about = results.about
    software = [f"{n} {about[n]}" for n in ("torch", "cuda", "cudnn", "measured") if n in about]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{text}\n{about.get('device', 'unknown device')}, {', '.join(software)}.\n"


def _cells(ratio: Ratio) -> tuple[str, ...]:
    ours, other = median(ratio.ours_ns), median(ratio.other_ns)
    scale, unit = (1e3, "TFLOP/s") if ratio.unit == "FLOP" else (1.0, "GB/s")
    wanted = "" if ratio.least is None else f"at least {ratio.least:g}"
    return (
        ratio.what,
        f"{ours / 1e3:.1f} us",
        f"{ratio.work / ours / scale:.1f} {unit}",
        ratio.other,
        f"{other / 1e3:.1f} us",
        f"{ratio.ratio:.2f}",
        wanted if ratio.good else f"{wanted}: MISSED",
    )


def load(file: Path) -> Results:
    """What was saved. Raises UsageFailure, or BadFile for a file that is damaged."""
    from pydantic import ValidationError

    try:
        return files.adapter(Results).validate_json(file.read_bytes())
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        entry = "/".join(map(str, problem["loc"]))
        remedy = "Measure again, with --out, on a GPU"
        raise BadFile(file, entry, problem["msg"], remedy) from None


def main(arguments: list[str] | None = None) -> int:
    """Measures, or loads, and prints; see the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="default: %(default)s"
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="FILE", help="where to write the times, as JSON")
    where.add_argument("--from", type=Path, dest="file", metavar="FILE", help="times saved before")
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least one is needed")
    try:
        results = load(options.file) if options.file else measured(options.rounds)
        if options.out:
            text = json.dumps(files.to_plain(results), indent=1) + "\n"
            files.write_atomically(options.out, text)
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    print(*table(results), sep="\n")
    return int(not all(ratio.good for ratio in results.ratios))


if __name__ == "__main__":
    sys.exit(main())
