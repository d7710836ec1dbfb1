"""The suite's input: where volumes come from, how they are prepared, and what is refused."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.data import Volumes, load

nibabel = pytest.importorskip("nibabel")

SHAPE = (12, 14, 10)


def an_image(shape: tuple[int, ...] = SHAPE) -> Any:
    return np.random.default_rng(0).uniform(0, 900, shape).astype(np.float32)


def a_mask(shape: tuple[int, ...] = SHAPE) -> Any:
    mask = np.zeros(shape, dtype=np.uint8)
    mask[2:6, 2:8, 2:8] = 1
    mask[6:10, 2:8, 2:8] = 2
    return mask


def write(file: Path, values: Any, spacing: tuple[float, ...] = (1, 1, 1)) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.diag([*spacing, 1.0])), file)
    return file


def pair(folder: Path, image: Any, mask: Any, spacing: tuple[float, ...] = (1, 1, 1)) -> Path:
    """A user's directory with this pair; returns the mask's file."""
    write(folder / "image" / "a.nii.gz", image, spacing)
    return write(folder / "mask" / "a.nii.gz", mask, spacing)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's directory with one good pair."""
    folder = tmp_path / "scans"
    pair(folder, an_image(), a_mask())
    return folder


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nilearn that fails when imported: only its files may be used."""
    package = tmp_path / "site" / "nilearn"
    data = package / "datasets" / "data"
    mask = a_mask()
    maps = {"t1": an_image().astype(np.uint8), "gm": 255 * (mask == 1), "wm": 255 * (mask == 2)}
    for name, values in maps.items():
        file = data / f"mni_icbm152_{name}_tal_nlin_sym_09a_converted.nii.gz"
        write(file, values.astype(np.uint8))
    (package / "__init__.py").write_text("raise ImportError('nilearn must not be imported')")
    monkeypatch.delitem(sys.modules, "nilearn", raising=False)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return data


@pytest.fixture
def without_nibabel(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def remove() -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == "nibabel"]:
            monkeypatch.setitem(sys.modules, name, None)

    return remove


def assert_valid(volumes: Volumes, size: int) -> None:
    assert volumes.image.shape == (1, 1, size, size, size)
    assert volumes.mask.shape == (1, 2, size, size, size)
    assert volumes.image.dtype == volumes.mask.dtype == torch.float32
    assert volumes.image.min() == -1
    assert volumes.image.max() == 1
    assert set(volumes.mask.flatten().tolist()) == {-1.0, 1.0}
    assert ((volumes.mask > 0).sum(dim=1) <= 1).all(), "a voxel has one label"


def same(a: Volumes, b: Volumes) -> bool:
    return torch.equal(a.image, b.image) and torch.equal(a.mask, b.mask) and a.source == b.source


class TestSynthetic:
    @pytest.mark.parametrize("size", [8, 32])
    def test_is_a_head_with_both_tissues(self, size: int, cache: Path) -> None:
        volumes = load("synthetic", size, cache)
        assert_valid(volumes, size)
        assert volumes.source == "synthetic"
        assert (volumes.mask > 0).flatten(2).any(dim=2).all()

    def test_is_the_same_every_time_whatever_the_global_generators_do(self, cache: Path) -> None:
        torch.manual_seed(1)
        state = torch.get_rng_state()
        first = load("synthetic", 16, cache)
        assert torch.equal(torch.get_rng_state(), state)
        np.random.seed(5)
        assert same(load("synthetic", 16, cache), first)
        assert not cache.exists()


class TestTemplate:
    @pytest.mark.usefixtures("template")
    def test_is_found_without_importing_nilearn(self, cache: Path) -> None:
        volumes = load("mni152", 16, cache)
        assert_valid(volumes, 16)
        assert volumes.source == "mni152"
        assert "nilearn" not in sys.modules

    def test_what_is_missing_is_named_with_the_remedies(
        self, template: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        missing = template / "mni_icbm152_wm_tal_nlin_sym_09a_converted.nii.gz"
        missing.unlink()
        with pytest.raises(UsageFailure, match=re.escape(str(missing)) + ".*pip install"):
            load("mni152", 16, cache)
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(UsageFailure, match=r"nilearn, which is missing.*--meddpm-data"):
            load("mni152", 16, cache)

    @pytest.mark.skipif(importlib.util.find_spec("nilearn") is None, reason="needs nilearn's data")
    def test_the_real_one_has_more_grey_than_white_matter(self, cache: Path) -> None:
        volumes = load("mni152", 32, cache)
        assert_valid(volumes, 32)
        grey, white = (volumes.mask > 0).float().mean(dim=(0, 2, 3, 4)).tolist()
        assert 0.03 < white < grey < 0.15


class TestUserData:
    def test_pairs_side_by_side(self, folder: Path, cache: Path, tmp_path: Path) -> None:
        flat = tmp_path / "flat"
        write(flat / "a.nii", an_image())
        write(flat / "a_mask.nii.gz", a_mask())
        assert same(load(str(flat), 16, cache), load(str(folder), 16, cache))

    def test_the_first_pair_by_name_is_measured_and_every_one_checked(
        self, folder: Path, cache: Path
    ) -> None:
        alone = load(str(folder), 16, cache)
        write(folder / "image" / "b.nii.gz", an_image()[::-1].copy())
        other = write(folder / "mask" / "b.nii.gz", a_mask())
        assert same(load(str(folder), 16, cache), alone)
        write(other, np.zeros(SHAPE, dtype=np.uint8))
        with pytest.raises(UsageFailure, match=f"{re.escape(str(other))}: the mask is empty"):
            load(str(folder), 16, cache)

    def test_axes_are_brought_into_one_order(
        self, folder: Path, cache: Path, tmp_path: Path
    ) -> None:
        """A file stored left to right gives what the same scan stored right to left gives."""
        flipped = tmp_path / "flipped"
        flip = np.diag([-1.0, 1, 1, 1])
        for kind, values in (("image", an_image()), ("mask", a_mask())):
            (flipped / kind).mkdir(parents=True)
            stored = nibabel.Nifti1Image(values[::-1].copy(), flip)
            nibabel.save(stored, flipped / kind / "a.nii.gz")
        assert same(load(str(flipped), 16, cache), load(str(folder), 16, cache))

    def test_the_aspect_is_kept_in_millimetres(self, cache: Path, tmp_path: Path) -> None:
        """A cube of 8 mm stays a cube, whatever the voxels' edges, and is padded all around."""
        folder = tmp_path / "scans"
        image = np.zeros((16, 16, 4), dtype=np.float32)
        image[4:12, 4:12, 1:3] = 1
        pair(folder, image, image.astype(np.uint8), spacing=(1, 1, 4))
        mask = load(str(folder), 16, cache).mask[0, 0] > 0
        extent = [int(mask.sum(dim=others).bool().sum()) for others in ((1, 2), (0, 2), (0, 1))]
        assert extent[:2] == [8, 8]
        assert extent[2] == pytest.approx(8, abs=2)

    def test_single_bright_voxels_do_not_set_the_scale(self, cache: Path, tmp_path: Path) -> None:
        image = an_image((16, 16, 16))
        image[0, 0, 0] = 1e6
        pair(tmp_path / "scans", image, a_mask((16, 16, 16)))
        assert load(str(tmp_path / "scans"), 16, cache).image.std() > 0.5


