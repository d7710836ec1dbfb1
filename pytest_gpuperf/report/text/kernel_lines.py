"""The cause of a change, in a few lines under a failing test: a sentence, lines, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import printable
from pytest_gpuperf.judge.cause import MOVED
from pytest_gpuperf.model.measurement import BACKWARD, GRAPH_BREAK, grouped
from pytest_gpuperf.model.result import (
    Attribution,
    Cause,
    CauseKind,
    ChangeKind,
    ChangeReason,
    KernelChange,
    LineChange,
    Upgrade,
)
from pytest_gpuperf.report.text import table

MOST = 12
"""Lines under a failing test; the whole list is in the run's file."""
_SMALL = 0.05
"""A row below this share of all that moved is summed up with others of its family."""
_FEW = 3
"""The fewest small entries that are summed."""
_SENSIBLE = 1.5
"""The limit beyond which explained and unexplained time nearly cancel."""
_NAMED = 4
"""Kernels or operators that are named of one line of code."""
_COUNTS_NAMED = 3
"""Metrics that are."""
_LINES = 2
"""Lines of code shown before the kernels."""
_FAR = 2.0
"""The traced time is shown too if it differs from the step's change by more than this factor."""
VERSIONS = "versions changed: "
"""The start of the text on software versions that differ from the baseline's."""
CALLED = "called at "
"""The start of the text on a line that does more because changed software does."""


@dataclass(frozen=True)
class ChangeRow:
    """One row of text for one or several entries."""

    change: float
    """Nanoseconds."""
    share: float | None
    what: str
    """A kernel's short name, or a family."""
    how: str
    """The kind of change, and its reason."""


def lines(
    attribution: Attribution, width: int, most: int = MOST, *, told: bool = False
) -> list[str]:
    """At most `most` lines of at most `width` characters, the sentence first, then the worst.

    The sentence is left out if it is `told` elsewhere.
    """
    cause = "" if told else sentence(attribution)
    first = table.wrapped([cause], width, "") if cause else []
    return [*first, *_details(attribution, width, most - len(first))][:most]


def sentence(attribution: Attribution) -> str:
    """The cause of a slower step, changed software first; "" if only kernels can tell.

    For example "+4.4 ms (+1.90 %): model/layers.py:118 SelfAttention._attend launches the same
    kernels twice as often (6 modules)". The time is the step's, from its verdict.
    """
    said, cause, step = blamed(attribution), attribution.cause, attribution.step
    if said and cause and cause.change is not None:
        said = f"{duration(cause.change)}{_relative(cause.relative)}: {said}"
        traced = cause.traced if cause.kind is not CauseKind.UNKNOWN else None
        if traced and not cause.change / _FAR <= traced <= cause.change * _FAR:
            said += f" (in the trace {duration(traced)})"
    elif said and cause is None and step:
        said = f"{duration(step.change)}{_relative(step.relative)}: {said}"
    return "; ".join(filter(None, [versions(attribution), said]))


def versions(attribution: Attribution) -> str:
    """Software of another version, as "versions changed: torch 2.12 -> 2.13"; or ""."""
    said = ", ".join(_upgraded(one, attribution) for one in attribution.upgrades)
    return printable(f"{VERSIONS}{said}") if said else ""


def _upgraded(one: Upgrade, attribution: Attribution) -> str:
    """The upgrade as text: "monai 1.4.0 -> 1.6.1 (its code calls 2,663 operators; were 2,523)"."""
    if one.launches_before == one.launches_after:
        return str(one)
    calls, what = _WORDS[attribution.of_operators]
    return f"{one} (its code {calls} {one.launches_after:,} {what}s; were {one.launches_before:,})"


