"""Changes of a module's code for a block: what somebody would have committed, without the commit.

The patched source is compiled under the name of its file, and each function of the imported module
whose code is another one is given that code until the block ends. Line numbers are then those of
the patched file. Only bodies of functions may change: a patch of anything else is refused.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from textwrap import indent
from types import CodeType, FunctionType, ModuleType
from typing import Any

import yaml

_CAUSES = Path(__file__).with_name("causes.yaml")
_ROOT = Path(__file__).resolve().parents[2]
_LINES = tuple[int, int]


class BadPatch(Exception):
    """A patch that cannot be applied, or changes nothing."""


@dataclass(frozen=True)
class Cause:
    """One of causes.yaml, which says what each field is."""

    name: str
    kinds: tuple[str, ...]
    step: str
    file: str
    old: str
    new: str
    function: str
    line: str
    at: str
    modules: str
    summary: str
    held_out: bool = False


@dataclass(frozen=True)
class Expected:
    """What a headline has to say of a cause: its file, lines, function and modules."""

    name: str
    kinds: tuple[str, ...]
    step: str
    summary: str
    file: str
    """As call sites show it, but that they may have folders before it."""
    first: int
    """The line; of a cause that is all of a function, its first."""
    last: int
    function: str
    modules: str
    """A regular expression that each module has to match as a whole; "" for no module."""
    held_out: bool = False
    """Whether no rule was mended with it."""


@cache
def causes() -> dict[str, Cause]:
    """All of them, by name."""
    entries: list[dict[str, Any]] = yaml.safe_load(_CAUSES.read_text(encoding="utf-8"))
    return {entry["name"]: _cause(entry) for entry in entries}


def _cause(entry: dict[str, Any]) -> Cause:
    kind = entry.pop("kind")
    kinds = (kind,) if isinstance(kind, str) else tuple(kind)
    return Cause(**{"line": "", "at": entry["file"], "kinds": kinds, **entry})


def patched(source: str, cause: Cause) -> str:
    """`source` with the cause in it. Raises BadPatch where its old text is not there just once."""
    places = list(_occurrences(source, cause.old))
    if len(places) != 1:
        raise BadPatch(
            f"{cause.name}: {cause.file} has the old text {len(places)} times, once is needed: "
            f"{cause.old.splitlines()[0]}"
        )
    ((begin, end, margin),) = places
    return source[:begin] + _indented(cause.new, margin) + source[end:]


def _occurrences(source: str, text: str) -> Iterator[tuple[int, int, str]]:
    """Where the text begins and ends, and the margin of its first line."""
    first = text.splitlines()[0]
    for match in re.finditer(re.escape(first), source):
        line = source[source.rfind("\n", 0, match.start()) + 1 :]
        margin = line[: len(line) - len(line.lstrip())]
        whole = _indented(text, margin)
        if source.startswith(whole, match.start()):
            yield match.start(), match.start() + len(whole), margin


def _indented(text: str, margin: str) -> str:
    return indent(text, margin).removeprefix(margin)


def expected(cause: Cause) -> Expected:
    """What has to be said, with the numbers of lines as they are once it is patched.

    Raises BadPatch where the patch, its function or its line is not there.
    """
    source = _source(cause.at)
    if cause.at == cause.file:
        source = patched(source, cause)
    begin, end = _function(source, cause)
    if cause.line:
        lines = enumerate(source.splitlines()[begin - 1 : end], begin)
        numbers = [number for number, line in lines if line.strip() == cause.line]
        if len(numbers) != 1:
            raise BadPatch(
                f"{cause.name}: {cause.function} of {cause.at} has the line {len(numbers)} times, "
                f"once is needed: {cause.line}"
            )
        begin = end = numbers[0]
    kept = {key: value for key, value in asdict(cause).items() if key in _KEPT}
    return Expected(**kept, file=cause.at, first=begin, last=end)


_KEPT = ("name", "kinds", "step", "summary", "function", "modules", "held_out")


def _function(source: str, cause: Cause) -> _LINES:
    """The lines of the function that a cause expects."""
    scope: Any = ast.parse(source)
    for name in cause.function.split("."):
        inside = [node for node in ast.walk(scope) if getattr(node, "name", "") == name]
        if not inside:
            raise BadPatch(f"{cause.name}: {cause.at} has no {cause.function}")
        scope = inside[0]
    return scope.lineno, scope.end_lineno


def _source(file: str) -> str:
    return _path(file).read_text(encoding="utf-8")


def _path(file: str) -> Path:
    """Where it is. Raises BadPatch where no import would find it."""
    folders = (Path(folder) / file for folder in (str(_ROOT), *sys.path))
    path = next((path for path in folders if path.is_file()), None)
    if path is None:
        raise BadPatch(f"{file} is in no folder of sys.path: is its package installed?")
    return path


def present(cause: Cause) -> bool:
    """Whether the code that it patches is on this machine."""
    try:
        _path(cause.file)
    except BadPatch:
        return False
    return True


@contextmanager
def applied(cause: Cause) -> Iterator[None]:
    """Has the process run the patched code within the block.

    Raises BadPatch where that is impossible, or changes no function that is there.
    """
    module = importlib.import_module(cause.file.removesuffix(".py").replace("/", "."))
    file = str(module.__file__)
    before = Path(file).read_text(encoding="utf-8")
    after = patched(before, cause)
    if _without_bodies(before) != _without_bodies(after):
        raise BadPatch(f"{cause.name}: changes more of {cause.file} than bodies of functions")
    other = _codes(compile(after, file, "exec", dont_inherit=True))
    codes = {
        code: other[key]
        for key, code in _codes(compile(before, file, "exec", dont_inherit=True)).items()
        if code != other.get(key, code)
    }
    exchanged = [(f, f.__code__) for f in _functions(module) if f.__code__ in codes]
    if not any(_does(code) != _does(codes[code]) for _, code in exchanged):
        raise BadPatch(f"{cause.name}: no function of {cause.file} does anything else with it")
    try:
        for function, code in exchanged:
            function.__code__ = codes[code]
        yield
    finally:
        for function, code in exchanged:
            function.__code__ = code


def _without_bodies(source: str) -> str:
    """What stands outside of functions, and their arguments."""

    class Emptied(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
            node.body = [ast.Pass()]
            return node

    return ast.dump(Emptied().visit(ast.parse(source)))


def _codes(code: CodeType, outer: tuple[str, ...] = ()) -> dict[tuple[str, ...], CodeType]:
    """All code inside, by its names from the outermost in, and which of that name it is."""
    inside: dict[tuple[str, ...], CodeType] = {}
    seen: Counter[str] = Counter()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            seen[constant.co_name] += 1
            key = (*outer, f"{constant.co_name} {seen[constant.co_name]}")
            inside |= {key: constant, **_codes(constant, key)}
    return inside


def _does(code: CodeType) -> tuple[object, ...]:
    """What it does, wherever it stands."""
    constants = (_does(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, tuple(constants)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions of a module, of its classes, and what decorators have put away of them."""
    seen: set[int] = set()
    left: list[object] = [*vars(module).values()]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, FunctionType):
            yield value
            cells = value.__closure__ or ()
            left += [cell.cell_contents for cell in cells if _filled(cell)]
            left += [vars(value).get("__wrapped__")]
        elif isinstance(value, type) and value.__module__ == module.__name__:
            left += vars(value).values()
        elif isinstance(value, (staticmethod, classmethod)):
            left.append(value.__func__)
        elif isinstance(value, property):
            left += [value.fget, value.fset, value.fdel]
        elif isinstance(value, partial):
            left.append(value.func)


def _filled(cell: Any) -> bool:
    try:
        return isinstance(cell.cell_contents, (FunctionType, partial))
    except ValueError:  # it is empty
        return False
