"""A configuration of pytest in which one flag was given."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    import pytest


class _Asked:
    def __init__(self, flag: str, value: object) -> None:
        self._flags = {flag: value}

    def getoption(self, name: str, default: object = None) -> object:
        return self._flags.get(name, default)


def one_flag(name: str, value: object) -> pytest.Config:
    """What a hook that only asks for flags is given."""
    return cast("pytest.Config", _Asked(name, value))