def blamed(attribution: Attribution) -> str:
    """The cause without the time: the line, its present behaviour and the previous one."""
    cause, step = attribution.cause, attribution.step
    if cause is None:
        return _together(attribution) if step and step.slower else ""
    if cause.change is None and not cause.line and (cause.family or not cause.what):
        return ""
    rank = "" if attribution.rank is None else f"rank {attribution.rank}: "
    return printable(rank + _cause(cause, attribution))


_SENTENCES = {
    CauseKind.PRECISION: "{kernels} runs in {what}{of}; was {formerly}",
    CauseKind.LAYOUT: "{step} converts the layout{of}: {what}, {counted}; {were}",
    CauseKind.REPEATED: "{kernels} does work again{aside}: {counted}; {were}",
    CauseKind.ALGORITHM: "{kernels} uses {what}{of}; was {formerly}",
    CauseKind.LAUNCHES: "{kernels} {does} {more} more {those}{aside}; {were}",
    CauseKind.SYNCHRONISATION: "{host} waits for the GPU {often}{aside}; {was}",
    CauseKind.TRANSFER: "{step} copies{way} {often}{size}{of}; {was}",
    CauseKind.MEMORY: "{step} asks the driver for memory {often}{aside}; {was}",
    CauseKind.RECOMPILATION: "{step} is compiled again {often}; {was}",
    CauseKind.HOST: "the GPU waits for {host}{aside}",
    CauseKind.COUNT: "{kernels}{of} {counts}{since}",
    CauseKind.SLOWER: "{kernels} takes longer with the same kernels{aside}",
    CauseKind.UNKNOWN: "no kernel stands out from the noise",
}
"""One sentence per kind of cause. The subject is a line of code, or else the named kernel."""
_WORDS = (("launches", "kernel"), ("calls", "operator"))
"""The verb and noun for kernels, and for operators."""
_BY_LAUNCHES = (CauseKind.LAUNCHES, CauseKind.REPEATED)
_COUNTS = {
    "flops": "computes more",
    "saved_bytes": "saves more for backward",
    "kept_memory": "keeps more after the step",
    "peak_memory": "has more memory alive at the peak",
}
_COMPILED = {
    GRAPH_BREAK: "{step} breaks its graph {often} ({what}); {was}",
    "graph_breaks": "{step} breaks its graph {often}; {was}",
    "compiled_graphs": "{step} has compiled graphs {often}; {was}",
}
_DIRECTIONS = {"htod": " to the device", "dtoh": " to the host", "dtod": " within the device"}


def _cause(cause: Cause, attribution: Attribution) -> str:
    """The words for a cause."""
    where = f"{cause.line} {cause.function}".strip()
    if cause.phase and where:
        where += f", in the {cause.phase} pass,"
    if _upgrade_is_all(cause, attribution):
        return f"{CALLED}{where}"
    modules = _modules(cause.modules)
    more = cause.after - cause.before
    once, often = cause.executions or (cause.before, cause.after)
    does, one = _WORDS[attribution.of_operators]
    return _form(cause, attribution.of_operators).format(
        step=where or "the step",
        kernels=where or cause.family or "the step",
        host=where or "the host",
        what=cause.what.removeprefix(f"{GRAPH_BREAK}: "),
        formerly=cause.formerly,
        before=cause.before,
        of=_aside(modules),
        aside=_aside(cause.what, modules),
        alike=_aside(cause.what if attribution.of_operators else "", modules),
        was=f"was {once:,}" if once else "never before",
        were=f"were {cause.before:,}" if cause.before else "none before",
        more=f"{more:,}",
        often=_times(often),
        repeated=_times(cause.times or 0),
        does=does,
        one=one,
        those=one if more == 1 else f"{one}s",
        counted=units.counted(cause.after, "call" if attribution.of_operators else "launch"),
        verb="runs" if cause.callee == BACKWARD else "calls",
        callee=cause.callee,
        since=f"; operators have more to do from {cause.since} on" if cause.since else "",
        size="" if cause.bytes is None else f", {units.value(cause.bytes, 'bytes')} more",
        way=_direction(cause.what),
        counts=f"{_COUNTS.get(cause.what, 'does more')}: "
        + _counted(cause.what, cause.before, cause.after),
    )


