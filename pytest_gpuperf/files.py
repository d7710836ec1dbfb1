"""Reading and writing the files we keep: validated on load, atomic on write.

A file is read whole and validated against the dataclasses of `model.py` (by pydantic), so that a
bad one is refused with the path of the offending entry before anything is measured or written.
Writes go to a temporary file in the same folder and are renamed over the old one, under a lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_gpuperf.errors import BadFile

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")


def validate(data: object, expected: type[T], file: Path, schema: int, remedy: str) -> T:
    """`data`, as read from `file`, as an instance of the dataclass `expected`.

    `schema` is the version this code writes. Raises BadFile naming the offending entry; the
    `remedy` ends its message.
    """
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise BadFile(file, "", f"expected a mapping, found {type(data).__name__}", remedy)
    found = data.get("schema")
    if found != schema or isinstance(found, bool):
        raise BadFile(
            file,
            "schema",
            f"schema version {found!r} is not {schema}, the one this version of gpuperf reads",
            "Install the version of pytest-gpuperf that wrote it"
            if isinstance(found, int) and found > schema
            else remedy,
        )
    try:
        # Through JSON, so that strict validation treats YAML and JSON alike (lists are tuples).
        return adapter(expected).validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        entry = "/".join(str(part) for part in first["loc"])
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise BadFile(file, entry, f"{first['msg']}{more}", remedy) from None


def adapter(expected: type[T]) -> TypeAdapter[T]:
    """Pydantic's validator for a dataclass, built once."""
    from pydantic import TypeAdapter

    if expected not in _ADAPTERS:
        _ADAPTERS[expected] = TypeAdapter(expected)
    return cast("TypeAdapter[T]", _ADAPTERS[expected])


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def to_plain(value: object) -> Any:
    """A dataclass as mappings, lists and scalars."""
    return adapter(type(value)).dump_python(value, mode="json")


def to_json(value: object) -> str:
    """A dataclass as one line of JSON."""
    return adapter(type(value)).dump_json(value).decode()


def write_atomically(file: Path, text: str) -> None:
    """Replaces `file` by `text` in one step: a reader sees the old content or the new, whole."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Holds the lock `name` (a file's path, a device's identity) against other processes.

    Lock files live in the temporary folder, so that none lies beside a baseline in a repository.
    """
    from filelock import FileLock

    folder = Path(tempfile.gettempdir()) / f"gpuperf-locks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    with FileLock(folder / (hashlib.sha256(name.encode()).hexdigest()[:16] + ".lock")):
        yield
