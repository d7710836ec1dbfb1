"""Kernels of torch.compile: the lines of code from which inductor made each of them.

Inductor notes them if INDUCTOR_PROVENANCE asks for it before compilation (torch 2.9; older ones
ignore it). A compiled graph then has JSON by kernel name: the stacks of the operators fused in each
kernel. In backward they are those of the forward.
"""

from __future__ import annotations

import gc
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from pytest_gpuperf.model.measurement import CallSite, KernelTable

if TYPE_CHECKING:
    from pytest_gpuperf.measure.trace.call_sites import FrameFinder

_VARIABLE, _LINES_ALONE = "INDUCTOR_PROVENANCE", 2
"""Level 1 has the nodes of each pass, too."""
_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in \S+')


def note() -> None:
    """Makes inductor note them from now on, here and in fresh processes, unless the user chose.

    It takes no measurable time.
    """
    if _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = str(_LINES_ALONE)
    # Inductor reads it when it is imported, which may have been before.
    config: Any = sys.modules.get("torch._inductor.config")
    trace: Any = getattr(config, "trace", None)
    if getattr(trace, "provenance_tracking_level", None) == 0:
        trace.provenance_tracking_level = _LINES_ALONE


def with_sites(table: KernelTable, frames: FrameFinder) -> KernelTable:
    """The table with call sites for these kernels where no operator launches them."""
    known, numbers = sites(frames), {site: n for n, site in enumerate(table.sites)}
    site_of = list(table.site_of)
    for place, (launch, number) in enumerate(zip(table.launches, table.site_of, strict=True)):
        site = known.get(table.names[launch.name])
        if site and not table.sites[number].line:
            site_of[place] = numbers.setdefault(site, len(numbers))
    return replace(table, sites=tuple(numbers), site_of=tuple(site_of))


def sites(frames: FrameFinder) -> dict[str, CallSite]:
    """The call sites of the kernels of all recently compiled graphs, by kernel name.

    If a kernel fuses several lines, it is the line with the most operators. Graphs number their
    kernels anew, so an ambiguous name is left out.
    """
    found: dict[str, set[CallSite]] = {}
    for noted, backward in _graphs():
        for name, stacks in json.loads(noted).items():
            lines = Counter(filter(None, (innermost(stack, frames) for stack in stacks)))
            for (line, function), _ in lines.most_common(1):
                site = CallSite(line, function, backward=backward)
                found.setdefault(name.partition(":")[0], set()).add(site)
    return {name: site for name, those in found.items() if len(those) == 1 for site in those}


def _graphs() -> Iterator[tuple[str, bool]]:
    """The notes of each compiled graph, and whether it is a backward graph.

    No list of graphs exists: the garbage collector is asked, which forgets what is frozen.
    """
    gc.unfreeze()
    kind = getattr(sys.modules.get("torch._inductor.output_code"), "CompiledFxGraph", None)
    for graph in [made for made in gc.get_objects() if type(made) is kind]:
        noted = getattr(graph, "inductor_provenance_stack_traces_str", None)
        if noted:
            yield noted, bool(graph.fx_kwargs.get("is_backward"))


def innermost(stack: str, frames: FrameFinder) -> tuple[str, str] | None:
    """The line and the function of the innermost frame that is no library's."""
    for frame in reversed([*_FRAME.finditer(stack)]):
        file, line = _here(Path(frame["file"]), frames), int(frame["line"])
        if shown := frames.named(file):
            return f"{shown}:{line}", _functions(file).get(line, "")
    return None


def _here(file: Path, frames: FrameFinder) -> Path:
    """A file of another checkout in this one, found by its folder and those above.

    A graph from inductor's cache has the lines of the checkout that compiled it.
    """
    library = file.exists() and not frames.named(file)
    if library or file.is_relative_to(frames.root):
        return file
    tails = (frames.root.joinpath(*file.parts[n:]) for n in range(1, len(file.parts) - 1))
    return next((tail for tail in tails if tail.is_file()), file)


@lru_cache
def _functions(file: Path) -> dict[int, str]:
    """The innermost function that executes each line, as in "Attention.attend"."""
    from pytest_gpuperf.measure.trace.call_sites import function_of

    try:
        codes = [compile(file.read_bytes(), file, "exec", dont_inherit=True)]
    except (OSError, SyntaxError, ValueError):
        return {}
    for code in codes:  # which grows
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    named = [code for code in codes if code.co_flags & CO_OPTIMIZED and code.co_name[0] != "<"]
    return {line: function_of(code) for code in named for *_, line in code.co_lines() if line}
