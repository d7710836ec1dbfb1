"""Reads images and masks from NIfTI files: a user's pairs, and the MNI152 template.

nibabel is imported when a file is read, so that prepared volumes can be used without it.
"""

from __future__ import annotations

import gzip
import importlib.util
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pytest_gpuperf.errors import UsageFailure

Array = NDArray[np.float32]

SUFFIXES = (".nii.gz", ".nii")
MASK_ENDING = "_mask"
LABELS = 2
"""Tissue or lesion labels of a mask, besides 0 for the background."""

CONVENTION = (
    "Expected are DIR/image/NAME.nii.gz with DIR/mask/NAME.nii.gz, "
    "or DIR/NAME.nii.gz with DIR/NAME_mask.nii.gz (.nii is accepted too)"
)

MOST_VOXELS = 512**3
"""Of a volume as it is read, and padded to a cube: half a gigabyte in float32."""
MOST_BEFORE = 4 * 1024 * 1024
"""Bytes before the first voxel: the header and its extensions, which nibabel reads one by one."""
SMALLEST_EDGE, LARGEST_EDGE = 1e-3, 1e3
"""Of a voxel, in millimetres."""
MOST_INTENSITY = 1e30
"""The sum of so many of these is still a float32."""

_LONGEST_HEADER = 540
_MOST_PACKED = 1032
"""Bytes that come out of one byte of gzip at most: https://zlib.net/zlib_tech.html"""
_TEMPLATE = "mni_icbm152_{map}_tal_nlin_sym_09a_converted.nii.gz"


@dataclass(frozen=True)
class Scan:
    """An image and its mask as read, on one grid [X, Y, Z] in the axis order of RAS+."""

    image: Array
    """[X, Y, Z], in the file's own intensity units."""
    labels: Array
    """[2, X, Y, Z]: the share of each label in each voxel, 0 to 1."""
    spacing: tuple[float, ...]
    """Edges of a voxel, in millimetres."""


@dataclass(frozen=True)
class Pair:
    """The files of one subject."""

    name: str
    image: Path
    mask: Path


def find_pairs(folder: Path) -> tuple[Pair, ...]:
    """The image and mask pairs in `folder`, by name. Either one without the other is an error."""
    if not folder.is_dir():
        raise UsageFailure(f"{folder}: there is no such directory. {CONVENTION}")
    images_in, masks_in = folder / "image", folder / "mask"
    if images_in.is_dir() or masks_in.is_dir():
        images, masks = _by_name(images_in), _by_name(masks_in)
        expected_image, expected_mask = images_in / "{}.nii.gz", masks_in / "{}.nii.gz"
    else:
        files = _by_name(folder)
        masks = {
            name.removesuffix(MASK_ENDING): file
            for name, file in files.items()
            if name.endswith(MASK_ENDING)
        }
        images = {name: file for name, file in files.items() if not name.endswith(MASK_ENDING)}
        expected_image = folder / "{}.nii.gz"
        expected_mask = folder / f"{{}}{MASK_ENDING}.nii.gz"
    for name, file in sorted(images.items()):
        if name not in masks:
            missing = str(expected_mask).format(name)
            raise UsageFailure(f"{file}: its mask {missing} is missing. {CONVENTION}")
    for name, file in sorted(masks.items()):
        if name not in images:
            missing = str(expected_image).format(name)
            raise UsageFailure(f"{file}: its image {missing} is missing. {CONVENTION}")
    if not images:
        raise UsageFailure(f"{folder}: there are no image and mask pairs. {CONVENTION}")
    return tuple(Pair(name, images[name], masks[name]) for name in sorted(images))


def read_pair(pair: Pair) -> Scan:
    """Reads and checks one pair. Labels of the mask are 1 and 2, 0 is the background."""
    image, spacing = _read(pair.image)
    mask, _ = _read(pair.mask)
    if image.shape != mask.shape:
        raise UsageFailure(
            f"{pair.mask}: its shape {mask.shape} differs from {image.shape} of {pair.image}. "
            "Resample the mask onto the image's grid"
        )
    values = np.unique(mask)
    if not np.isin(values, range(LABELS + 1)).all():
        shown = ", ".join(f"{label:g}" for label in values[:8])
        raise UsageFailure(
            f"{pair.mask}: the network takes the labels 1 and 2 besides the background 0, "
            f"the mask has {shown}{', ...' if len(values) > 8 else ''}. Relabel or merge them"
        )
    if not mask.any():
        raise UsageFailure(f"{pair.mask}: the mask is empty. Give one with the labels 1, 2 or both")
    labels = np.stack([mask == label for label in range(1, LABELS + 1)]).astype(np.float32)
    return Scan(image, labels, spacing)


def read_template() -> Scan:
    """The ICBM 2009a MNI152 T1 template with its grey and white matter maps, 1 mm.

    The files come with the package nilearn, which is located but not imported: its own
    dependencies are not needed to read them.
    """
    remedy = (
        "Install it with `pip install 'pytest-gpuperf[data]'`, "
        "or choose other data: --meddpm-data synthetic, or a directory"
    )
    package = importlib.util.find_spec("nilearn")
    if package is None or not package.submodule_search_locations:
        raise UsageFailure(f"the MNI152 template comes with nilearn, which is missing. {remedy}")
    folder = Path(package.submodule_search_locations[0]) / "datasets" / "data"
    files = {tissue: folder / _TEMPLATE.format(map=tissue) for tissue in ("t1", "gm", "wm")}
    for file in files.values():
        if not file.is_file():
            raise UsageFailure(f"{file}: missing from the installed nilearn. {remedy}")
    (image, spacing), *maps = (_read(file) for file in files.values())
    # The maps are probabilities, stored as bytes.
    labels = np.stack([tissue / np.float32(255) for tissue, _ in maps])
    return Scan(image, labels, spacing)


