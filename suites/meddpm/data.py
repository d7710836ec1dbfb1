"""The suite's input: one MRI volume with its mask, as Med-DDPM takes them.

Sources: `mni152` (the MNI152 template with its tissue maps), `synthetic` (a seeded phantom), or
a directory with a user's NIfTI image and mask pairs; `nifti.py` has the naming convention.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.nifti import MOST_VOXELS, Pair, Scan, find_pairs, read_pair, read_template
from suites.meddpm.phantom import phantom

MNI152 = "mni152"
SYNTHETIC = "synthetic"
USER = "user"

CACHE_FORMAT = 1
"""Part of a cache file's name: a change of the preparation below is a change of this number."""

INTENSITY_PERCENTILES = (0.1, 99.9)
"""These of an image's intensities become -1 and 1; what lies outside is clipped."""


@dataclass(frozen=True)
class Volumes:
    """What the training step reads: an image and its mask, batch 1, on a cube of S^3 voxels."""

    image: Tensor
    """[1, 1, S, S, S], float32 in [-1, 1]."""
    mask: Tensor
    """[1, 2, S, S, S], float32: 1 in a label's channel where the label is, else -1."""
    source: str
    """mni152, synthetic or user."""


@dataclass(frozen=True)
class _Prepared:
    """A volume as the cache holds it."""

    image: NDArray[np.float32]
    """[S, S, S] in [-1, 1]."""
    labels: NDArray[np.uint8]
    """[S, S, S]: 0 background, 1, 2."""


def load(source: str, size: int, cache: Path) -> Volumes:
    """The volume of `source`, on a cube with an edge of `size` voxels.

    Of a user's directory every pair is read and checked, and the first by name is returned.
    Prepared volumes are kept in the directory `cache`, and taken from there when the source
    has not changed. Raises a UsageFailure that names the file and the remedy.
    """
    if source == SYNTHETIC:
        image, tissues = phantom(size)
        scan = Scan(image, tissues, spacing=(1.0, 1.0, 1.0))
        return _volumes(_prepare(scan, size, "the phantom"), SYNTHETIC)
    if source == MNI152:
        file = cache / f"{MNI152}-{size}-v{CACHE_FORMAT}.npz"
        return _volumes(_cached(file, size, lambda: _prepare_template(size)), MNI152)
    pairs = find_pairs(Path(source))
    file = cache / f"{USER}-{_digest(pairs)}-{size}-v{CACHE_FORMAT}.npz"
    return _volumes(_cached(file, size, lambda: _prepare_first(pairs, size)), USER)


def _prepare_template(size: int) -> _Prepared:
    return _prepare(read_template(), size, "the MNI152 template")


def _prepare_first(pairs: tuple[Pair, ...], size: int) -> _Prepared:
    """Reads and checks all of `pairs`; what the first of them gives is kept."""
    first, *others = pairs
    prepared = _prepare(read_pair(first), size, str(first.mask))
    for pair in others:
        _prepare(read_pair(pair), size, str(pair.mask))
    return prepared


def _prepare(scan: Scan, size: int, name: str) -> _Prepared:
    """Pads to a cube, resamples to `size`, scales intensities and decides on a label per voxel."""
    darkest = float(scan.image.min())
    image = _cube(scan.image[None] - darkest, scan.spacing, size, name)[0]
    low, high = np.percentile(image, INTENSITY_PERCENTILES)
    if not high > low:
        raise UsageFailure(
            f"{name}: the image that belongs to it has the same value everywhere. Give another one"
        )
    with np.errstate(over="ignore"):  # what is far beyond the percentiles is clipped
        scaled = 2 * np.clip((image - low) / (high - low), 0, 1) - 1
    shares = _cube(scan.labels, scan.spacing, size, name)
    background = 1 - shares.sum(axis=0, keepdims=True)
    labels = np.concatenate([background, shares]).argmax(axis=0)
    if not labels.any():
        raise UsageFailure(
            f"{name}: nothing of the mask is left at {size} voxels along an edge. "
            "Measure at a larger size, or give a mask of something larger"
        )
    return _Prepared(scaled.astype(np.float32), labels.astype(np.uint8))


