"""The house: its rooms import only downward, and no name stands twice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests import ROOT

PACKAGE = "pytest_gpuperf"
LEVELS = (
    ("errors",),
    ("model",),
    ("catalogue", "judge"),
    ("storage",),
    ("measure",),
    ("baselines", "analysis"),
    ("history",),
    ("report",),
    ("plugin", "commands"),
    ("__main__",),
)
"""The rooms, from the ground up. A room imports from those below it, never from one beside it."""
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
MOST_LINES = {
    "__init__": 6,
    "__main__": 122,
    "errors": 100,
    "model": 1453,
    "catalogue": 771,
    "judge": 4578,
    "storage": 1686,
    "measure": 9085,
    "baselines": 1807,
    "history": 1335,
    "analysis": 736,
    "report": 4596,
    "plugin": 2518,
    "commands": 3207,
}
"""What somebody can know of each room; 32,000 in all. A line more is worth one that goes."""


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module that is not a package's beginning, by its path inside the package."""
    folder = ROOT / PACKAGE
    files = (file for file in sorted(folder.rglob("*.py")) if file.name != "__init__.py")
    return {file.relative_to(folder): parsed(file) for file in files}


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """The full names of what a module imports anywhere in it, in functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def named(module: Path) -> str:
    """Its full name."""
    return ".".join((PACKAGE, *module.parts)).removesuffix(".py")


def room_of(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def twice(names: Iterator[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def test_every_module_is_in_a_room() -> None:
    assert {room_of(module) for module in modules()} == {*LEVEL}


def test_imports_run_only_downward() -> None:
    upward = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        for name in imported(tree)
        if name.startswith(f"{PACKAGE}.")
        and (room := name.split(".")[1]) != room_of(module)
        and LEVEL.get(room, -1) >= LEVEL[room_of(module)]
    ]
    assert upward == []


def ring(files: Mapping[str, ast.Module]) -> list[str]:
    """Modules of which each imports the next, and the last the first; none where there is none.

    What is taken from a package is a module of it, or what its beginning brings.
    """
    imports = {
        name: {
            next((module for module in (full, full.rpartition(".")[0]) if module in files), name)
            for full in imported(tree)
        }
        - {name}
        for name, tree in files.items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_no_module_imports_itself_through_others() -> None:
    """Not in a function, nor for its types: what two know of each other belongs below both."""
    names = {named(path): tree for path, tree in modules().items()}
    beginnings = (ROOT / PACKAGE).rglob("__init__.py")
    names |= {named(file.parent.relative_to(ROOT / PACKAGE)): parsed(file) for file in beginnings}
    assert ring(names) == []


def test_scripts_import_what_there_is() -> None:
    """They have no suffix: mypy does not look at them."""
    known = {named(path) for path in modules()}
    texts = (file.read_text("utf-8") for file in (ROOT / "script").iterdir() if file.is_file())
    trees = [ast.parse(text) for text in texts if text.partition("\n")[0].endswith("python3")]
    assert len(trees) > 5
    missing = {
        full
        for tree in trees
        for full in imported(tree)
        if full.startswith(f"{PACKAGE}.") and not {full, full.rpartition(".")[0]} & known
    }
    assert missing == set()


def test_only_the_plugin_imports_pytest() -> None:
    """The command's fresh processes and any other program that reads our files do without it."""
    importing = {
        room_of(module)
        for module, tree in modules().items()
        if any(name.split(".")[0] in ("pytest", "_pytest") for name in imported(tree))
    }
    assert importing == {"plugin"}


def test_no_module_and_no_class_has_the_name_of_another() -> None:
    assert twice(module.name for module in modules()) == []
    nodes = (node for tree in modules().values() for node in ast.walk(tree))
    classes = (node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert twice(classes) == []


def test_no_class_is_the_plural_of_another() -> None:
    """A letter at its end is no name: what several are together, a name of its own says."""
    nodes = (node for tree in modules().values() for node in ast.walk(tree))
    names = {node.name.strip("_") for node in nodes if isinstance(node, ast.ClassDef)}
    plurals = {plural for name in names for plural in plurals_of(name)}
    assert names & plurals == set()


def plurals_of(name: str) -> set[str]:
    return {f"{name}s", f"{name}es"} | ({f"{name[:-1]}ies"} if name.endswith("y") else set())


def test_no_room_has_more_lines_than_somebody_can_know() -> None:
    lines: Counter[str] = Counter()
    for file in (ROOT / PACKAGE).rglob("*.py"):
        room = room_of(file.relative_to(ROOT / PACKAGE))
        lines[room] += file.read_text("utf-8").count("\n")
    assert {room: count for room, count in lines.items() if count > MOST_LINES[room]} == {}
    assert sum(MOST_LINES.values()) == 32_000
