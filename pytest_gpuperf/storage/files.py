"""The ways in and out of the files we keep: validated on load, atomic on write, under locks.

A file is read whole and validated against the dataclasses of `model` (by pydantic). So a bad
file is refused with the path of the offending entry before anything is measured or written. Writes
go to a temporary file in the same folder and are renamed over the old file. A process that changes
baselines locks their folder meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_gpuperf.errors import BadFile, UsageFailure, printable
from pytest_gpuperf.model.measurement import grouped

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


T = TypeVar("T")
Problem = tuple[str, str]
"""The path of an entry that cannot be true, and why."""

PATIENCE = 300.0
"""Seconds that a writer of baselines waits for another writer, who takes a second or two."""
_POLL = 0.05
"""Seconds between two attempts to take a lock."""

MOST_BYTES = 64 * 2**20
"""The most bytes of a file to read, also after decompression; the largest committed run has 11 MB.
Larger files are another program's: a trace in a folder of runs."""
_TOO_LARGE = f"larger than {MOST_BYTES // 2**20} MiB, the most that gpuperf reads"
LONGEST_NAME = 200
"""Bytes of a suite's name: file systems allow 255, with our endings."""
_NAME = re.compile(r"[\w+-](?:[\w.+ -]*[\w.+-])?")
"""The pattern of a valid name; letters are those of any language."""

COMPRESSED = ".xz"
"""A file whose name ends so is compressed: campaigns and kernel tables are kept for long."""


def read_json(file: Path, remedy: str) -> object:
    """The data in the JSON `file`; `remedy` ends the message of a BadFile.

    Raises FileNotFoundError, UsageFailure for an unreadable file, and BadFile.
    """
    return parse_json(read_bytes(file), file, remedy)