def _upgrade_is_all(cause: Cause, attribution: Attribution) -> bool:
    """Whether a library's new version explains all additional launches of the line."""
    more = cause.after - cause.before if cause.kind in _BY_LAUNCHES and cause.line else 0
    every = (one.launches_after - one.launches_before for one in attribution.upgrades)
    return more > 0 and more in every


def _counted(metric: str, before: float, after: float) -> str:
    """The change of a count as text: "saved_bytes 4 MiB -> 8 MiB"."""
    known = catalogue().metrics.get(metric)
    said = (units.value(value, known.unit if known else "") for value in (before, after))
    return f"{metric} {' -> '.join(said)}"


def _form(cause: Cause, of_operators: bool) -> str:
    """The sentence of its kind, or a shorter form if facts are missing."""
    if cause.callee and cause.executions and not cause.executions[0]:
        return "{step} {verb} {callee}, with {more} more {those}; none before{aside}"
    if cause.callee:  # without counts it may still have been called
        return "{step} {verb} {callee} {often}; {was}: {more} more {those}{aside}"
    if cause.kind is CauseKind.REPEATED and cause.times:
        return "{kernels} {does} the same {one}s {repeated} as often{alike}"
    if cause.kind is CauseKind.UNKNOWN and of_operators:
        return "no line of code explains the change in {what}"
    if cause.kind is CauseKind.LAUNCHES and cause.after <= cause.before:
        return "{kernels} {does} other {those}{aside}"
    if cause.kind is CauseKind.TRANSFER and not cause.after:
        return "{step} copies{size}{way}{of}"
    if cause.kind is CauseKind.RECOMPILATION and not cause.after:
        return "{step} has no compiled graph any more; it had {before:,}"
    if cause.kind is CauseKind.RECOMPILATION:
        return _COMPILED.get(cause.what.partition(":")[0], _SENTENCES[cause.kind])
    return _SENTENCES[cause.kind]


def _aside(*said: str) -> str:
    text = ", ".join(filter(None, said))
    return f" ({text})" if text else ""


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _modules(modules: Sequence[str]) -> str:
    return modules[0] if len(modules) == 1 else f"{len(modules)} modules" if modules else ""


def _direction(copy: str) -> str:
    """The direction of a copy: "Memcpy HtoD (Pageable -> Device)", copy_bytes_h2d_pageable.

    "" if the name does not say.
    """
    name = copy.lower().replace("2", "to")
    way = next((said for says, said in _DIRECTIONS.items() if says in name), "")
    return f"{way} (pageable)" if way and "pageable" in name else way


def _details(attribution: Attribution, width: int, most: int) -> list[str]:
    """The lines of code and the kernels."""
    if attribution.of_operators:
        return _of_operators(attribution, width, most)
    changes = rows(attribution)
    lines = attribution.lines[:_LINES] if changes else ()
    said = [f"{duration(one.change)} at {_place(one)}: {_what(one)}" for one in lines]
    head = [*table.wrapped([heading(attribution)], width, ""), *_indented(said, width)]
    below = _indented(notes(attribution), width)
    blocks = _laid_out(changes, width)
    shown = table.fitting(blocks, most - len(head) - len(below))
    more: list[str] = []
    if rest := changes[shown:]:
        # They belong to the sum.
        total = duration(fsum(row.change for row in rest))
        where = "one kernel or gap" if len(rest) == 1 else f"{len(rest)} kernels and gaps"
        what = f"and {len(rest)} smaller" if shown else f"in {where}"
        more = _indented([f"{what}: {total}"], width)[:1]
    return [*head, *(line for block in blocks[:shown] for line in block), *more, *below][:most]


