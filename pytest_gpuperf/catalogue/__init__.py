"""Names: metrics, architectures, families of kernels, units and how numbers are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")


@cache
def yaml_table(file: Path) -> Any:
    """The content of a YAML file beside the code, read on first use. Callers must not modify it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_text(encoding="utf-8"), Loader=loader)


def grouped(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """The items by their `key`: groups, and the items of each, in the order of `items`."""
    groups: dict[_Key, list[_Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