def read_bytes(file: Path) -> bytes:
    """The content of `file`.

    Raises FileNotFoundError, UsageFailure for an unreadable file, and BadFile for a device, for a
    pipe, which may have no end, and for a file larger than anything of ours.
    """
    try:
        with open(file, "rb", opener=_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise BadFile(file, "", "not a regular file", "Name another file")
            content = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    if len(content) > MOST_BYTES:
        raise BadFile(file, "", _TOO_LARGE, "Name another file")
    return content


def _at_once(file: str, flags: int) -> int:
    """Opens a file without waiting for the writer of a pipe."""
    return os.open(file, flags | os.O_NONBLOCK)


def parse_json(content: bytes, file: Path, remedy: str) -> object:
    """The data in the JSON `content`, read from `file`: compressed for a name in .xz.

    Raises BadFile; the `remedy` ends its message.
    """
    text = decoded(content, file, remedy)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BadFile(file, where, f"invalid JSON ({error.msg})", remedy) from None
    except (RecursionError, ValueError) as error:
        raise BadFile(file, "", f"cannot be read: {error}", remedy) from None


def decoded(content: bytes, file: Path, remedy: str) -> str:
    """The text of `content`, read from `file`: compressed for a name in .xz. Raises BadFile."""
    try:
        if file.suffix == COMPRESSED:
            unpacking = lzma.LZMADecompressor()
            content = unpacking.decompress(content, MOST_BYTES + 1)
            if len(content) > MOST_BYTES:
                raise BadFile(file, "", _TOO_LARGE, remedy)
            if not unpacking.eof:
                raise lzma.LZMAError("the file is cut short")
        return content.decode()
    except lzma.LZMAError as error:
        raise BadFile(file, "", f"not a valid xz file: {error}", remedy) from None
    except UnicodeDecodeError as error:
        raise BadFile(file, f"byte {error.start}", "not UTF-8 text", remedy) from None


def parse_yaml(text: str, file: Path, remedy: str) -> object:
    """The data in the YAML `text`, read from `file`. Raises BadFile; `remedy` ends its message.

    Refused are keys that are no text or there twice, as a merge of two branches leaves them, and
    aliases: a few hundred bytes of them stand for more than memory holds.
    """
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_nodes(node, set())
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise BadFile(file, where, f"invalid YAML ({error.problem})", remedy) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # ValueError: a number or a date that Python does not have, such as 2026-13-01.
        raise BadFile(file, "", f"invalid YAML ({str(error).splitlines()[0]})", remedy) from None
    finally:
        loader.dispose()


def _check_nodes(node: Any, seen: set[int]) -> None:
    """Raises yaml's error for an alias, and for a key that is no text or there twice.

    `seen` has the ids of the lists and mappings before this one: an alias is one of them again.
    """
    import yaml

    def refuse(what: str, at: Any) -> None:
        raise yaml.constructor.ConstructorError(None, None, what, at.start_mark)

    if isinstance(node, yaml.ScalarNode):
        return
    if id(node) in seen:
        refuse("aliases are not allowed", node)
    seen.add(id(node))
    values = node.value
    if isinstance(node, yaml.MappingNode):
        known: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                refuse("a key must be text", key)
            if key.value in known:
                refuse(f'the key "{key.value}" occurs twice', key)
            known.add(key.value)
        values = [value for _, value in node.value]
    for value in values:
        _check_nodes(value, seen)


def _without(data: object, names: Sequence[str]) -> object:
    """Parsed data without what they say of these names, such as metrics that are measured no more.

    Keys and items of that name go, and mappings whose `metric` it is. Kernel tables stay as they
    are: they have no such names, and a hundred thousand items.
    """
    if isinstance(data, dict):
        return {
            key: value if key == "kernels" else _without(value, names)
            for key, value in data.items()
            if key not in names
        }
    if isinstance(data, list):
        named = (item.get("metric") if isinstance(item, dict) else item for item in data)
        pairs = zip(data, named, strict=True)
        return [_without(item, names) for item, name in pairs if name not in names]
    return data


def validate(
    data: object,
    expected: type[T],
    file: Path,
    schema: int,
    remedy: str,
    retired: Sequence[str] = (),
    problems: Callable[[T], Iterable[Problem]] = lambda _: (),
) -> T:
    """`data`, as read from `file`, as an instance of the dataclass `expected`.

    `schema` is the version this code writes. What older files say of `retired` names is left out.
    `problems` finds those that the types do not exclude. Raises BadFile naming the first offending
    entry; the `remedy` ends its message.
    """
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise BadFile(file, "", f"expected a mapping, found {type(data).__name__}", remedy)
    version = data.get("schema")
    if version != schema or isinstance(version, bool):
        problem = f"schema version {version!r}, but this version of gpuperf reads {schema}"
        if isinstance(version, int) and version > schema:
            remedy = "Install the version of pytest-gpuperf that wrote it"
        raise BadFile(file, "schema", problem, remedy)
    try:
        data = _without(data, retired) if retired else data
        # Through JSON, so that strict validation treats YAML and JSON alike (lists are tuples).
        loaded = adapter(expected).validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        entry, problem = _first_problem(error.errors(include_url=False, include_input=False), data)
    except (ValueError, RecursionError) as error:
        entry, problem = "", f"cannot be read: {error}"
    else:
        for entry, problem in problems(loaded):
            raise BadFile(file, entry, problem, remedy)
        return loaded
    raise BadFile(file, entry, problem, remedy)


def _first_problem(errors: list[ErrorDetails], data: object) -> tuple[str, str]:
    """The first offending entry of `data`, and what is wrong with it, of pydantic's findings."""
    said = grouped(errors, lambda error: _entry(error, data))
    (entry, found), more = next(iter(said.items())), len(said) - 1
    # Where several types are allowed, each of them complains.
    others = [error["msg"].removeprefix("Input should be ") for error in found[1:]]
    problem = " or ".join([found[0]["msg"], *others])
    return entry, f"{problem} ({more} more)" if more else problem


def _entry(error: ErrorDetails, data: Any) -> str:
    """The path of an offending entry; pydantic's names of types at its end are left out."""
    path = []
    for part in error["loc"]:
        try:
            data = data[part]
        except (LookupError, TypeError):
            if error["type"] != "missing":
                break
        path.append(str(part))
    return "/".join(path)


def adapter(expected: type[T]) -> TypeAdapter[T]:
    """Pydantic's validator for a dataclass, built once."""
    from pydantic import TypeAdapter

    if expected not in _ADAPTERS:
        _ADAPTERS[expected] = TypeAdapter(expected)
    return cast("TypeAdapter[T]", _ADAPTERS[expected])


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def to_plain(value: object) -> Any:
    """A dataclass as mappings, lists and scalars."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def to_json(value: object) -> str:
    """A dataclass as one line of JSON."""
    return adapter(type(value)).dump_json(value, by_alias=True).decode()


def put_away(value: object) -> bytes:
    """The bytes of a dataclass that may not be needed again; `taken_out` restores the dataclass.

    A thousand measurements of a session would be looked through by every collection of garbage, of
    which each measurement makes two. As objects, three committed runs take 4.6 to 8.9 times as many
    bytes (h200-meddpm, h200-optimizations, h200-tf32-broken).
    """
    return zlib.compress(to_json(value).encode(), level=1)


def taken_out(kind: type[T], put: bytes) -> T:
    """The dataclass of this kind from the bytes of `put_away`."""
    return adapter(kind).validate_json(zlib.decompress(put))


def writable(text: str) -> str:
    """`text` as a file can hold it: half of a surrogate pair, which UTF-8 has not, is escaped.

    Python's own text may have one, from an escape or a file's name that is not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def packed(content: bytes, file: Path, *, quickly: bool = False) -> bytes:
    """The bytes to write into `file`: compressed for a name in .xz, `quickly` at the cost of size.

    Raises BadFile for more bytes than are ever read: such bytes replace no readable file.
    """
    if len(content) > MOST_BYTES:
        remedy = "gpuperf wrote nothing. Record or accept fewer tests at once"
        raise BadFile(file, "", _TOO_LARGE, remedy)
    if file.suffix != COMPRESSED:
        return content
    return lzma.compress(content, preset=0 if quickly else lzma.PRESET_DEFAULT)


def check_writable(file: Path) -> None:
    """Raises UsageFailure where `file` could not be written: better before an hour of work."""
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if file.is_dir():
        raise UsageFailure(f"{file}: cannot be written (it is a folder). Name a file")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        what = "is not a folder" if not folder.is_dir() else "is write-protected"
        raise UsageFailure(f"{file}: cannot be written ({folder} {what}). Name another place")


def write_atomically(file: Path, content: str | bytes) -> None:
    """Replaces `file` by `content` in one step: a reader sees the old content or the new, whole.

    A symbolic link stays a link. Raises UsageFailure where the file cannot be written; the old
    file is then unchanged.
    """
    data = content.encode() if isinstance(content, str) else content
    file = Path(os.path.realpath(file)) if file.is_symlink() else file
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        sweep(file.parent)
        with staging(file.parent) as folder:
            temporary = folder / "content"
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(file)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be written ({error.strerror})") from error


def ignored_by_git(folder: Path) -> None:
    """Makes git ignore a folder of ours, whether it exists or not, where that can be written."""
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".gitignore").open("x", encoding="utf-8") as stream:  # follows no link
            stream.write("*\n")