def _indented(texts: Iterable[str], width: int) -> list[str]:
    return [line for text in texts for line in table.wrapped([text], width, table.INDENT)]


def rows(attribution: Attribution) -> list[ChangeRow]:
    """The entries that stand out as rows, the worst first.

    Entries with the same text (one kernel in several shapes) share a row. Entries below _SMALL of
    the total change share a row if family and kind of change agree.
    """
    entries = [entry for entry in attribution.entries if entry.significant]
    alike = grouped(entries, lambda e: (e.kind, e.cause, e.short, e.formerly, e.family)).values()
    limit = _SMALL * fsum(abs(entry.change) for entry in entries)
    sums = [abs(fsum(entry.change for entry in group)) for group in alike]
    minor = [group for group, moved in zip(alike, sums, strict=True) if moved < limit]
    made = [_row(group) for group, moved in zip(alike, sums, strict=True) if moved >= limit]
    for family in grouped(minor, lambda group: (group[0].kind, group[0].family)).values():
        if len(family) < _FEW:
            made += [_row(group) for group in family]
        else:
            made.append(_row([entry for group in family for entry in group], len(family)))
    return sorted(made, key=lambda row: (-abs(row.change), -row.change, row.what))


def _laid_out(changes: Sequence[ChangeRow], width: int) -> list[list[str]]:
    """The lines of each row: aligned if all fit, else stacked."""
    cells = [
        (duration(row.change), share(row.share), printable(row.what), printable(row.how))
        for row in changes
    ]
    sizes = table.column_widths(cells) if cells else {}
    blocks = []
    for row in cells:
        change, part, what, how = row
        whole, start = (table.aligned(some, sizes, (2, 3)) for some in (row, row[:3]))
        if len(whole) <= width:
            blocks.append([whole])
            continue
        first = [start] if len(start) <= width else _indented([f"{change}, {part}, {what}"], width)
        blocks.append([*first, *table.wrapped([how], width, table.INDENT * 3)])
    return blocks


def duration(nanoseconds: float) -> str:
    """A change of time to three digits: "+12.4 ms", "-310 us", "0 us"."""
    size, unit = (1e6, "ms") if abs(nanoseconds) >= 1e5 else (1e3, "us")
    value = nanoseconds / size
    text = f"{value:+.0f}" if abs(value) >= 100 else f"{value:+.3g}"
    return f"{text} {unit}" if abs(nanoseconds) >= 1 else "0 us"


def share(value: float | None) -> str:
    """A share of the change as "61 %"; "-" where there is none."""
    return "-" if value is None else f"{round(100 * value) + 0:d} %"


def _together(attribution: Attribution) -> str:
    """The common change of most kernels; "" if there is none."""
    if attribution.shift is None or abs(attribution.shift) < MOVED:
        return ""
    moved = units.moved(attribution.shift)
    return f"most kernels changed by about {moved}: check clocks, power and GPU"


def notes(attribution: Attribution) -> list[str]:
    """Sentences that apply to many kernels, or to the tables compared."""
    texts = []
    if (together := _together(attribution)) and together not in sentence(attribution):
        texts.append(together)
    if attribution.odd_tables:
        tables = attribution.measured_tables + attribution.baseline_tables
        texts.append(f"{attribution.odd_tables} of {tables} executions launched different kernels")
    return texts


def code_lines(attribution: Attribution) -> list[tuple[str, str]]:
    """The lines of code that other launches come from than before, and which ones, worst first.

    As in "model.py:12 Net.forward (layers.0)" and "aten.mm 1 -> 2".
    """
    return [(_place(change), _what(change)) for change in attribution.lines]


def _place(change: LineChange) -> str:
    where = f"{change.line} {change.function}".strip() or "not your code"
    modules = _modules(change.modules)
    return f"{where} ({modules})" if modules else where


