"""Installed distributions: of which one a file is, and the versions of those that use torch.

What is installed for development (`pip install -e`), or imported from a checkout, is the user's own
code and of none. Nor are torch and this package, which a fingerprint names by itself.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

INSTALLED = frozenset({"site-packages", "dist-packages"})
_ASIDE = ("torch", "torchgen", "functorch", "pytest_gpuperf")


def of_file(file: Path) -> str:
    """The name of the distribution that installed `file`; "" for none."""
    parts = file.parts
    at = next((at for at, part in enumerate(parts) if part in INSTALLED), len(parts))
    return _of_package(parts[at + 1].removesuffix(".py")) if at + 1 < len(parts) else ""


def versions() -> dict[str, str]:
    """The versions by name of those that are imported and import torch, in alphabetical order.

    A step calls operators by them. Which of them it does, its kernel table knows. They are looked
    for again where another number of modules is imported: 5 ms for 2,500 of them.
    """
    return dict(_versions(len(sys.modules)))


@cache
def _versions(_: int) -> dict[str, str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    using = [one for one in [*sys.modules.values()] if _globals(one).get("torch") is torch]
    files = {str(_globals(one).get("__file__") or "") for one in using}
    names = {of_file(Path(file)) for file in files} - {""}
    return {name: version for name in sorted(names) if (version := metadata.version(name))}


def _globals(module: object) -> dict[str, object]:
    """Not by `getattr`, which imports what a lazy module has not imported yet."""
    return getattr(module, "__dict__", {})


@cache
def _of_package(package: str) -> str:
    """Most are called as what they hold, which is found at once; of others the list is read."""
    if package in _ASIDE:
        return ""
    try:
        name = metadata.distribution(package).name
    except metadata.PackageNotFoundError:
        name = next(iter(metadata.packages_distributions().get(package, [])), "")
    return re.sub(r"[-_.]+", "-", name).lower()  # releases of one write its hyphens otherwise
