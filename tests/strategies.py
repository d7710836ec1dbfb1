"""Hypothesis strategies for what the files hold: any text, any finite number."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model import entry
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.measurement import (
    Device,
    KernelTable,
    Launch,
    Measurement,
    Peer,
    Sample,
    Scalar,
    Unsupported,
)
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Attribution, Run, Verdict
from pytest_gpuperf.storage import baseline_files, files
from pytest_gpuperf.storage.run_files import SCHEMA
from tests import EVERY

Strategy = st.SearchStrategy[Any]

few = settings(max_examples=30)
"""For properties of much arithmetic, whose values hardly differ in kind."""
whole_files = settings(max_examples=200 if os.environ.get(EVERY) else 10)
"""For properties of files in which everything varies; most of it at night."""

_MISLEADING = (
    *("", "null", "true", "no", "~", "1", "1.0", "1e3", ".nan", "2026-03-01", "<<", "=", "- a"),
    *("a: b", "#c", "a #b", "'", '"', "\\", "a\nb\n", " a ", "\t", "\x85", "\u2028", "\ufeff"),
    *("\x7f", "test.py::test[1-a b]", "x" * 300, "many words " * 30, "[1, 2]", "{}", "&a", "*a"),
    *("!a", "%a"),
)
"""What YAML might read as something else, fold, or need to quote."""

texts = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(_MISLEADING)
numbers = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(2**60), 2**60).map(float),
    st.sampled_from([437_821_234.0, 0.1, 2.0**53, 2.0**53 + 2, 5e-324, 1.7976931348623157e308]),
)
scalars = st.one_of(
    texts,
    st.integers(-(2**62), 2**62),
    st.floats(-1e12, 1e12).map(lambda x: x + 0.5),
    st.booleans(),
)
metrics = st.sampled_from(list(catalogue().metrics))
counted = st.sampled_from([m.name for m in catalogue().metrics.values() if not m.percentage])
counts = numbers.map(abs).filter(bool)
"""What any of these can have been measured as."""
names = st.text(st.sampled_from("aZ9üé日-_+ ."), min_size=1, max_size=20).filter(
    lambda name: not files.name_problem(name)
)
rounds = st.lists(counts, min_size=1, max_size=6).map(tuple)
times = st.floats(0, 1e12)


# Anything that the types of a class allow, but for what they cannot say


def built(kind: Any, **own: Strategy) -> Strategy:
    """Objects of this dataclass: every field as its type has it, but for those of `own`."""
    return st.builds(kind, **{**_by_type(kind), **own})


@cache
def _by_type(kind: Any) -> dict[str, Strategy]:
    types = get_type_hints(kind)
    return {field.name: of(types[field.name]) for field in fields(kind)}


def of(kind: Any) -> Strategy:
    """Anything of this type."""
    parts = get_args(kind)
    if kind in _OF:
        return _OF[kind]
    if is_dataclass(kind):
        return built(kind)
    if get_origin(kind) is UnionType:
        return st.one_of(*map(of, parts))
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(of, parts), max_size=3)
    if get_origin(kind) is tuple:
        return several(of(parts[0])) if parts[-1] is Ellipsis else st.tuples(*map(of, parts))
    return st.sampled_from(kind)  # an Enum


def several(part: Strategy, most: int = 3) -> Strategy:
    """Up to so many of these."""
    return st.lists(part, max_size=most).map(tuple)


_OF: dict[Any, Strategy] = {
    str: texts,
    int: st.integers(0, 2**40),
    float: numbers,
    bool: st.booleans(),
    NoneType: st.none(),
    Scalar: scalars,
}
_OF[Device] = built(Device, arch=names, slug=names)
_OF[KernelTable] = st.deferred(lambda: tables)


@st.composite
def _tables(draw: st.DrawFn) -> KernelTable:
    """Tables whose launches are of their names, and have a value per metric or none."""
    names = draw(st.lists(texts, min_size=1, max_size=3).map(tuple))
    columns = draw(st.lists(metrics, max_size=2, unique=True).map(tuple))
    values = st.just(()) | st.tuples(*[st.none() | counts] * len(columns))
    launch = built(Launch, name=st.integers(0, len(names) - 1), duration=times, values=values)
    return KernelTable(names, columns, draw(several(launch, 4)), draw(times), draw(texts))


tables: Strategy = st.builds(
    lambda one, peers: replace(one, peers=peers), _tables(), several(_tables(), 2)
)


def _sign(metric: str) -> str:
    return "pt" if catalogue().metrics[metric].percentage else "%"


tolerances = st.dictionaries(
    metrics, st.floats(1e-3, 1e3).map(lambda share: f"{share:.6f}"), max_size=2
).map(lambda written: {name: f"{text}{_sign(name)}" for name, text in written.items()})
measurements = built(
    Measurement,
    suite=names,
    samples=st.lists(
        built(Sample, metric=counted, values=rounds),
        max_size=4,
        unique_by=lambda sample: (sample.phase, sample.metric),
    ).map(tuple),
    unsupported=several(built(Unsupported, metric=metrics), 2),
    kernels=st.none() | tables,
    window=st.none(),
    components=st.just(()),
    tolerance=tolerances,
    peers=several(
        built(
            Peer,
            samples=several(built(Sample, metric=counted, values=rounds), 2),
            collectives=several(st.dictionaries(texts, rounds, max_size=2), 2),
        ),
        2,
    ),
)
verdicts = built(Verdict).map(
    # Of a metric that we know, in its unit: anything else is refused when it is read.
    lambda said: replace(
        said,
        unit=catalogue().metrics[said.metric].unit
        if said.metric in catalogue().metrics
        else said.unit,
    )
)
attributions = built(Attribution)
run_files = built(
    Run,
    schema=st.just(SCHEMA),
    measurements=several(measurements),
    verdicts=several(verdicts),
    metric_units=st.just({}),
)


# Baselines


@st.composite
def _entries(draw: st.DrawFn) -> entry.Entry:
    """Entries whose values and places are of as many processes, and so their origins'."""
    sizes = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    day = st.sampled_from(["", "2026-03-01", "2026-03-02"])
    gpu = st.sampled_from(["", "838fbb58b5ce", "u"])

    def of_processes(count: int) -> dict[str, Strategy]:
        """A place for each process, and per metric the value of each or of all."""
        each = st.lists(counts, min_size=count, max_size=count).map(tuple)
        places = st.lists(st.tuples(gpu, day), min_size=count, max_size=count)
        return {
            "metrics": st.dictionaries(counted, counts | each, max_size=3),
            "where": places.map(lambda known: entry.places_text(*zip(*known, strict=True))),
            "zero": st.just(()) | st.just(("graph_breaks", "copies")),
        }

    read = st.lists(st.none() | st.floats(0, 1e9), min_size=sizes[0], max_size=sizes[0]).map(tuple)
    canaries = built(
        entry.CanarySeries,
        code=texts,
        readings=st.dictionaries(texts, read, min_size=1, max_size=2),
    )
    own, origins = map(of_processes, sizes)
    drawn: entry.Entry = draw(
        built(
            entry.Entry,
            **own,
            origin=st.none() | built(entry.Accepted, **origins),
            canary=st.none() | canaries,
            log=several(built(entry.Acceptance), 2),
        )
    )
    return drawn


entries = _entries()
_share = st.floats(0, 1)
baselines = built(
    entry.BaselineFile,
    schema=st.just(baseline_files.SCHEMA),
    arch=names,
    suite=names,
    tests=st.dictionaries(texts, st.dictionaries(texts, entries, max_size=2), max_size=2),
    tolerance=tolerances,
    calibration=st.none()
    | built(
        Calibration,
        classes=st.dictionaries(
            st.sampled_from([kind.value for kind in MetricClass]),
            st.builds(Spread, _share, _share, st.none() | _share, st.none() | _share),
        ),
    ),
)