def _what(change: LineChange) -> str:
    moved = sorted(change.kernels, key=lambda one: (-abs(one[2] - one[1]), one[0]))
    said = [_counted(*count) for count in change.counts[:_COUNTS_NAMED]]
    said += [f"{before} -> {after}" for before, after in change.types]
    kernels = [f"{name} {before} -> {after}" for name, before, after in moved]
    said += [units.few(kernels, _NAMED, "others")] if kernels else []
    return ", ".join(said) or ("the same kernels" if change.change else "in another order")


def _of_operators(attribution: Attribution, width: int, most: int) -> list[str]:
    """The lines for operators on a CPU, which have no times.

    A single line that the sentence already names is left out: its counts are the step's.
    """
    cause, code = attribution.cause, attribution.lines
    if cause and cause.line and [one.line for one in code] == [cause.line]:
        return []
    said = [_indented([f"{at}: {what}"], width) for at, what in code_lines(attribution)]
    shown = table.fitting(said, most)
    if shown < len(said):
        said[shown:] = [[f"{table.INDENT}and {len(said) - shown} more lines of code"]]
    return [line for block in said for line in block]


def heading(attribution: Attribution) -> str:
    """The change of the kernels and the explained part, or "operators: 302 -> 448"."""
    of = "" if attribution.rank is None else f" of rank {attribution.rank}"
    if attribution.of_operators:
        before = sum(entry.launches_before for entry in attribution.entries)
        after = sum(entry.launches_after for entry in attribution.entries)
        return f"operators{of}: {before:,} -> {after:,} in a step"
    anything = any(entry.significant for entry in attribution.entries)
    follows = "largest changes:" if anything else "no kernel stands out from the noise"
    change = f"{duration(attribution.change)}{_relative(attribution.relative)}"
    step = attribution.step
    if step and not attribution.reliable:
        alone = f"{duration(step.change)}{_relative(step.relative)}"
        return f"kernels{of}: {change} in the trace, but {alone} untraced; {follows}"
    # Where faster and slower ones cancel, or the rest went the other way, a share says nothing.
    explained = attribution.explained
    if not anything or explained is None or not 0 <= explained <= _SENSIBLE:
        return f"kernels{of}: {change} in a step; {follows}"
    return f"kernels{of}: {change} in a step, {share(explained)} of it explained:"


def _relative(change: float | None) -> str:
    return "" if change is None else f" ({units.moved(change)})"


def _row(entries: Sequence[KernelChange], kernels: int = 0) -> ChangeRow:
    """A row of entries with one text; or of several small `kernels` of one family and kind."""
    first = entries[0]
    before, after = fsum(entry.before for entry in entries), fsum(entry.after for entry in entries)
    launches = sum(max(entry.launches_before, entry.launches_after) for entry in entries)
    shares = [entry.share for entry in entries if entry.share is not None]
    summed = f"{first.kind.value}: {kernels} kernels, {launches:,} launches"
    return ChangeRow(
        change=fsum(entry.change for entry in entries),
        share=fsum(shares) if shares else None,
        what=first.family if kernels else first.short,
        how=summed if kernels else _how(first, before, after, launches),
    )


def _how(first: KernelChange, before: float, after: float, launches: int) -> str:
    reason = f" ({first.cause.value})" if first.cause is not ChangeReason.UNKNOWN else ""
    counted = units.counted(launches, "launch")
    if first.kind is ChangeKind.GAP:
        return f"{units.value(before, 'ns')} -> {units.value(after, 'ns')}{reason}"
    if first.cause is ChangeReason.SHAPE:
        return f"launched in {first.cause.value}, {counted}"
    if first.kind is ChangeKind.REPLACED:
        return f"replaced {first.formerly}{reason}, {counted}"
    if first.kind in (ChangeKind.ADDED, ChangeKind.REMOVED):
        return f"{first.kind.value}{reason}, {counted}"
    relative = f" {units.moved(after / before - 1)}" if before else ""
    return f"{first.kind.value}{relative}{reason}, {counted}"
