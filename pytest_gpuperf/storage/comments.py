"""Comments that people write into our YAML, carried over when the file is written anew.

By the marks of yaml's parser in C. ruamel.yaml, which is made for this, takes more than two seconds
for the largest of our files, and lays it out in another way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import yaml

Place = tuple[str | int, ...]
"""Of an entry: the keys down to it. A line of numbers is its own key."""
_END: Place = ()
_LINE_BREAK = re.compile("[\n\x85\u2028\u2029]")
"""YAML's; those of Python are more."""


def keep(old: str, new: str) -> str:
    """The YAML text `new` with the comments of `old`: above their entries, and beside them.

    A comment goes where its entry is gone, and beside a line of numbers where these are others.
    Both texts are valid, and `new` has a line of its own for each entry.
    """
    if "#" not in old:
        return new
    above, beside = _comments(old)
    lines = new.split("\n")
    places: dict[int, list[Place]] = {len(lines) - 1: [_END]}
    for place, start, _ in _entries(new):
        places.setdefault(start, []).append(place)
    kept = []
    for number, line in enumerate(lines):
        indent = line[: len(line) - len(line.lstrip())]
        here = places.get(number, [])
        kept += [indent + comment for place in here for comment in above.get(place, ())]
        kept.append("  ".join([line, *(beside[place] for place in here if place in beside)]))
    return "\n".join(kept)


def _comments(text: str) -> tuple[dict[Place, list[str]], dict[Place, str]]:
    """The comments on lines of their own, by the entry that follows; and those behind entries."""
    lines = _LINE_BREAK.split(text)
    first: dict[int, Place] = {}
    inside: set[int] = set()
    beside = {}
    for place, line, end in _entries(text):
        first.setdefault(line, place)
        inside.update(range(line + 1, end.line))
        behind = lines[end.line][end.column :].lstrip(" :")
        if behind.startswith("#"):
            beside[place] = behind
    above: dict[Place, list[str]] = {}
    waiting: list[str] = []
    for number, content in enumerate(lines):
        if number in first:
            above[first[number]], waiting = waiting, []
        elif content.lstrip().startswith("#") and number not in inside:
            waiting.append(content.strip())
    above[_END] = waiting
    return above, beside


def _entries(text: str) -> Iterator[tuple[Place, int, yaml.Mark]]:
    """The entries of a YAML text, outer ones first: place, line, and where a comment may follow."""
    import yaml

    def within(node: yaml.Node, place: Place) -> Iterator[tuple[Place, int, yaml.Mark]]:
        keyed = isinstance(node, yaml.MappingNode)
        for number, item in enumerate(node.value):
            key, value = item if keyed else (item, item)
            nested = isinstance(value, yaml.CollectionNode) and not value.flow_style
            if keyed:
                name, end = key.value, key.end_mark
            else:
                name = number if nested else text[key.start_mark.index : key.end_mark.index]
                end = key.start_mark
            yield (*place, name), key.start_mark.line, end if nested else value.end_mark
            if nested:
                yield from within(value, (*place, name))

    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if root is not None:
        yield from within(root, ())
