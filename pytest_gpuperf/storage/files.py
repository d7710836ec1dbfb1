"""The ways in and out of the files we keep: validated on load, atomic on write, under locks.

A file is read whole and validated against the dataclasses of `model` (by pydantic), so that a bad
one is refused with the path of the offending entry before anything is measured or written. Writes
go to a temporary file in the same folder and are renamed over the old one, under a lock.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_gpuperf.errors import BadFile, UsageFailure

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


T = TypeVar("T")
Problem = tuple[str, str]
"""The path of an entry that cannot be true, and why."""

_TICK = 1.0
"""Seconds between two words of who waits for a lock."""

COMPRESSED = ".xz"
"""A file whose name ends so is compressed: campaigns and kernel tables are kept for long."""


def read_json(file: Path, remedy: str) -> object:
    """What the JSON in `file` says; `remedy` ends the message of what cannot be trusted.

    Raises FileNotFoundError, UsageFailure for a file that cannot be read, and BadFile.
    """
    return parse_json(read_bytes(file), file, remedy)


def read_bytes(file: Path) -> bytes:
    """What `file` holds. Raises FileNotFoundError, and UsageFailure where it cannot be read."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None


def parse_json(content: bytes, file: Path, remedy: str) -> object:
    """What `content`, read from `file`, says: JSON, compressed for a name in .xz.

    Raises BadFile; the `remedy` ends its message.
    """
    try:
        text = (lzma.decompress(content) if file.suffix == COMPRESSED else content).decode()
    except lzma.LZMAError as error:
        raise BadFile(file, "", f"not compressed by xz: {error}", remedy) from None
    except UnicodeDecodeError as error:
        raise BadFile(file, f"byte {error.start}", "not UTF-8 text", remedy) from None
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BadFile(file, where, f"not JSON: {error.msg}", remedy) from None
    except (ValueError, RecursionError) as error:
        raise BadFile(file, "", f"cannot be read: {error}", remedy) from None


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of these pairs. Raises ValueError for a key that is there twice."""
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f'the key "{key}" is there twice')
        mapping[key] = value
    return mapping


def validate(data: object, expected: type[T], file: Path, schema: int, remedy: str) -> T:
    """`data`, as read from `file`, as an instance of the dataclass `expected`.

    `schema` is the version this code writes. Raises BadFile naming the offending entry; the
    `remedy` ends its message.
    """
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise BadFile(file, "", f"expected a mapping, found {type(data).__name__}", remedy)
    version = data.get("schema")
    if version != schema or isinstance(version, bool):
        problem = (
            f"schema version {version!r} is not {schema}, the one this version of gpuperf reads"
        )
        if isinstance(version, int) and version > schema:
            remedy = "Install the version of pytest-gpuperf that wrote it"
        raise BadFile(file, "schema", problem, remedy)
    try:
        # Through JSON, so that strict validation treats YAML and JSON alike (lists are tuples).
        text = json.dumps(data, default=str)
    except (ValueError, RecursionError):
        raise BadFile(file, "", "an entry contains itself, or is nested too deep", remedy) from None
    try:
        return adapter(expected).validate_json(text, strict=True)
    except ValidationError as error:
        entry, problem = _first_problem(error.errors(include_url=False), json.loads(text))
        raise BadFile(file, entry, problem, remedy) from None


def check(problems: Iterator[Problem], file: Path, remedy: str) -> None:
    """Raises BadFile for the first of these problems of `file`, which its types cannot say."""
    for entry, problem in problems:
        raise BadFile(file, entry, problem, remedy)


def _first_problem(errors: list[ErrorDetails], data: object) -> tuple[str, str]:
    """The first offending entry of `data`, and what is wrong with it, of pydantic's findings."""
    said: dict[str, list[str]] = {}
    for error in errors:
        said.setdefault(_entry(error, data), []).append(error["msg"])
    (entry, first), more = next(iter(said.items())), len(said) - 1
    # Where several types are allowed, each of them complains.
    others = [text.removeprefix("Input should be ") for text in first[1:]]
    problem = " or ".join([first[0], *others])
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


def writable(text: str) -> str:
    """`text` as a file can hold it: half of a surrogate pair, which UTF-8 has not, is escaped.

    Python's own text may have one, from an escape or a file's name that is not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def packed(text: str, file: Path, *, quickly: bool = False) -> bytes:
    """`text` as `file` holds it: compressed for a name in .xz, `quickly` at the cost of size."""
    if file.suffix != COMPRESSED:
        return text.encode()
    return lzma.compress(text.encode(), preset=0 if quickly else lzma.PRESET_DEFAULT)


def check_writable(file: Path) -> None:
    """Raises UsageFailure where `file` could not be written: better before an hour of work."""
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if file.is_dir():
        raise UsageFailure(f"{file}: cannot be written (it is a folder). Name a file")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        what = "is no folder" if not folder.is_dir() else "may not be written to"
        raise UsageFailure(f"{file}: cannot be written ({folder} {what}). Name another place")


def write_atomically(file: Path, content: str | bytes) -> None:
    """Replaces `file` by `content` in one step: a reader sees the old content or the new, whole.

    Raises UsageFailure where the file cannot be written; the old one is then as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be written ({error.strerror})") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def remove(file: Path) -> None:
    """Removes `file` if it is there. Raises UsageFailure where it cannot be removed."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be removed ({error.strerror})") from error


class Locked(Exception):
    """Another process holds the lock, and we do not wait for it."""


@contextmanager
def locked(
    name: str, *, wait: bool = True, tick: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Holds the lock `name` (a file's path, a device's identity) against other processes.

    Without `wait`, raises Locked when another process holds it; otherwise `tick` is called about
    every second until that one lets go. Lock files live in the temporary folder, so that none lies
    beside a baseline in a repository.
    """
    from filelock import FileLock, Timeout

    folder = Path(tempfile.gettempdir()) / f"gpuperf-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = FileLock(folder / (hashlib.sha256(name.encode()).hexdigest()[:16] + ".lock"))

    def acquired(timeout: float) -> bool:
        with suppress(Timeout):
            lock.acquire(timeout=timeout)
        return bool(lock.is_locked)

    while not acquired(_TICK if wait else 0):
        if not wait:
            raise Locked(name)
        tick()
    try:
        yield
    finally:
        lock.release()


def utc_now() -> str:
    """The present moment: UTC, ISO 8601 to the second, "2026-03-01T12:00:00Z"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def short(path: Path, root: Path) -> str:
    """`path` relative to `root` where it lies below it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
