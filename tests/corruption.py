"""Files that cannot be trusted, made from good ones, and the claim that they are left alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.errors import BadFile, UsageFailure


def changed(data: Any, path: Sequence[str | int], value: object) -> Any:
    """A copy of plain data with another value (or a new key) at `path`."""
    copied, inside = _copied(data, path)
    inside[path[-1]] = value
    return copied


def without(data: Any, path: Sequence[str | int]) -> Any:
    """A copy of plain data that lacks the entry at `path`."""
    copied, inside = _copied(data, path)
    del inside[path[-1]]
    return copied


def _copied(data: Any, path: Sequence[str | int]) -> tuple[Any, Any]:
    """A copy of plain data, and in it what has the entry at `path`."""
    copied = copy.deepcopy(data)
    return copied, reduce(getitem, path[:-1], copied)


def refusal(load: Callable[[Path], object], file: Path, kind: type[UsageFailure]) -> str:
    """What `load` says when it refuses `file`, which it names and leaves byte for byte."""
    before, beside = file.read_bytes(), set(file.parent.iterdir())
    with pytest.raises(kind) as caught:
        load(file)
    assert type(caught.value) is kind
    assert str(file) in str(caught.value)
    assert file.read_bytes() == before
    assert set(file.parent.iterdir()) == beside
    return str(caught.value)


Where = tuple[str | int, ...]
Wrong = list[tuple[Where, object, Where | None, str]]
"""Where, what is there instead, which entry is named where it is another, and what is said."""


def is_named(
    load: Callable[[Path], object], write: Callable[[object], Path], plain: Any, wrong: Wrong
) -> None:
    """Whatever is wrong in a file of this plain data is named when it is loaded."""
    for path, value, entry, problem in wrong:
        file = write(changed(plain, path, value))
        message = refusal(load, file, BadFile)
        assert message.startswith(f"{file}: {'/'.join(map(str, entry or path))}: "), (path, value)
        assert problem in message, (path, value)


@contextmanager
def unreadable(file: Path) -> Iterator[None]:
    """Takes the permission to read `file` away for the block; skips where root reads all."""
    file.chmod(0)
    try:
        try:
            file.read_bytes()
        except PermissionError:
            yield
        else:
            pytest.skip("this user may read everything")
    finally:
        file.chmod(0o600)
