"""What reads files from elsewhere, as functions of bytes: for script/fuzz, and for its corpus.

Whatever the bytes are, a loader returns or raises a GpuperfError; all else is a finding.
"""

from __future__ import annotations

import copy
import gzip
import json
import lzma
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pytest_gpuperf.errors import GpuperfError
from pytest_gpuperf.storage import baseline_files, data_files, run_files
from suites.meddpm import data
from tests import ROOT

CORPUS = ROOT / "tests" / "corpus"
"""A folder of seeds and mended findings for each loader."""

SIZE = 4
"""Voxels along an edge of the cubes that volumes are prepared for."""
MOST_BYTES = 64 * 1024
"""Of one input: larger ones tell nothing that a test of the bounds does not."""

Load = Callable[[bytes, Path], object]


def _file(load: Callable[[Path], object], name: str) -> Load:
    """What reads the bytes from a file of this name."""
    return lambda content, folder: load(_written(folder / name, content))


def _comments(content: bytes, folder: Path) -> object:
    """A file that loads is written again, with the comments in it."""
    file = _written(folder / "suite.yaml", content)
    loaded = baseline_files.load(file)
    assert loaded is not None
    baseline_files.save(loaded, file)
    assert baseline_files.load(file) == loaded
    return loaded


def _data(content: bytes, folder: Path) -> object:
    packed = lzma.compress(content, preset=0)
    baseline = folder / "suite.yaml"
    name = data_files.name_of("test", "step", packed)
    _written(data_files.folder_beside(baseline) / name, packed)
    return data_files.load(baseline, name, "")


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
    """In the place of what was prepared of a pair, which is made again where it is damaged."""
    source, cache = folder / "source", folder / "cache"
    for part in ("image", "mask"):
        if not (source / part).exists():
            _written(source / part / "a.nii", (CORPUS / part / "small.nii").read_bytes())
    data.load(str(source), SIZE, cache)
    (file,) = cache.iterdir()
    return data.load(str(source), SIZE, _written(file, content).parent)


LOADERS: dict[str, Load] = {
    "run": _file(run_files.load, "run.json"),
    # As they are, which seldom are xz; what they would be is `run`'s.
    "packed_run": _file(run_files.load, "run.json.xz"),
    "baseline": _file(baseline_files.load, "suite.yaml"),
    "comments": _comments,
    "data": _data,
    "image": _image,
    "mask": _mask,
    "cache": _cache,
}


STRUCTURED = ("run", "baseline", "data")
"""Loaders of JSON, which YAML has too: here one value in another's place tells more than a byte."""
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2, 2**63, -(10**30), 1e308, -0.0, 5e-324, float("nan"), float("inf")),
    *("", "x", "1", "\x1b[0m", "../..", "step", "2026-02-30", "\ud800", "é" * 300, [], {}, [[]]),
)
"""What may stand where something else is expected."""


def restructured(content: bytes, seed: int) -> bytes | None:
    """These bytes, as JSON with one value changed; None where they are no mapping."""
    try:
        whole = yaml.load(content, yaml.CSafeLoader)
        places = list(_places(whole))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    if not places:
        return None
    chance = random.Random(seed)
    inside, key = chance.choice(places)
    elsewhere, other = chance.choice(places)
    if chance.random() < 0.2:
        del inside[key]
    elif isinstance(inside, list) and chance.random() < 0.3:
        inside.insert(key, copy.deepcopy(inside[key]))
    elif chance.random() < 0.4:
        inside[key] = copy.deepcopy(elsewhere[other])
    elif isinstance(inside, dict) and chance.random() < 0.2:
        inside[str(chance.choice(VALUES))] = inside.pop(key)
    else:
        inside[key] = copy.deepcopy(chance.choice(VALUES))
    return json.dumps(whole, default=str).encode()


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of nested mappings and lists: what it is in, and its key there."""
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def load(loader: str, content: bytes, folder: Path) -> None:
    """Lets `loader` read these bytes from a file in `folder`. Raises what is a finding."""
    with suppress(GpuperfError):
        LOADERS[loader](content, folder)


def _written(file: Path, content: bytes) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return file
