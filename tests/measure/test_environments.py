"""Copies of an environment with other releases: by uv, of packages made here."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import NotInstalled, UsageFailure
from pytest_gpuperf.measure.environments import PREFIX, Span, environments, left, releases, span
from pytest_gpuperf.storage import files
from tests.plugin.test_conditions import AT_NIGHT
from tests.releases import Index, index, packages_of, small_environment


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index with a package in seven releases; temporary files are beside it."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = index(tmp_path, monkeypatch)
    versions = ("1.0", "1.1", "1.2rc1", "1.2", "1.2.post1", "1.10", "2.0")
    made.release("net", {v: f"VERSION = {v!r}\n" for v in versions}, yanked=["1.1"])
    return made


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Those of a small environment."""
    return small_environment(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("net=1.0..1.10", ["1.0", "1.2", "1.2.post1", "1.10"]),
        pytest.param("Net=1.1..1.2", ["1.1", "1.2"], marks=AT_NIGHT),
        pytest.param("net=1.2rc1..1.2", ["1.2rc1", "1.2"], marks=AT_NIGHT),
    ],
)
def test_what_was_released_between_is_listed_but_for_yanked_ones_and_pre_releases(
    offered: Index, written: str, listed: list[str]
) -> None:
    offered.release("net", {"1.9": ""}, python=">=99")
    assert releases(span(written)) == listed


def test_a_release_that_is_none_is_told_with_where_uv_looks(offered: Index) -> None:
    assert offered
    with pytest.raises(UsageFailure, match=r"net 3\.0: uv finds no such release for this Python"):
        releases(Span("net", "1.0", "3.0"))


def test_an_index_that_cannot_be_reached_is_no_list_without_releases(
    offered: Index, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered
    assert packages
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(UsageFailure, match="the releases of net cannot be listed: "):
        releases(Span("net", "1.0", "2.0"))
    with environments() as place, pytest.raises(UsageFailure) as raised:
        place.add("1", {"net": "2.0"})
    assert not isinstance(raised.value, NotInstalled)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("net", "write NAME=OLD..NEW"),
        ("net=1.0", "write NAME=OLD..NEW"),
        ("net=1.0..x", "Invalid version: 'x'"),
        ("net=2.0..1.0", "2.0 is not before 1.0"),
        ("net=1.0..1.0.0", "1.0 is not before 1.0.0"),
        ("-e=1..2", "write NAME=OLD..NEW"),
    ],
)
def test_what_is_no_span_says_how_to_write_one(written: str, said: str) -> None:
    with pytest.raises(UsageFailure, match=f"^--package {written}: .*{said}"):
        span(written)


def test_a_copy_has_one_release_and_all_else_is_the_same_file(
    offered: Index, packages: Path
) -> None:
    offered.release("user", {"1.0": ""}, requires=["net>=1.2"])
    (packages / "other.py").write_text("HERE = __file__\n", encoding="utf-8")
    with environments() as place:
        python = place.add("1", {"net": "1.2", "user": "1.0"})
        assert (packages_of(python) / "other.py").samefile(packages / "other.py")
        done = subprocess.run(
            [str(python), "-c", "import net, other; print(net.VERSION, other.HERE)"],
            check=True,
            capture_output=True,
            text=True,
        )
        assert done.stdout == f"1.2 {packages_of(python) / 'other.py'}\n"
        assert [file.name for file in packages.glob("*.py")] == ["other.py"]
        with pytest.raises(NotInstalled, match=r"net==1\.0 user==1\.0 cannot be installed: "):
            place.add("2", {"net": "1.0", "user": "1.0"})
        place.remove("1")
        assert not python.exists()
    assert not left()


@AT_NIGHT
def test_the_release_takes_the_place_of_the_one_that_is_there(
    offered: Index, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offered
    with environments() as place:
        first = place.add("1", {"net": "1.0"})
        assert packages
        monkeypatch.setattr(sys, "prefix", str(first.parent.parent))
        second = place.add("2", {"net": "2.0"})
        versions = [(packages_of(p) / "net.py").read_text("utf-8") for p in (first, second)]
        assert versions == ["VERSION = '1.0'\n", "VERSION = '2.0'\n"]


@AT_NIGHT
def test_of_an_environment_that_is_not_virtual_the_packages_are_there(
    offered: Index, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "other.py").write_text("HERE = 1\n", encoding="utf-8")
    assert offered
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    original = sysconfig.get_path

    def get_path(name: str, *given: Any, **more: Any) -> str:
        own = "lib" in name and not (given or more)
        return str(packages) if own else original(name, *given, **more)

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    with environments() as place:
        python = place.add("1", {"net": "2.0"})
        asked = [str(python), "-c", "import net, other; print(net.VERSION)"]
        assert subprocess.run(asked, check=True, capture_output=True).stdout == b"2.0\n"


def test_what_a_killed_one_left_is_removed_by_the_next_and_a_living_one_s_is_not(
    tmp_path: Path, offered: Index, packages: Path
) -> None:
    assert offered
    assert packages
    killed = tmp_path / "temporary" / f"{PREFIX}killed"
    living = tmp_path / "temporary" / f"{PREFIX}living"
    for folder in (killed, living):
        (folder / "1").mkdir(parents=True)
    with files.locked(living), environments() as place:
        assert {*left()} == {living, place.folder}


def test_without_uv_and_in_conda_it_says_what_to_do(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with (
        pytest.raises(UsageFailure, match=r"pip install uv$"),
        environments(),
    ):
        pass
    (packages.parents[2] / "conda-meta").mkdir()
    with pytest.raises(UsageFailure, match="is conda's"), environments():
        pass
