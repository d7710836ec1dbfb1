"""The table of every text report: columns where they fit their width, stacked lines elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.errors import printable
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.result import Outcome, Verdict

HEADINGS = ("metric", "baseline", "measured", "change", "tolerance", "MDE", "verdict")
"""The headings of a table of verdicts."""
NOTHING = "-"
WIDTH = 96
"""The width of lines in messages, Markdown and annotations, which are not wrapped later."""
INDENT = "  "
GAP = "  "
_LEFT_OUT = "..."
TONES = {
    Outcome.REGRESSED: "bad",
    Outcome.BROKEN: "bad",
    Outcome.NO_BASELINE: "doubtful",
    Outcome.INCONCLUSIVE: "doubtful",
    Outcome.UNSUPPORTED: "doubtful",
    Outcome.KERNELS_CHANGED: "doubtful",
    Outcome.OUTWEIGHED: "doubtful",
    Outcome.IMPROVED: "good",
}
"""The tone of outcomes; the others are plain."""


@dataclass(frozen=True)
class Line:
    """One line of text and its tone: "" plain, or good, bad, doubtful, heading.

    It is always one printable line, whatever names it contains.
    """

    text: str
    tone: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", printable(self.text))


def _cells(verdict: Verdict, change: str) -> tuple[str, ...]:
    """A verdict as the cells of one row; `change` is how its change reads beside others."""
    compared = verdict.tolerance is not None and verdict.outcome is not Outcome.REPORTED
    return (
        verdict.metric,
        units.value(verdict.baseline, verdict.unit),
        units.value(verdict.measured, verdict.unit),
        change,
        units.tolerance(verdict) if compared else NOTHING,
        units.minimum_detectable_effect(verdict) if compared else NOTHING,
        units.outcome(verdict),
    )


def verdict_rows(verdicts: Sequence[Verdict]) -> list[tuple[str, ...]]:
    """The rows of verdicts in one table, in the order of HEADINGS, all changes in one form."""
    return list(map(_cells, verdicts, units.changes(verdicts)))


def is_zero(verdict: Verdict) -> bool:
    """Whether a whole step's count is zero, before and now, with no alarm."""
    none = verdict.measured == 0 and not verdict.baseline
    calm = (Outcome.UNCHANGED, Outcome.REPORTED, Outcome.NO_BASELINE)
    return none and verdict.phase == STEP and verdict.outcome in calm


def verdict_lines(verdicts: Sequence[Verdict], width: int) -> list[Line]:
    """The table of `verdicts`, each in the tone of its outcome, at most `width` characters wide.

    If the columns do not fit, the MDE is left out, then the tolerance: change and verdict matter
    more.
    """
    tones = [TONES.get(verdict.outcome, "") for verdict in verdicts]
    left, dispensable = (0, len(HEADINGS) - 1), [*map(HEADINGS.index, ("MDE", "tolerance"))]
    rows = verdict_rows(verdicts)
    return column_lines(HEADINGS, rows, width, left, dispensable=dispensable, tones=tones)


def column_lines(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int,
    left: Collection[int],
    *,
    below: str = INDENT * 3,
    dispensable: Sequence[int] = (),
    tones: Sequence[str] = (),
) -> list[Line]:
    """A table as lines of at most `width` characters; stacked if the columns do not fit.

    Before that, the columns `dispensable` are left out in turn, and a last column without a heading
    is wrapped below its row, indented by `below`. A row of one cell is a heading for the rows that
    follow. Columns of `left` are left-aligned. `tones` are those of the rows. Empty without rows.
    """
    if not rows:
        return []
    rows = [[printable(cell) for cell in row] for row in rows]
    widths, last = column_widths([headings, *rows]), len(headings) - 1
    hidden = [{*dispensable[:count]} for count in range(len(dispensable) + 1)]
    hidden += [] if headings[last] else [{last}]
    ways = ({i: size for i, size in widths.items() if i not in those} for those in hidden)
    columns = next((way for way in ways if _fits(way, width)), None)
    lines = [Line(aligned(headings, columns, left), "heading")] if columns else []
    shown = tones or ["heading" if len(row) == 1 else "" for row in rows]
    for row, tone in zip(rows, shown, strict=True):
        texts = [aligned(row, columns, left)] if columns else _stacked(headings, row, width)
        if columns and last not in columns and not headings[last]:
            texts += wrapped(row[last:], width, below)
        lines += [Line(text, tone) for text in texts]
    return lines


