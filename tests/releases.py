"""Packages made for a test: an index in a folder, and a small environment they are installed in."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from venv import EnvBuilder

import pytest


@dataclass(frozen=True)
class Index:
    """An index of packages (PEP 503) in a folder, which uv reads in the place of any other."""

    folder: Path

    def release(
        self,
        name: str,
        versions: Mapping[str, str],
        *,
        requires: Sequence[str] = (),
        yanked: Iterable[str] = (),
    ) -> None:
        """A package of one module, by each version what is in that."""
        place = self.folder / name
        place.mkdir(exist_ok=True)
        lines = []
        for version, source in versions.items():
            wheel = place / f"{name}-{version}-py3-none-any.whl"
            _write(wheel, name, version, source, [f"Requires-Dist: {r}" for r in requires])
            said = 'data-requires-python="&gt;=3.10"' + " data-yanked" * (version in yanked)
            lines.append(f'<a href="{wheel.as_uri()}" {said}>{wheel.name}</a>')
        with (place / "index.html").open("a", encoding="utf-8") as index:
            index.write("\n".join([*lines, ""]))


def _write(wheel: Path, name: str, version: str, source: str, more: Sequence[str]) -> None:
    info = f"{name}-{version}.dist-info"
    about = ("Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *more, "")
    tagged = ("Wheel-Version: 1.0", "Root-Is-Purelib: true", "Tag: py3-none-any", "")
    content = {
        f"{name}.py": source,
        f"{info}/METADATA": "\n".join(about),
        f"{info}/WHEEL": "\n".join(tagged),
    }
    content[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(wheel, "w") as opened:
        for path, text in content.items():
            opened.writestr(path, text)


def index(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An empty one, the only one that uv knows."""
    made = Index(folder / "index")
    made.folder.mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", made.folder.as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(folder / "uv-cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    return made


def small_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One without packages, which this process takes for its own; its site-packages."""
    prefix = folder / "environment"
    EnvBuilder(symlinks=True).create(prefix)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    return packages_of(prefix / "bin" / "python")


def packages_of(python: Path) -> Path:
    """The site-packages of an environment by its interpreter."""
    (place,) = python.parent.parent.glob("lib/python*/site-packages")
    return place
