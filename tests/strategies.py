"""Hypothesis strategies for what the files hold: any text, any finite number."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue, timeline_metrics
from pytest_gpuperf.measure.trace import timelines
from pytest_gpuperf.model import entry, result
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.measurement import (
    Conditions,
    Device,
    Fingerprint,
    KernelTable,
    Launch,
    Measurement,
    Reading,
    Sample,
    Timeline,
    TimelinePhase,
    Unsupported,
)
from pytest_gpuperf.model.metric import MetricClass
from pytest_gpuperf.model.result import Attributed, Expectation, Outcome, Run, Verdict
from pytest_gpuperf.storage import baseline_files, kernel_files
from pytest_gpuperf.storage.run_files import SCHEMA

few = settings(max_examples=30)
"""For properties of much arithmetic, whose values hardly differ in kind."""

_MISLEADING = (
    *("", "null", "true", "no", "~", "1", "1.0", "1e3", ".nan", "2026-03-01", "<<", "=", "- a"),
    *(
        "a: b",
        "#c",
        "a #b",
        "'",
        '"',
        "\\",
        "a\nb\n",
        " a ",
        "\t",
        "\x85",
        "\u2028",
        "\ufeff",
        "\x7f",
    ),
    *(
        "test.py::test[1-a b]",
        "x" * 300,
        "many words " * 30,
        "[1, 2]",
        "{}",
        "&a",
        "*a",
        "!a",
        "%a",
    ),
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
mappings = st.dictionaries(texts, scalars, max_size=3)
versions = st.dictionaries(texts, texts, max_size=3)
rounds = st.lists(numbers, min_size=1, max_size=6).map(tuple)

devices = st.builds(Device, texts, texts, texts, texts)
whole = st.integers(0, 2**40)
readings = st.builds(
    Reading,
    *[st.none() | whole] * 3,
    st.none() | numbers,
    st.lists(texts, max_size=2).map(tuple),
    st.lists(whole, max_size=2).map(tuple),
)
fingerprints = st.builds(
    Fingerprint,
    devices,
    versions,
    mappings,
    texts,
    st.none() | st.builds(Conditions, readings, readings),
    texts,
)
samples = st.lists(
    st.builds(Sample, texts, metrics, rounds),
    max_size=4,
    unique_by=lambda sample: (sample.phase, sample.metric),
).map(tuple)
threes = st.none() | st.tuples(*[st.integers(1, 2**31)] * 3)
times = st.floats(0, 1e12)


@st.composite
def _tables(draw: st.DrawFn) -> KernelTable:
    """Tables whose launches are of their names, and have a value per metric or none."""
    names = draw(st.lists(texts, min_size=1, max_size=3).map(tuple))
    counted = draw(st.lists(metrics, max_size=2, unique=True).map(tuple))
    values = st.just(()) | st.tuples(*[st.none() | numbers] * len(counted))
    position = st.integers(0, len(names) - 1)
    launches = st.builds(Launch, position, texts, threes, threes, times, values)
    return KernelTable(
        names, counted, draw(st.lists(launches, max_size=4).map(tuple)), draw(times), draw(texts)
    )


tables = _tables()


@st.composite
def _timelines(draw: st.DrawFn) -> Timeline:
    """Timelines whose series are of one length, or of which there are none."""
    if not draw(st.booleans()):
        return timelines.absent(draw(texts))
    known = st.sampled_from([metric.name for metric in timeline_metrics()])
    length = draw(st.integers(1, 5))
    points = st.lists(st.none() | st.floats(0, 100), min_size=length, max_size=length).map(tuple)
    begun = draw(times)
    return Timeline(
        samples=draw(st.integers(1, 10**6)),
        sampling_interval=draw(st.floats(1, 1e9)),
        interval=draw(st.floats(1, 1e9)),
        begin=draw(numbers),
        duration=draw(times),
        series=draw(st.dictionaries(known, points, max_size=3)),
        phases=(TimelinePhase(draw(texts), begun, begun + draw(times)),),
        unsupported=draw(st.lists(st.builds(Unsupported, known, texts), max_size=1).map(tuple)),
    )


measurements = st.builds(
    Measurement,
    *[texts] * 5,
    mappings,
    samples,
    st.lists(st.builds(Unsupported, metrics, texts), max_size=2).map(tuple),
    fingerprints,
    st.none() | tables,
    st.none(),
    st.none() | _timelines(),
)
verdicts = st.builds(
    Verdict,
    *[texts] * 5,
    st.sampled_from(Outcome),
    texts,
    *[st.none() | numbers] * 3,
    st.booleans(),
    *[st.none() | numbers] * 3,
    texts,
    st.none() | numbers,
    st.integers(1, 100),
)
expectations = st.builds(
    Expectation,
    *[texts] * 4,
    *[st.none() | numbers] * 2,
    st.sampled_from(Outcome),
    texts,
    *[st.none() | numbers] * 3,
    st.integers(1, 100),
    st.booleans(),
    texts,
)
_changes = st.none() | numbers
_counted = st.none() | st.builds(result.CountChange, numbers, numbers)
_shapes = st.lists(st.integers(1, 2**31), max_size=3).map(tuple)
_launches = st.integers(0, 5000)
attributions = st.builds(
    result.Attribution,
    *[numbers] * 3,
    *[_changes] * 3,
    st.builds(result.LaunchCounts, st.booleans(), *[_launches] * 4),
    st.lists(
        st.builds(
            result.KernelChange,
            *(st.sampled_from(result.ChangeKind), st.sampled_from(result.Cause)),
            texts,
            *[st.none() | whole] * 2,
            *[texts] * 2,
            *[_shapes] * 2,
            *[_launches] * 2,
            *[numbers] * 3,
            *[_changes] * 2,
            *[_counted] * 2,
            *[_changes] * 2,
            st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    st.lists(
        st.builds(
            result.FamilyChange,
            texts,
            *[_launches] * 2,
            *[numbers] * 3,
            *[_changes] * 2,
            *[_counted] * 2,
        ),
        max_size=2,
    ).map(tuple),
    st.lists(texts, max_size=3).map(tuple),
    *[st.integers(0, 9)] * 3,
)
run_files = st.builds(
    Run,
    st.just(SCHEMA),
    texts,
    texts,
    st.lists(measurements, max_size=3).map(tuple),
    st.lists(verdicts, max_size=3).map(tuple),
    st.lists(expectations, max_size=2).map(tuple),
    st.lists(st.builds(Attributed, texts, texts, attributions), max_size=2).map(tuple),
)


def _per_process(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    """A text for each of so many processes, or none at all, as for gpus and days."""
    return st.just(()) | st.lists(texts, min_size=count, max_size=count).map(tuple)


def _series(count: int) -> st.SearchStrategy[dict[str, entry.Processes]]:
    """Per metric the rounds of so many processes."""
    return st.dictionaries(
        metrics, st.lists(rounds, min_size=count, max_size=count).map(tuple), max_size=3
    )


def _anchors(count: int) -> st.SearchStrategy[entry.Anchor]:
    return st.builds(
        entry.Anchor, texts, texts, _series(count), _per_process(count), _per_process(count)
    )


def _entries(count: int) -> st.SearchStrategy[entry.Entry]:
    return st.builds(
        entry.Entry,
        texts,
        texts,
        mappings,
        versions,
        mappings,
        texts,
        st.dictionaries(texts, _series(count), max_size=2),
        _per_process(count),
        _per_process(count),
        st.none() | processes.flatmap(_anchors),
        st.none() | tables.map(kernel_files.listed),
    )


processes = st.integers(1, 5)
entries = processes.flatmap(_entries)
acceptances = st.builds(
    entry.Acceptance,
    *[texts] * 5,
    st.integers(1, 100),
    st.dictionaries(
        metrics,
        st.builds(entry.Change, st.none() | numbers, st.none() | numbers),
        max_size=2,
    ),
    st.lists(texts, max_size=3).map(tuple),
)
tolerances = st.dictionaries(
    metrics, st.floats(1e-3, 1e3).map(lambda share: f"{share:.6f}"), max_size=2
).map(lambda written: {name: f"{text}{_sign(name)}" for name, text in written.items()})
spreads = st.floats(0, 1)
calibrations = st.builds(
    Calibration,
    texts,
    *[st.integers(1, 1000)] * 3,
    *[st.integers(0, 10_000)] * 2,
    st.dictionaries(
        st.sampled_from([metric_class.value for metric_class in MetricClass]),
        st.builds(Spread, spreads, spreads, st.none() | spreads, st.none() | spreads),
    ),
)
baselines = st.builds(
    entry.BaselineFile,
    st.just(baseline_files.SCHEMA),
    texts,
    texts,
    texts,
    st.dictionaries(texts, st.dictionaries(texts, entries, max_size=2), max_size=2),
    st.lists(acceptances, max_size=2).map(tuple),
    tolerance=tolerances,
    calibration=st.none() | calibrations,
)


def _sign(metric: str) -> str:
    return "pt" if catalogue().metrics[metric].percentage else "%"
