"""What reads files from elsewhere, as functions of bytes: for script/fuzz, and for its corpus.

Whatever the bytes are, a loader returns or raises a GpuperfError; all else is a finding.
"""

from __future__ import annotations

import gzip
import lzma
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.measure.ncu import profiled_rows
from pytest_gpuperf.storage import baseline_files, kernel_files, run_files
from suites.meddpm import data
from tests import ROOT
from tests.examples import H200

CORPUS = ROOT / "tests" / "corpus"
"""A folder of seeds and mended findings for each loader."""

SIZE = 4
"""Voxels along an edge of the cubes that volumes are prepared for."""
MOST_BYTES = 64 * 1024
"""Of one input: larger ones tell nothing that a test of the bounds does not."""

Load = Callable[[bytes, Path], object]


def _run(content: bytes, folder: Path) -> object:
    return run_files.load(_written(folder / "run.json", content))


def _packed_run(content: bytes, folder: Path) -> object:
    """The bytes as they are, which seldom are xz; what they would be is `run`'s."""
    return run_files.load(_written(folder / "run.json.xz", content))


def _baseline(content: bytes, folder: Path) -> object:
    return baseline_files.load(_written(folder / "suite.yaml", content))


def _comments(content: bytes, folder: Path) -> object:
    """A file that loads is written again, with the comments in it."""
    file = _written(folder / "suite.yaml", content)
    loaded = baseline_files.load(file)
    assert loaded is not None
    baseline_files.save(loaded, file)
    assert baseline_files.load(file) == loaded
    return loaded


def _kernels(content: bytes, folder: Path) -> object:
    packed = lzma.compress(content, preset=0)
    baseline = folder / "suite.yaml"
    _written(kernel_files.path_beside(baseline), packed)
    return kernel_files.load_for(baseline, H200, "suite")


def _image(content: bytes, folder: Path) -> object:
    return _pair(folder, content, (CORPUS / "mask" / "small.nii").read_bytes())


def _mask(content: bytes, folder: Path) -> object:
    return _pair(folder, (CORPUS / "image" / "small.nii").read_bytes(), content)


def _pair(folder: Path, image: bytes, mask: bytes) -> object:
    source, cache = folder / "source", folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    _written(source / "image" / "a.nii", image)
    _written(source / "mask" / "a.nii.gz", gzip.compress(mask, 1))
    return data.load(str(source), SIZE, cache)


def _cache(content: bytes, folder: Path) -> object:
    name = f"{data.MNI152}-{SIZE}-v{data.CACHE_FORMAT}.npz"
    return data.load(data.MNI152, SIZE, _written(folder / name, content).parent)


def _ncu(content: bytes, folder: Path) -> object:
    return profiled_rows.read(_written(folder / "raw.csv", content))


LOADERS: dict[str, Load] = {
    "run": _run,
    "packed_run": _packed_run,
    "baseline": _baseline,
    "comments": _comments,
    "kernels": _kernels,
    "image": _image,
    "mask": _mask,
    "cache": _cache,
    "ncu": _ncu,
}


def load(loader: str, content: bytes, folder: Path) -> None:
    """Lets `loader` read these bytes from a file in `folder`. Raises what is a finding."""
    with suppress(GpuperfError):
        LOADERS[loader](content, folder)


def _written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file
