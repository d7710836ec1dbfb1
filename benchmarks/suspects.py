"""Whether attribution names the cause of a loss: from kernel tables to "found" or not.

A folder of tables is what `causes.py` saves, one file per table, named for what was measured:

    clean-tf32.json.xz    the step as it is, before any loss was put in
    none-tf32.json.xz     the same, after all of them were taken out again
    conv-twice.json.xz    with this loss
    results.json          what was measured where, what failed, and what came out of it

A cause is found when one of the `TOP` kernels whose time changed most, either way, is of the kind,
the family and the name that its loss says (losses.py). Launches of one kernel that the same thing
happened to are one, as they are one row under a failing test.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.losses import CAUSES, Guilty, Loss
from pytest_gpuperf.catalogue.kernel_families import family, short_name
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.model.measurement import KernelTable, Scalar
from pytest_gpuperf.model.result import Attribution, Cause, ChangeKind, KernelChange
from pytest_gpuperf.report.text import kernel_lines as report
from pytest_gpuperf.report.text.kernel_lines import ChangeRow
from pytest_gpuperf.storage import files

TOP = 3
"""Kernels that are looked at, by the size of their change."""
SCREEN = 80
"""Characters of a line under a failing test."""
NONE = "none"
"""The row of a step without a loss."""
RESULTS = "results.json"
_TABLE = ".json.xz"
_REMEDY = "Measure again, or give another folder; nothing was changed"
_NAMING = Naming(family, short_name)


@dataclass(frozen=True)
class Suspect:
    """Launches of one kernel that one thing happened to, or the gap."""

    kind: ChangeKind
    family: str
    row: ChangeRow
    """As it stands under a failing test."""


@dataclass(frozen=True)
class Result:
    """What attribution says of one step, against the clean one of its configuration."""

    name: str
    """The loss's, or "none"."""
    configuration: str
    expected: str
    change: float = 0.0
    """Of the step, nanoseconds in all."""
    relative: float | None = None
    suspects: tuple[Suspect, ...] = ()
    """Those that were looked at, the largest change first."""
    rank: int | None = None
    """The guilty one's place among them, from 1 on; None where it is not there."""
    shown: bool = False
    """Whether the guilty one's name is in the lines under a failing test."""
    same_launches: bool = False
    """The loss changed nothing in what was launched: some have to."""
    error: str = ""
    """Why there is nothing to compare."""

    @property
    def as_expected(self) -> bool:
        """Whether the cause was found; for a step without a loss, that there is none."""
        if self.name == NONE:
            return not self.error and not self.suspects
        return self.rank is not None


