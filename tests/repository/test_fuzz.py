"""The corpus of script/fuzz: what it begins with, and what it once found, is read or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pytest_gpuperf.errors import GpuperfError
from tests import ROOT, fuzzing

INPUTS = sorted(file for file in fuzzing.CORPUS.rglob("*") if file.is_file())
MOST_BYTES = 100_000


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_what_fuzzing_begins_with_and_what_it_found_is_read_or_refused(
    file: Path, tmp_path: Path
) -> None:
    fuzzing.load(file.parent.name, file.read_bytes(), tmp_path)


@pytest.mark.parametrize("loader", fuzzing.LOADERS)
def test_each_loader_begins_with_something_that_it_reads(loader: str, tmp_path: Path) -> None:
    assert any(reads(loader, file, tmp_path) for file in (fuzzing.CORPUS / loader).iterdir())


def test_each_loader_is_fuzzed_at_night() -> None:
    night = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
    fuzzed = yaml.safe_load(night)["jobs"]["fuzz"]["strategy"]["matrix"]["loader"]
    assert fuzzed == [*fuzzing.LOADERS]


def reads(loader: str, file: Path, folder: Path) -> bool:
    try:
        return fuzzing.LOADERS[loader](file.read_bytes(), folder) is not None
    except GpuperfError:
        return False


def test_the_corpus_is_small() -> None:
    assert sum(file.stat().st_size for file in INPUTS) < MOST_BYTES