Damage = Callable[[Path], object]


def _remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def _values(name: str, values: Any) -> Damage:
    return lambda folder: write(folder / name, values)


def _with(name: str, values: Any, value: float) -> Damage:
    values = values.astype(np.float32)
    values[3, 3, 3] = value
    return _values(name, values)


def _content(content: bytes) -> Damage:
    return lambda folder: (folder / IMAGE).write_bytes(content)


def _cut_off(folder: Path) -> None:
    file = folder / IMAGE
    file.write_bytes(file.read_bytes()[:2000])


def _header(field: str, value: Any, *at: int) -> Damage:
    """Writes `value` into a field of the image's header, at this index where it has several."""

    def damage(folder: Path) -> None:
        file = folder / IMAGE
        content = bytearray(gzip.decompress(file.read_bytes()))
        header = np.frombuffer(content, nibabel.Nifti1Header.template_dtype, count=1)
        place = (0, *at)
        header[field][place] = value
        file.write_bytes(gzip.compress(bytes(content)))

    return damage


def _shape(*edges: int) -> Damage:
    return lambda folder: [_header("dim", e, n + 1)(folder) for n, e in enumerate(edges)]


IMAGE, MASK = "image/a.nii.gz", "mask/a.nii.gz"
NOT_NIFTI = "cannot be read as NIfTI"
NOT_FINITE = "1 of 1680 voxels are NaN or"
EDGES = r"an edge is 0\.001 to 1000 mm"
BEGINS = r"voxels begin at byte \S+, and 4,194,304 is the most"
SIZES = "1 to 134,217,728 voxels are read"
REFUSED: dict[str, tuple[Damage, str, str]] = {
    "no mask": (_remove(MASK), IMAGE, r"its mask \S+mask/a\.nii\.gz is missing"),
    "no image": (_remove(IMAGE), MASK, r"its image \S+image/a\.nii\.gz is missing"),
    "no gzip": (_content(b"no NIfTI"), IMAGE, NOT_NIFTI),
    "no header": (_content(gzip.compress(b"no NIfTI" * 100)), IMAGE, NOT_NIFTI),
    "truncated": (_cut_off, IMAGE, NOT_NIFTI),
    "image of rank 4": (_values(IMAGE, an_image((*SHAPE, 2))), IMAGE, "has rank 4"),
    "NaN in mask": (_with(MASK, a_mask(), np.nan), MASK, NOT_FINITE),
    "empty mask": (_values(MASK, 0 * a_mask()), MASK, "the mask is empty"),
    "other shape": (_values(MASK, a_mask((12, 14, 11))), MASK, r"shape \(12, 14, 11\) differs"),
    "fraction": (_with(MASK, a_mask(), 0.5), MASK, r"the mask has 0, 0\.5, 1, 2\."),
    "constant image": (_values(IMAGE, 0 * an_image()), MASK, "has the same value everywhere"),
    # What a header claims.
    "edges of 1e30 mm": (_header("pixdim", [-1, *[1e30] * 3, *[1] * 4]), IMAGE, EDGES),
    "an edge that is NaN": (_header("pixdim", np.nan, 2), IMAGE, EDGES),
    "32767^3": (_shape(32767, 32767, 32767), IMAGE, SIZES),
    "512^3, and few bytes": (_shape(512, 512, 512), IMAGE, "gives 536,870,912 bytes of voxels"),
    "less than none": (_shape(12, -14, 10), IMAGE, SIZES),
    "extensions of 4 GB": (_header("vox_offset", 4e9), IMAGE, BEGINS),
    "a beginning that is NaN": (_header("vox_offset", np.nan), IMAGE, BEGINS),
    "an unknown datatype": (_header("datatype", 77), IMAGE, "its datatype 77 is none of NIfTI"),
    "complex voxels": (_header("datatype", 32), IMAGE, "are complex64, not one number each"),
    "intensities of 1e33": (_header("scl_slope", 1e30), IMAGE, r"has the intensity 9e\+32"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_faulty_data_is_refused_by_file_before_it_is_allocated(
    folder: Path, cache: Path, fault: str
) -> None:
    damage, named, said = REFUSED[fault]
    damage(folder)
    tracemalloc.start()
    try:
        with pytest.raises(UsageFailure, match=f"{re.escape(str(folder / named))}: .*{said}"):
            load(str(folder), 16, cache)
        assert tracemalloc.get_traced_memory()[1] < 16 * 2**20
    finally:
        tracemalloc.stop()
    assert not cache.exists()


def test_a_volume_whose_cube_would_be_too_large_is_refused(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scans"
    write(folder / IMAGE, an_image((4, 4, 512)), spacing=(0.001, 0.001, 900))
    mask = write(folder / MASK, a_mask((12, 12, 10)).repeat(52, axis=2)[:4, :4, :512] + 1)
    said = r"\(4, 4, 512\) voxels of .* in a cube, and 134,217,728 are the most"
    with pytest.raises(UsageFailure, match=f"{re.escape(str(mask))}: {said}"):
        load(str(folder), 16, cache)


def test_a_directory_without_pairs_or_with_two_of_one_name_is_refused(
    folder: Path, tmp_path: Path, cache: Path
) -> None:
    (tmp_path / "empty").mkdir()
    write(folder / "image" / "a.nii", an_image())
    for source, said in (
        ("none", "no such directory.*DIR/image/NAME"),
        ("empty", "no image and mask pairs.*DIR/image/NAME"),
        (folder.name, "has the same name"),
    ):
        with pytest.raises(UsageFailure, match=said):
            load(str(tmp_path / source), 16, cache)


def test_a_mask_that_resampling_would_erase_is_refused(folder: Path, cache: Path) -> None:
    mask = np.zeros(SHAPE, dtype=np.uint8)
    mask[0, 0, 0] = 1
    write(folder / MASK, mask)
    with pytest.raises(UsageFailure, match="nothing of the mask is left at 4 voxels"):
        load(str(folder), 4, cache)


def test_without_nibabel_the_remedies_are_named(
    folder: Path, cache: Path, without_nibabel: Callable[[], None]
) -> None:
    without_nibabel()
    with pytest.raises(UsageFailure, match=r"needs nibabel.*pip install.*cache.*synthetic"):
        load(str(folder), 16, cache)


class TestCache:
    @pytest.fixture(params=["mni152", "user"])
    def source(self, request: pytest.FixtureRequest) -> str:
        if request.param == "mni152":
            request.getfixturevalue("template")
            return "mni152"
        return str(request.getfixturevalue("folder"))

    def test_serves_a_machine_without_nibabel_and_nilearn(
        self,
        source: str,
        cache: Path,
        without_nibabel: Callable[[], None],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        prepared = load(source, 16, cache)
        without_nibabel()
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        assert same(load(source, 16, cache), prepared)

    def test_is_one_file_per_source_and_size_and_nothing_else(
        self, source: str, cache: Path
    ) -> None:
        for size in (16, 16, 8):
            load(source, size, cache)
        assert len(list(cache.iterdir())) == 2
        assert {file.suffix for file in cache.iterdir()} == {".npz"}

    def test_notices_that_a_users_file_was_written(self, folder: Path, cache: Path) -> None:
        before = load(str(folder), 16, cache)
        file = write(folder / IMAGE, an_image()[::-1].copy())
        os.utime(file, ns=(1, 1))
        assert not same(load(str(folder), 16, cache), before)

    def test_a_damaged_file_is_made_again_or_named_where_that_cannot_be(
        self, source: str, cache: Path, without_nibabel: Callable[[], None]
    ) -> None:
        prepared = load(source, 16, cache)
        (file,) = cache.iterdir()
        intact = file.stat().st_size
        for content in (b"", b"PK\x03\x04 cut off", b"something else", None):
            if content is None:
                np.savez(file, image=np.zeros((2, 2, 2)), labels=np.zeros((2, 2, 2)))
            else:
                file.write_bytes(content)
            assert same(load(source, 16, cache), prepared), content
            assert file.stat().st_size == intact
        file.write_bytes(b"something else")
        without_nibabel()
        said = f"{re.escape(str(file))}: the cached volume is corrupted .*nibabel"
        with pytest.raises(UsageFailure, match=said):
            load(source, 16, cache)
        assert file.read_bytes() == b"something else"

    def test_a_directory_that_cannot_be_written_is_named(self, source: str, cache: Path) -> None:
        cache.write_text("a file where the directory should be")
        with pytest.raises(UsageFailure, match=re.escape(str(cache)) + ".*cannot be written"):
            load(source, 16, cache)