def git(
    folder: Path,
    *arguments: str,
    given: str = "",
    ends: Collection[int] = (0,),
    patience: float | None = None,
) -> bytes:
    """The output of git, in English, for what is `given`; `ends` are the exit codes of success.

    Raises UsageFailure where git fails, is missing, or takes longer than `patience` seconds.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            input=given.encode(),
            check=False,
            env={**os.environ, "LC_ALL": "C"},
            timeout=patience,
        )
    except OSError as error:
        raise UsageFailure(f"git cannot be started ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UsageFailure(f"git did not answer within {patience} s") from None
    if done.returncode not in ends:
        command = next(word for word in arguments if not word.startswith("-") and "=" not in word)
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        remedy = ". Run gpuperf in a git checkout" if "not a git repository" in said else ""
        raise UsageFailure(f"git {command}: {said}{remedy}")
    return done.stdout


_STAGING = ".gpuperf-writing-"


@contextmanager
def staging(parent: Path, prefix: str = _STAGING) -> Iterator[Path]:
    """A folder beside the final place for files being written, which git never adds.

    The folder is locked until its process ends, however the process ends.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        with ExitStack() as opened:
            try:
                opened.enter_context(locked(folder, patience=0))
            except (FileNotFoundError, Locked):
                continue  # another writer sweeps it away before it is held
            except UsageFailure:
                pass  # some file systems lock nothing; then nobody sweeps there either
            opened.callback(shutil.rmtree, folder, ignore_errors=True)
            if folder.exists():
                (folder / ".gitignore").write_text("*\n", encoding="utf-8")
                yield folder
                return


