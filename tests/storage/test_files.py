"""Writing in one step, locks between processes, and refusing what is not what it should be."""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import yaml

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.measurement import Scalar
from pytest_gpuperf.storage import files

FILE = Path("folder/file.json")


@dataclass(frozen=True)
class Leaf:
    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012

    number: float
    setting: Scalar = ""


@dataclass(frozen=True)
class Tree:
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    schema: int
    leaves: dict[str, tuple[Leaf, ...]]


def validated(data: object) -> Tree:
    """The data as a Tree of schema 3."""
    return files.validate(data, Tree, FILE, 3, "Mend it")


def refusal(data: object) -> BadFile:
    """Why the data is no Tree."""
    with pytest.raises(BadFile) as caught:
        validated(data)
    return caught.value


# Validation


def test_another_schema_is_refused_with_both_versions_and_what_can_read_it() -> None:
    for schema in (2, 0, -1, None, "3", 3.5, True, [3]):
        caught = refusal({"schema": schema, "leaves": {}})
        assert caught.entry == "schema"
        assert caught.problem == (f"schema version {schema!r}, but this version of gpuperf reads 3")
        assert caught.remedy == "Mend it"
    assert refusal({"leaves": {}}).problem.startswith(
        "schema version None, but this version of gpuperf reads 3"
    )
    newer = refusal({"schema": 4, "anything": "else"})
    assert newer.remedy == "Install the version of pytest-gpuperf that wrote it"


def test_the_entry_is_named_and_what_is_wrong_with_it() -> None:
    for leaf, entry, problem in (
        ({"number": "1"}, "leaves/a/0/number", "valid number"),
        ({"number": True}, "leaves/a/0/number", "valid number"),
        ({"number": None}, "leaves/a/0/number", "valid number"),
        ({"number": float("nan")}, "leaves/a/0/number", "finite number"),
        ({"number": float("-inf")}, "leaves/a/0/number", "finite number"),
        ({}, "leaves/a/0/number", "required"),
        ({"number": 1, "more": 2}, "leaves/a/0/more", "Unexpected keyword"),
        ({"number": 1, "setting": [1]}, "leaves/a/0/setting", "string or a valid integer or"),
        ({"number": 1, "setting": float("nan")}, "leaves/a/0/setting", "finite number"),
        (7, "leaves/a/0", "an object"),
    ):
        caught = refusal({"schema": 3, "leaves": {"a": [leaf]}})
        assert (caught.file, caught.entry) == (FILE, entry)
        assert problem in caught.problem
        assert "more)" not in caught.problem
    # Of several the first is named and the rest are counted.
    bad = [{"number": "x"}, {"number": 1}, {"number": "y", "setting": []}]
    caught = refusal({"schema": 3, "leaves": {"a": bad}})
    assert caught.entry == "leaves/a/0/number"
    assert caught.problem.endswith("(2 more)")


# Writing


@contextmanager
def umask(mask: int) -> Iterator[None]:
    """Sets the umask for the block."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def test_a_file_is_written_at_once_with_its_folders_and_the_permissions_of_any(
    tmp_path: Path,
) -> None:
    file = tmp_path / "a" / "b" / "file.yaml"
    files.write_atomically(file, "Größe\n")
    with file.open(encoding="utf-8") as reader:
        for mask, mode in ((0o022, 0o644), (0o077, 0o600), (0o002, 0o664)):
            with umask(mask):
                files.write_atomically(file, "new")
                assert os.umask(mask) == mask
            assert file.stat().st_mode & 0o777 == mode
        assert reader.read() == "Größe\n"
    assert file.read_text() == "new"
    assert list(file.parent.iterdir()) == [file]


def test_a_write_that_fails_in_the_middle_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageFailure, match=r"file: cannot be written \(No space left"):
        files.write_atomically(file, "x" * 100_000)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_what_stands_in_a_file_s_place_is_a_usage_failure(tmp_path: Path) -> None:
    """And it is known before the work."""
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    file.write_text("a file")
    for refuses, place, says in (
        (partial(files.write_atomically, content="x"), folder, r"written \(Is a directory\)"),
        (partial(files.write_atomically, content="x"), file / "inside", "cannot be written"),
        (files.remove, folder, r"folder: cannot be removed \("),
        (files.check_writable, folder, r"folder: cannot be written \(it is a folder\)"),
        (
            files.check_writable,
            file / "inside/x",
            r"x: cannot be written \(.*file is not a "
            r"folder\)",
        ),
    ):
        with pytest.raises(UsageFailure, match=says):
            refuses(place)
    files.check_writable(tmp_path / "new/folder/x.json")
    files.check_writable(file)
    assert file.read_text() == "a file"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "folder"]


# Locks

HOLDING = """
import sys
from pathlib import Path
from pytest_gpuperf.storage import files

