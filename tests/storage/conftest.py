"""Where the tests of this folder keep a file; its suffix is no matter to what reads it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where a run or baselines may be kept."""
    return tmp_path / "meddpm.file"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for property tests, which write it many times."""
    return tmp_path_factory.mktemp("kept") / "meddpm.file"
