"""Which files are an installed library's, and whose versions explain numbers."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest

from pytest_gpuperf.measure.device import fingerprint

SITE = Path(pytest.__file__).parents[1]


def test_a_file_belongs_to_the_distribution_that_installed_it() -> None:
    for file, name in (
        (SITE / "pytest" / "__init__.py", "pytest"),
        (SITE / "yaml" / "nodes.py", "pyyaml"),  # called otherwise than what it holds
        (SITE / "torch" / "nn" / "functional.py", ""),  # a fingerprint has it by itself
        (SITE / "nobodys_package" / "a.py", ""),
        (Path("/src/checkout/monai/losses.py"), ""),  # `pip install -e` leaves it there
        (Path("<string>"), ""),
    ):
        assert fingerprint.of_file(file) == name, file


def test_versions_are_kept_of_what_is_imported_and_imports_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    fingerprint._libraries.cache_clear()  # tests before had as many modules
    known = fingerprint.libraries()
    assert not {"pytest", "torch", "pytest-gpuperf"} & {*known}
    module = ModuleType("pluggy.part")
    module.__file__ = str(SITE / "pluggy" / "part.py")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert fingerprint.libraries() == known
    monkeypatch.setitem(sys.modules, "pluggy.other", module)
    module.__dict__["torch"] = torch
    assert fingerprint.libraries() == {**known, "pluggy": metadata.version("pluggy")}
    monkeypatch.delitem(sys.modules, "torch")
    assert fingerprint.libraries() == {}