with files.locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def held_by_another(place: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds it, until its input ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(place)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        yield child


def test_what_another_process_holds_is_refused_in_time_or_waited_for(tmp_path: Path) -> None:
    place, beside = tmp_path / "place", tmp_path / "beside"
    place.mkdir()
    beside.mkdir()
    with held_by_another(place) as child:
        for patience, after in ((0.0, ""), (0.02, " after 0 s")):
            says = rf"place: locked by another process{after}\. Wait until it ends"
            with pytest.raises(files.Locked, match=says), files.locked(place, patience=patience):
                pytest.fail("two hold one place")
        with files.locked(beside, patience=0):
            pass
        # Who waits gets it when the other one lets go.
        assert child.stdin is not None
        child.stdin.close()
        with files.locked(place):
            pass
    assert child.returncode == 0


def test_it_is_free_after_an_error_an_end_and_whatever_was_forked_meanwhile(tmp_path: Path) -> None:
    with held_by_another(tmp_path) as child:
        child.kill()
        child.wait()
        with files.locked(tmp_path, patience=0):
            pass
    with pytest.raises(ZeroDivisionError), files.locked(tmp_path):
        _ = 1 / 0
    ours, theirs = os.pipe()
    with files.locked(tmp_path):
        forked = os.fork()
        if not forked:  # it has open what we have, until we let it go
            os.close(theirs)
            os.read(ours, 1)
            os._exit(0)
    with files.locked(tmp_path, patience=0):
        os.close(theirs)
    os.waitpid(forked, 0)
    os.close(ours)


def test_whoever_may_read_a_folder_holds_it_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    """Also where only its owner may write, and where it is a mere link to the folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    folder.chmod(0o555)
    with (
        files.locked(folder),
        pytest.raises(files.Locked),
        files.locked(tmp_path / "link", patience=0),
    ):
        pytest.fail("two hold one folder")
    assert [*folder.iterdir()] == []


def test_what_cannot_be_held_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for holds, says in (
        (files.changing(tmp_path / "file" / "x"), r"x: cannot be created \(Not a directory"),
        (files.locked(tmp_path / "loop"), r"loop: cannot be locked \(Too many levels"),
    ):
        with pytest.raises(UsageFailure, match=says), holds:
            pytest.fail("nothing can be held")


def test_who_reserves_a_file_keeps_others_from_it_and_leaves_nothing(tmp_path: Path) -> None:
    """Not from writing beside it, nor from reserving another; through a link it is the same."""
    file, link = tmp_path / "runs" / "run.json", tmp_path / "link.json"
    link.symlink_to(file)
    with files.reserved(file):
        for same in (file, link):
            with (
                pytest.raises(UsageFailure, match="another process is writing"),
                files.reserved(same),
            ):
                pytest.fail("two have reserved one file")
        with files.reserved(tmp_path / "runs" / "other.json"):
            files.write_atomically(file, "{}")
            files.write_atomically(link, "[]")
    assert [*file.parent.iterdir()] == [file]
    assert link.is_symlink()
    with files.reserved(file):
        pass
    with pytest.raises(UsageFailure, match="cannot be written"), files.reserved(file / "inside"):
        pytest.fail("nothing can be written there")


def test_texts_are_such_as_files_can_hold_and_people_read() -> None:
    assert files.writable("Größe \udc80") == "Größe \\udc80"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", files.utc_now())
    assert files.short(Path("/root/a/b.yaml"), Path("/root")) == "a/b.yaml"
    assert files.short(Path("/elsewhere/b.yaml"), Path("/root")) == "/elsewhere/b.yaml"


# Reading


def test_what_is_too_large_to_be_ours_is_refused_read_packed_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_BYTES", 2**20)
    file, packed = tmp_path / "run.json", tmp_path / "run.json.xz"
    for size in (2**20, 2**20 + 1):
        content = b"[]".rjust(size)
        file.write_bytes(content)
        packed.write_bytes(lzma.compress(content, preset=0))
        if size == 2**20:
            assert files.read_json(file, "") == files.read_json(packed, "") == []
            assert files.packed(content, file) == content
            continue
        for place in (file, packed):
            with pytest.raises(BadFile, match="larger than 64 MiB"):
                files.read_json(place, "")
            with pytest.raises(BadFile, match="gpuperf wrote nothing"):
                files.packed(content, place)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (
            "a: [1, 0x1f, 012, 0, -0, -3, +1, 1_0, 1:30, 1., 1.5, -1.5e+3, 1.5e-3, 1e3, .inf, ~, "
            "yes, no, 2026-01-01, '1', \"1\"]",
            None,
        ),
        ("", None),
        ("a: 1\nb: {a: 2, c: 3}\na: 2", 'line 3 column 1: invalid YAML (the key "a" occurs twice'),
        ("a: {b: 2, b: 3}", 'line 1 column 11: invalid YAML (the key "b" occurs twice'),
        ("a: {1: 2}", "line 1 column 5: invalid YAML (a key must be text"),
        ("a: &a [1]\nb: [*a, *a]", "line 1 column 4: invalid YAML (aliases are not allowed"),
        ("a: &a [*a]", "line 1 column 4: invalid YAML (aliases are not allowed"),
        ("a: [1", "line 2 column 1: invalid YAML ("),
        ("a: 2026-13-01", "invalid YAML (month must be in 1..12"),
        ("a: 1\n---\nb: 2", "line 2 column 1: invalid YAML (but found another document"),
        ("a: !!python/name:os.system", "invalid YAML (could not determine a constructor"),
    ],
)
def test_yaml_is_read_as_yaml_reads_it_but_for_aliases_and_keys_that_are_no_text_or_twice(
    text: str, read: str | None
) -> None:
    file = Path("meddpm.yaml")
    if read is None:
        assert files.parse_yaml(text, file, "Mend it") == yaml.safe_load(text)
        return
    with pytest.raises(BadFile) as refused:
        files.parse_yaml(text, file, "Mend it")
    assert read in str(refused.value)


# What a killed writer leaves


def test_what_a_killed_writer_left_is_removed_by_the_next_and_a_living_one_s_is_not(
    tmp_path: Path,
) -> None:
    left = tmp_path / f"{files._STAGING}left"
    left.mkdir()
    (left / "content").write_text("half")
    with files.staging(tmp_path) as held:
        files.write_atomically(tmp_path / "a.json", "{}")
        assert (held / ".gitignore").read_text() == "*\n"
        assert {*tmp_path.iterdir()} == {held, tmp_path / "a.json"}
    assert [*tmp_path.iterdir()] == [tmp_path / "a.json"]


# What is put away


@pytest.mark.parametrize("leaves", [0, 1, 3000])
def test_what_is_put_away_is_taken_out_as_it_was_and_is_small(leaves: int) -> None:
    tree = Tree(3, {"leaf": tuple(Leaf(number / 7, "same") for number in range(leaves))})
    put = files.put_away(tree)
    assert files.taken_out(Tree, put) == tree
    if leaves == 3000:
        assert len(put) < len(files.to_json(tree)) / 2