def _cube(
    volumes: NDArray[np.float32], spacing: tuple[float, ...], size: int, name: str
) -> NDArray[np.float32]:
    """`volumes` [C, X, Y, Z] padded with zeros to a cube in millimetres, then [C, S, S, S].

    Where the voxels get larger their values are averages, because interpolation alone would skip
    voxels; where they get smaller the values are interpolated linearly.
    """
    shape = volumes.shape[1:]
    edge = max(count * length for count, length in zip(shape, spacing, strict=True))
    counts = [
        max(round(edge / length), count) for count, length in zip(shape, spacing, strict=True)
    ]
    if math.prod(counts) > MOST_VOXELS:
        raise UsageFailure(
            f"{name}: {shape} voxels of {spacing} mm are {tuple(counts)} in a cube, and "
            f"{MOST_VOXELS:,} are the most. Crop or resample the pair, or correct its pixdim"
        )
    padding: list[int] = []
    for count, padded_count in reversed(list(zip(shape, counts, strict=True))):  # last axis first
        missing = padded_count - count
        padding += [missing // 2, missing - missing // 2]
    padded = functional.pad(torch.from_numpy(np.ascontiguousarray(volumes)), padding)
    if min(padded.shape[1:]) >= size:
        resampled = functional.adaptive_avg_pool3d(padded[None], size)
    else:
        resampled = functional.interpolate(
            padded[None], size=(size, size, size), mode="trilinear", align_corners=False
        )
    result: NDArray[np.float32] = resampled[0].numpy()
    return result


def _volumes(prepared: _Prepared, source: str) -> Volumes:
    one_hot = np.stack([prepared.labels == 1, prepared.labels == 2]).astype(np.float32)
    return Volumes(
        image=torch.from_numpy(prepared.image)[None, None],
        mask=torch.from_numpy(2 * one_hot - 1)[None],
        source=source,
    )


def _digest(pairs: tuple[Pair, ...]) -> str:
    """Changes when a file of `pairs` is renamed, added, removed or written."""
    state = [
        (file.name, status.st_size, status.st_mtime_ns)
        for pair in pairs
        for file in (pair.image, pair.mask)
        for status in (file.stat(),)
    ]
    return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


def _cached(file: Path, size: int, make: Callable[[], _Prepared]) -> _Prepared:
    """The content of the cache `file`, made and written first where it is missing or corrupted."""
    damage: Exception | None = None
    if file.exists():
        try:
            return _read_cache(file, size)
        except Exception as error:  # damaged bytes lead zip and numpy to errors of any type
            damage = error
    try:
        prepared = make()
    except UsageFailure as failure:
        if damage is None:
            raise
        raise UsageFailure(
            f"{file}: the cached volume is corrupted ({damage}) and cannot be made again here: "
            f"{failure}"
        ) from failure
    _write_cache(file, prepared)
    return prepared


def _read_cache(file: Path, size: int) -> _Prepared:
    # Opened here: np.load leaves the file open when it refuses the content.
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as content:
        prepared = _Prepared(content["image"], content["labels"])
    for array, dtype in ((prepared.image, np.float32), (prepared.labels, np.uint8)):
        if array.shape != (size, size, size) or array.dtype != dtype:
            raise ValueError(f"unexpected array {array.dtype} {array.shape}")
    return prepared


def _write_cache(file: Path, prepared: _Prepared) -> None:
    """Writes `file` whole or not at all: a reader in another process never sees half of it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=file.parent, suffix=".npz.part")
        temporary = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                np.savez_compressed(stream, image=prepared.image, labels=prepared.labels)
            temporary.replace(file)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise UsageFailure(
            f"{file}: the prepared volume cannot be written ({error}). "
            "Make the cache directory writable, or choose another one"
        ) from error
