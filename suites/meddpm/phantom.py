"""A seeded head phantom: input for a machine that has neither NIfTI files nor the template."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEED = 20260

Array = NDArray[np.float32]

_BACKGROUND, _GREY, _WHITE = 0, 1, 2

_ELLIPSOIDS: tuple[tuple[tuple[float, float, float], tuple[float, float, float], float, int], ...]
_ELLIPSOIDS = (
    # centre, half axes (edge of the volume = 2), intensity, label; later ones cover earlier ones
    ((0.0, 0.0, 0.0), (0.72, 0.88, 0.80), 0.95, _BACKGROUND),  # scalp
    ((0.0, 0.0, 0.0), (0.67, 0.83, 0.75), 0.10, _BACKGROUND),  # skull
    ((0.0, 0.0, 0.02), (0.62, 0.78, 0.70), 0.25, _BACKGROUND),  # cerebrospinal fluid
    ((0.0, 0.0, 0.04), (0.58, 0.74, 0.65), 0.55, _GREY),  # cortex
    ((-0.27, 0.0, 0.06), (0.22, 0.60, 0.48), 0.80, _WHITE),  # left hemisphere
    ((0.27, 0.0, 0.06), (0.22, 0.60, 0.48), 0.80, _WHITE),  # right hemisphere
    ((-0.14, -0.05, 0.00), (0.09, 0.13, 0.11), 0.60, _GREY),  # left thalamus
    ((0.14, -0.05, 0.00), (0.09, 0.13, 0.11), 0.60, _GREY),  # right thalamus
    ((-0.10, 0.05, 0.14), (0.06, 0.28, 0.10), 0.25, _BACKGROUND),  # left ventricle
    ((0.10, 0.05, 0.14), (0.06, 0.28, 0.10), 0.25, _BACKGROUND),  # right ventricle
)


def phantom(size: int, seed: int = SEED) -> tuple[Array, Array]:
    """An image [S, S, S] and its grey and white matter [2, S, S, S] in [0, 1], by `seed`.

    Ellipsoids with tissue-like intensities in T1 contrast, each shifted and scaled by a few
    percent, with noise and a slow change of intensity over the volume, as a coil has.
    """
    generator = np.random.default_rng(seed)
    axis = (2 * np.arange(size) + 1) / size - 1
    x, y, z = np.meshgrid(axis, axis, axis, indexing="ij")
    image = np.zeros((size, size, size))
    labels = np.zeros((size, size, size), dtype=np.uint8)
    for centre, half_axes, intensity, label in _ELLIPSOIDS:
        cx, cy, cz = np.array(centre) + generator.normal(0, 0.01, 3)
        ax, ay, az = np.array(half_axes) * generator.normal(1, 0.02, 3)
        inside = ((x - cx) / ax) ** 2 + ((y - cy) / ay) ** 2 + ((z - cz) / az) ** 2 <= 1
        image[inside] = intensity
        labels[inside] = label
    image *= 1 + 0.05 * (x + y - z)
    image += generator.normal(0, 0.02, image.shape)
    tissues = np.stack([labels == _GREY, labels == _WHITE])
    return image.astype(np.float32), tissues.astype(np.float32)