def column_widths(rows: Sequence[Sequence[str]]) -> dict[int, int]:
    """The widths of the columns of the first of these rows, by their positions."""
    return {i: max(len(row[i]) for row in rows if len(row) > i) for i in range(len(rows[0]))}


def _fits(widths: Mapping[int, int], width: int) -> bool:
    return len(INDENT) + sum(widths.values()) + len(GAP) * (len(widths) - 1) <= width


def aligned(
    row: Sequence[str], widths: Mapping[int, int], left: Collection[int], indent: str = INDENT
) -> str:
    """A row as one line: the cells that have a width, those of `left` left-aligned."""
    padded = (
        row[i].ljust(width) if i in left else row[i].rjust(width)
        for i, width in widths.items()
        if i < len(row)
    )
    return (indent + GAP.join(padded)).rstrip()


def _stacked(headings: Sequence[str], row: Sequence[str], width: int) -> list[str]:
    name = row[0].lstrip()
    indent = INDENT + " " * (len(row[0]) - len(name))
    named = [
        f"{heading} {cell}" if heading else cell
        for heading, cell in zip(headings[1:], row[1:], strict=False)
        if (cell != NOTHING if heading else cell)
    ]
    return [
        *wrapped([f"{name}:"], width, indent),
        *wrapped([", ".join(named)], width, indent + INDENT),
    ]


def wrapped(parts: Sequence[str], width: int, indent: str) -> list[str]:
    """`parts` joined by blanks, broken between parts (and inside one that is too long)."""
    from textwrap import TextWrapper

    room = max(width, len(indent) + 10)
    # A line feed between sentences becomes a blank; other unprintable characters do not.
    text = " ".join(" ".join(parts).splitlines())
    wrapper = TextWrapper(room, indent, indent, break_on_hyphens=False)
    shown = map(printable, wrapper.wrap(printable(text)))
    # A C++ name that is broken before "::" begins a line as a command does, and gets longer.
    return [
        part
        for line in shown
        for part in ([line] if len(line) <= room else wrapped([line.strip()], width, indent))
    ]


def wrapped_lines(text: str, width: int, tone: str = "", indent: str = "") -> list[Line]:
    """`text` as lines of at most `width`, all of one tone."""
    return [Line(part, tone) for part in wrapped([text], width, indent)]


def fitting(blocks: Sequence[Sequence[str]], room: int) -> int:
    """The number of blocks, from the first on, that `room` lines hold.

    If these are not all, a line is left for a word about the others.
    """
    totals = list(accumulate(map(len, blocks)))
    room -= bool(totals) and totals[-1] > room
    return sum(total <= room for total in totals)


def within(text: str, width: int) -> list[str]:
    """The lines of `text`, those that are wider wrapped; commands are whole, to be pasted."""
    lines = []
    for line in text.split("\n"):
        whole, said = len(line) <= width or is_command(line), line.lstrip(" ")
        lines += [line] if whole else wrapped([said], width, " " * (len(line) - len(said)))
    return lines


_COMMANDS = tuple(f"{INDENT}{word} " for word in ("gpuperf", "pytest", "torchrun", "for run in"))


def is_command(line: str) -> bool:
    """Whether the line is a command for the user, which stands in a line of its own."""
    return line.startswith(_COMMANDS)


def shortened(text: str, width: int) -> str:
    """`text` in at most `width` characters. A longer text loses its middle.

    Parameters at the end are kept whole if they fit, because they distinguish tests.
    """
    text = printable(text)
    if len(text) <= width:
        return text
    kept = max(width - len(_LEFT_OUT), 0)
    end, parameters = (2 * kept + 2) // 3, len(text) - text.find("[")
    end = max(end, parameters) if text.endswith("]") and parameters <= kept else end
    return (text[: kept - end] + _LEFT_OUT + text[len(text) - end :])[: max(width, 0)]
