"""Releases of packages beside each other: copies of this environment, in which some are others.

In a copy every file has its place, by a hard link: that takes a second for a whole torch, and no
room. Less would not be right. With the release in a folder ahead on PYTHONPATH, or in an
environment on top of this one, a library that another finds by its own place (torch its cuDNN, by
an RPATH from $ORIGIN) stays the one from here; and whoever resolves what the release requires does
not see what there is, and takes the newest of everything. Nothing writes into a file that is
linked: uv removes files and makes others, and so does Python with bytecode.

Copies are gone when whoever needs them ends. What one leaves that was killed, the next removes.
"""

from __future__ import annotations

import os
import re
import shutil
import site
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuperf.errors import NotInstalled, UsageFailure, printable, printable_lines
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.storage import files

if TYPE_CHECKING:
    from packaging.version import Version

PREFIX = "gpuperf-environments-"
"""How the folders' names begin, by which those that were left are known."""
_WRITTEN = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)=(.+?)\.\.(.+)")
_LAST_LINES = 10
_NO_SOLUTION = 1
"""With which uv ends where nothing fits; for what it cannot reach or read it has others."""


@dataclass(frozen=True)
class Span:
    """Releases of one package."""

    package: str
    """Its name as an index has it: lower case, with hyphens."""
    old: str
    new: str


def span(written: str) -> Span:
    """Of "NAME=OLD..NEW". Raises UsageFailure."""
    from packaging.version import InvalidVersion, Version

    asked = f"--package {printable(written)}"
    match = _WRITTEN.fullmatch(written)
    if match is None:
        raise UsageFailure(f"{asked}: write NAME=OLD..NEW, for example torch=2.8.0..2.10.0")
    try:
        old, new = Version(match[2]), Version(match[3])
    except InvalidVersion as error:
        raise UsageFailure(f"{asked}: {error}. Write releases as the index has them") from None
    if not old < new:
        raise UsageFailure(f"{asked}: {old} is not before {new}. Name the one that was good first")
    return Span(re.sub(r"[-_.]+", "-", match[1]).lower(), str(old), str(new))


def releases(of: Span) -> list[str]:
    """OLD, what was released between, and NEW, as uv would install them here.

    Those that were yanked, pre-releases and what does not run on this Python are not among them,
    but for OLD and NEW themselves. Each is asked of uv, as the newest before the one before: so it
    is the index, and the settings, that will be installed from. Raises UsageFailure.
    """
    from packaging.version import Version

    ends = []
    for release in (of.old, of.new):
        said = _newest(f"=={release}", of)
        if said is None:
            raise UsageFailure(
                f"{of.package} {release}: uv finds no such release for this Python, where its own "
                "settings say (UV_DEFAULT_INDEX, UV_FIND_LINKS, uv.toml): it reads none of pip's"
            )
        ends.append(Version(said))
    oldest, newest = ends
    listed = [newest]
    while said := _newest(f">={oldest.public},<{listed[-1].public}", of, "--prerelease=disallow"):
        if _public(Version(said)) <= _public(oldest):
            break
        listed.append(Version(said))
    return [str(one) for one in (oldest, *reversed(listed))]


def _public(version: Version) -> Version:
    """Without what a build added: 2.9.0 of 2.9.0+cu130."""
    return type(version)(version.public)


def _newest(which: str, of: Span, *more: str) -> str | None:
    """The newest release that `which` allows; None where there is none. Raises UsageFailure."""
    words = ("pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", *more)
    with tempfile.TemporaryDirectory(prefix="gpuperf-") as folder:
        asked = Path(folder) / "requirements.in"
        asked.write_text(f"{of.package}{which}\n", encoding="utf-8")
        code, said = _uv(*words, f"--python={sys.executable}", str(asked))
    if code == _NO_SOLUTION and "No solution found" in said:
        return None
    match = re.search(rf"^{re.escape(of.package)}==([^\s;\\]+)", said, re.MULTILINE)
    if code or match is None:
        raise UsageFailure(f"the releases of {of.package} cannot be listed: {_end_of(said)}")
    return match[1]