def sweep(parent: Path, prefix: str = _STAGING) -> None:
    """Removes the folders in `parent` of killed writers: no process locks them any more."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError, UsageFailure), locked(left, patience=0):
            shutil.rmtree(left, ignore_errors=True)


@contextmanager
def reserved(file: Path) -> Iterator[None]:
    """Keeps all other processes from reserving `file`, for hours, whether the file exists or not.

    A folder beside the file is the lock, as for files being written: its process removes it, or
    the next writer. Raises UsageFailure where another process has it, and where writing fails.
    """
    place = Path(os.path.realpath(file))
    check_writable(place)
    digest = hashlib.sha256(place.name.encode(errors="surrogateescape")).hexdigest()[:16]
    prefix = f"{_STAGING}{digest}-"
    _made(place.parent)
    sweep(place.parent, prefix)
    with staging(place.parent, prefix) as own:
        # Of two who begin at one moment, both are refused.
        if {*place.parent.glob(f"{prefix}*")} != {own}:
            raise UsageFailure(
                f"another process is writing {file}. Wait until that process ends, or name another "
                "file"
            )
        yield


def name_problem(name: str) -> str:
    """Why `name`, of a suite, a device or an architecture, names no file of ours; "" if it does.

    Names come out of files, and become parts of paths.
    """
    if not _NAME.fullmatch(name):
        return (
            f'"{printable(name)}" is not a valid name. Use letters, digits and " ._-+", but no '
            "blank or dot at the beginning"
        )
    if len(name.encode()) > LONGEST_NAME:
        return f"name of {len(name.encode())} bytes is longer than {LONGEST_NAME}"
    return ""


def remove(file: Path) -> None:
    """Removes `file` if the file exists. Raises UsageFailure where it cannot be removed."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be removed ({error.strerror})") from error


class Locked(UsageFailure):
    """Another process holds the lock, and has not released it in time."""

    def __init__(self, place: Path, waited: float) -> None:
        seconds = f" after {waited:.0f} s" if waited else ""
        super().__init__(
            f"{place}: locked by another process{seconds}. Wait until it ends, or end it: lslocks "
            "names it"
        )


@contextmanager
def locked(place: Path, *, patience: float = PATIENCE) -> Iterator[None]:
    """Locks a folder, or a device's node, against all other processes on this machine.

    The place itself is locked (flock): every process that may read it can do so, by any path and
    TMPDIR. No file is made, and a killed process frees its locks. A second lock of a process waits
    like another process's.

    Raises Locked after `patience` seconds, FileNotFoundError where there is no such place, and
    UsageFailure where the place cannot be opened or locked.
    """
    with ExitStack() as opened:
        try:
            handle = os.open(place, os.O_RDONLY)
            opened.callback(os.close, handle)
            _wait(handle, place, patience)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UsageFailure(f"{place}: cannot be locked ({error.strerror})") from error
        # Closed alone, it would stay with processes that were forked meanwhile.
        opened.callback(fcntl.flock, handle, fcntl.LOCK_UN)
        yield


def _wait(handle: int, place: Path, patience: float) -> None:
    begun = time.monotonic()
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() - begun >= patience:
            raise Locked(place, patience)
        time.sleep(_POLL)


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Locks a folder, which is made if missing, while files in it are read and replaced.

    Raises the errors of `locked`, and UsageFailure where the folder cannot be made.
    """
    _made(folder)
    with locked(folder):
        yield


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"{folder}: cannot be created ({error.strerror})") from error


def utc_now() -> str:
    """The present moment: UTC, ISO 8601 to the second, "2026-03-01T12:00:00Z"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def short(path: Path, root: Path) -> str:
    """`path` relative to `root` where it lies below it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