@dataclass(frozen=True)
class Recorded:
    """What was measured in one process."""

    tables: Mapping[str, KernelTable]
    """By name, as the files are named."""
    about: Mapping[str, Scalar] = field(default_factory=dict)
    """The device, versions of the software, the volume."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """What was not measured, and why."""


@dataclass(frozen=True)
class Summary:
    """The content of `results.json`."""

    about: dict[str, Scalar]
    errors: dict[str, str]
    results: tuple[Result, ...]
    """For people: they are made again from the tables where they are needed."""


def clean(configuration: str) -> str:
    """The name of the clean table of a configuration."""
    return f"clean-{configuration}"


def again(configuration: str) -> str:
    """The name of its second clean table."""
    return f"{NONE}-{configuration}"


def results(recorded: Recorded) -> list[Result]:
    """A result for every loss that was measured or failed, then for the steps without one."""
    measured = {*recorded.tables, *recorded.errors}
    chosen = [loss for loss in CAUSES if loss.name in measured]
    configurations = dict.fromkeys(loss.configuration for loss in CAUSES)
    plain = [c for c in configurations if again(c) in measured]
    return [_of_loss(loss, recorded) for loss in chosen] + [_of_none(c, recorded) for c in plain]


def _of_loss(loss: Loss, recorded: Recorded) -> Result:
    assert loss.guilty, loss.name
    expected = loss.guilty.text
    attribution = _compared(loss.name, loss.configuration, recorded)
    if isinstance(attribution, str):
        return Result(loss.name, loss.configuration, expected, error=attribution)
    top = suspects(attribution)[:TOP]
    rank = next((n for n, one in enumerate(top, 1) if names(loss.guilty, one)), None)
    screen = " ".join(" ".join(report.lines(attribution, SCREEN)).split())
    return Result(
        loss.name,
        loss.configuration,
        expected,
        attribution.change,
        attribution.relative,
        tuple(top),
        rank,
        shown=rank is not None and top[rank - 1].row.what in screen,
        same_launches=not attribution.launched.changed,
    )


def _of_none(configuration: str, recorded: Recorded) -> Result:
    expected = "nothing"
    attribution = _compared(again(configuration), configuration, recorded)
    if isinstance(attribution, str):
        return Result(NONE, configuration, expected, error=attribution)
    return Result(
        NONE,
        configuration,
        expected,
        attribution.change,
        attribution.relative,
        tuple(suspects(attribution)[:TOP]),
        same_launches=not attribution.launched.changed,
    )


def _compared(name: str, configuration: str, recorded: Recorded) -> Attribution | str:
    """The attribution of this table against its clean one, or why there is none."""
    for needed in (name, clean(configuration)):
        if needed not in recorded.tables:
            reason = recorded.errors.get(needed, "not measured")
            return reason if needed == name else f"the clean step: {reason}"
    return attribute(recorded.tables[name], recorded.tables[clean(configuration)], _NAMING)


def suspects(attribution: Attribution) -> list[Suspect]:
    """All that stands out of the noise, the largest change first."""
    alike: dict[tuple[ChangeKind, Cause, str, str, str], list[KernelChange]] = {}
    for entry in attribution.entries:
        if entry.significant:
            key = (entry.kind, entry.cause, entry.short, entry.formerly, entry.family)
            alike.setdefault(key, []).append(entry)
    each = [
        Suspect(kind, family, row)
        for (kind, _, _, _, family), entries in alike.items()
        for row in report.rows(entries, small=0)
    ]
    return sorted(each, key=lambda one: -abs(one.row.change))


def names(guilty: Guilty, one: Suspect) -> bool:
    """Whether this is what had to be named."""
    return (
        one.kind in guilty.kinds
        and one.family in guilty.families
        and re.search(guilty.kernel, one.row.what) is not None
        and (one.row.change > 0 or not guilty.slower)
    )


def save_table(folder: Path, name: str, table: KernelTable) -> None:
    """Writes one table. Raises UsageFailure where that is impossible."""
    content = lzma.compress(files.to_json(table).encode())
    files.write_atomically(folder / f"{name}{_TABLE}", content)


def save(folder: Path, recorded: Recorded) -> None:
    """Writes the results of what was measured, beside its tables."""
    summary = Summary(dict(recorded.about), dict(recorded.errors), tuple(results(recorded)))
    text = json.dumps(files.to_plain(summary), indent=1, ensure_ascii=False) + "\n"
    files.write_atomically(folder / RESULTS, text)


def load(folder: Path) -> Recorded:
    """What was saved in `folder`. Raises UsageFailure, or BadFile for a file that is damaged."""
    tables = dict(_tables(folder))
    if not tables:
        raise UsageFailure(
            f"{folder}: no kernel tables (*{_TABLE}) there. Measure some with "
            f"`python -m benchmarks.causes --out {folder}`, on a GPU"
        )
    file = folder / RESULTS
    if not file.exists():  # the process that measured them did not end
        return Recorded(tables)
    summary = _read(file, Summary)
    return Recorded(tables, summary.about, summary.errors)


def _tables(folder: Path) -> Iterator[tuple[str, KernelTable]]:
    for file in sorted(folder.glob(f"*{_TABLE}")):
        yield file.name.removesuffix(_TABLE), _read(file, KernelTable)


def _read(file: Path, expected: type[files.T]) -> files.T:
    from pydantic import ValidationError

    try:
        content = file.read_bytes()
        text = lzma.decompress(content) if file.name.endswith(_TABLE) else content
        return files.adapter(expected).validate_json(text)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    except (lzma.LZMAError, EOFError) as error:
        raise BadFile(file, "", f"not a whole compressed file ({error})", _REMEDY) from None
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        entry = "/".join(map(str, problem["loc"]))
        raise BadFile(file, entry, problem["msg"], _REMEDY) from None


def missed(measured: Sequence[Result]) -> list[Result]:
    """Those in which attribution does not say what it should."""
    return [result for result in measured if not result.as_expected]