class Environments:
    """Copies of the environment that this Python runs in, in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Holds them, and whatever else is to go with them."""

    def add(self, name: str, pinned: Mapping[str, str]) -> Path:
        """The interpreter of a new copy in which these packages have these releases.

        What the releases require comes with them; all else is as it is here. Raises NotInstalled
        where they do not go together or cannot be built, UsageFailure where uv reaches no index.
        """
        copy = self.folder / name
        _copied(copy)
        python = copy / "bin" / "python"
        wanted = [f"{package}=={release}" for package, release in pinned.items()]
        code, said = _uv("pip", "install", "--quiet", f"--python={python}", *wanted)
        if code:
            error = NotInstalled if code == _NO_SOLUTION else UsageFailure
            raise error(f"{' '.join(wanted)} cannot be installed: {_end_of(said)}")
        return python

    def remove(self, name: str) -> None:
        """Removes a copy before the others."""
        shutil.rmtree(self.folder / name, ignore_errors=True)


@contextmanager
def environments() -> Iterator[Environments]:
    """A place for copies, which go with the block; those that others left go before it.

    Raises UsageFailure for an environment that cannot be copied, and where there is no uv.
    """
    if (Path(sys.prefix) / "conda-meta").is_dir():
        raise UsageFailure(
            f"{sys.prefix} is conda's, whose packages uv does not know: run this from an "
            "environment that venv or uv has made"
        )
    _uv_itself()
    for place in _places():
        files.sweep(place, PREFIX)
    with files.staging(_places()[0], PREFIX) as folder:
        yield Environments(folder.resolve())


def left() -> list[Path]:
    """What is there of environments, of those who run too."""
    return [folder for place in _places() for folder in place.glob(f"{PREFIX}*")]


def _places() -> list[Path]:
    """Where copies may be, best first: one can link only within a file system."""
    device = Path(sysconfig.get_path("purelib")).stat().st_dev
    known = dict.fromkeys([Path(tempfile.gettempdir()), Path(sys.prefix).parent])
    writable = [place for place in known if os.access(place, os.W_OK)]
    return sorted(writable, key=lambda place: place.stat().st_dev != device)


def _copied(copy: Path) -> None:
    """The environment once more: all of a virtual one, the packages alone of another."""
    if sys.prefix != sys.base_prefix:
        shutil.copytree(sys.prefix, copy, symlinks=True, copy_function=_linked)
        return
    from venv import EnvBuilder

    EnvBuilder(symlinks=True).create(copy)
    (packages,) = copy.glob("lib/python*/site-packages")
    own = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    for place in own:
        shutil.copytree(place, packages, symlinks=True, copy_function=_linked, dirs_exist_ok=True)
    users = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    others = [place for place in (*users, *site.getsitepackages()) if place not in own]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in others]
    (packages / "gpuperf-others.pth").write_text("".join(lines), encoding="utf-8")


def _linked(source: str, copy: str) -> None:
    """A hard link; a copy where the file system, or who owns the file, allows none."""
    try:
        os.link(source, copy, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, copy, follow_symlinks=False)


def _uv(*words: str) -> tuple[int, str]:
    """How uv ends, and what it prints. Where the user stands, for its settings there to hold."""
    return fresh_process.run([_uv_itself(), *words], folder=Path.cwd())


def _uv_itself() -> str:
    """Where uv is: beside this Python, or on the path. Raises UsageFailure."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    program = shutil.which("uv", path=path)
    if program is None:
        raise UsageFailure("--package installs releases by uv, which is not there: pip install uv")
    return program


def _end_of(said: str) -> str:
    return printable_lines("\n".join(said.strip().splitlines()[-_LAST_LINES:]))