def _by_name(folder: Path) -> dict[str, Path]:
    """The NIfTI files in `folder`, by name without suffix."""
    files: dict[str, Path] = {}
    if not folder.is_dir():
        return files
    for file in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in SUFFIXES if file.name.endswith(suffix)), None)
        if suffix is None:
            continue
        name = file.name.removesuffix(suffix)
        if name in files:
            raise UsageFailure(f"{file}: {files[name].name} has the same name. Remove one of them")
        files[name] = file
    return files


def _read(file: Path) -> tuple[Array, tuple[float, ...]]:
    """The finite values [X, Y, Z] of a NIfTI file in RAS+ order, and the voxel's edges in mm.

    What the header claims is checked before anything of that size is allocated.
    """
    try:
        import nibabel
    except ImportError as error:
        raise UsageFailure(
            f"{file}: reading NIfTI needs nibabel, which cannot be imported ({error}). "
            "Install it with `pip install 'pytest-gpuperf[data]'`, copy a cache of prepared "
            "volumes from a machine that has it, or use --meddpm-data synthetic"
        ) from error
    try:
        kind: Any = _checked(file)
        stored: Any = kind.from_filename(file)
        oriented = nibabel.as_closest_canonical(stored)  # type: ignore[no-untyped-call]
        # What does not fit into float32 becomes infinite, and is refused below.
        with np.errstate(all="ignore"):
            values = np.asarray(oriented.dataobj, dtype=np.float32)
        spacing = tuple(float(edge) for edge in oriented.header.get_zooms())
    except UsageFailure:
        raise
    except Exception as error:  # damaged bytes lead nibabel to errors of any type
        raise UsageFailure(
            f"{file}: cannot be read as NIfTI ({_reason(error)}). Replace the file; it may be "
            "truncated"
        ) from error
    if not all(SMALLEST_EDGE <= edge <= LARGEST_EDGE for edge in spacing):
        raise UsageFailure(
            f"{file}: its header gives voxels of {spacing} mm, and an edge is {SMALLEST_EDGE:g} to "
            f"{LARGEST_EDGE:g} mm. Correct the header's pixdim"
        )
    if not np.isfinite(values).all():
        count = int((~np.isfinite(values)).sum())
        raise UsageFailure(
            f"{file}: {count} of {values.size} voxels are NaN or infinite. Replace them, "
            "for example by 0"
        )
    if (most := float(np.abs(values).max())) > MOST_INTENSITY:
        raise UsageFailure(
            f"{file}: has the intensity {most:.3g}, and {MOST_INTENSITY:g} is the most that can be "
            "averaged. Scale the image, or correct the header's scl_slope"
        )
    return values, spacing


def _checked(file: Path) -> Any:
    """The class of nibabel that reads `file`, whose header makes sense and fits the file's size.

    Raises UsageFailure that says what does not, and whatever nibabel raises for no header at all.
    """
    import nibabel

    packed = file.name.endswith(".gz")
    with gzip.open(file) if packed else file.open("rb") as stream:
        block = stream.read(_LONGEST_HEADER)
    for kind in (nibabel.Nifti1Image, nibabel.Nifti2Image):
        head: Any = kind.header_class
        if head.may_contain_header(block):
            break
    else:
        raise ValueError("it has no header of NIfTI")
    header = head(block[: head.template_dtype.itemsize], check=False)
    shape = tuple(map(int, header.get_data_shape()))
    if len(shape) != 3:
        raise UsageFailure(
            f"{file}: has rank {len(shape)} (shape {shape}), not 3. "
            "Give one volume per file, without time or channel axis"
        )
    voxels = math.prod(shape)
    if min(shape) < 1 or voxels > MOST_VOXELS:
        raise UsageFailure(
            f"{file}: its header gives the shape {shape}, and 1 to {MOST_VOXELS:,} voxels are "
            "read. Correct the header's dim, or crop or resample the volume"
        )
    code = int(header["datatype"])
    if code not in nibabel.nifti1.data_type_codes.code:
        raise UsageFailure(f"{file}: its datatype {code} is none of NIfTI. Replace the file")
    dtype = header.get_data_dtype()
    if dtype.kind not in "iuf":
        raise UsageFailure(f"{file}: its voxels are {dtype}, not one number each. Convert them")
    offset = float(header["vox_offset"])
    if not 0 <= offset <= MOST_BEFORE:
        raise UsageFailure(
            f"{file}: its header says that voxels begin at byte {offset:g}, and {MOST_BEFORE:,} is "
            "the most. Correct the header's vox_offset, or leave extensions out"
        )
    claimed, there = voxels * dtype.itemsize, file.stat().st_size
    if claimed > there * (_MOST_PACKED if packed else 1):
        raise UsageFailure(
            f"{file}: cannot be read as NIfTI (its header gives {claimed:,} bytes of voxels, and "
            f"the file has {there:,}). Replace the file; it may be truncated"
        )
    return kind


def _reason(error: Exception) -> str:
    """The first line of an error that is not ours."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
