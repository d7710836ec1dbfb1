"""A configuration of pytest in which one flag was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import pytest


def one_flag(name: str, value: object) -> pytest.Config:
    """What a hook that only asks for flags is given."""
    return cast("pytest.Config", SimpleNamespace(getoption={name: value}.get))
