"""How a round's passes are shared by GPUs: all of it once, and nobody has much more than others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.collector import Plan
from pytest_gpuperf.measure.pass_shares import PassShares, shares
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.model.metric import Metric
from pytest_gpuperf.storage import run_files
from tests import ROOT

ALL = tuple(m for m in catalogue().metrics.values() if m.hardware)


def one_each(metrics: Sequence[Metric]) -> int:
    return len(metrics)


def three_at_once(metrics: Sequence[Metric]) -> int:
    return math.ceil(len(metrics) / 3)


def test_ten_passes_take_three_rounds_of_four_gpus() -> None:
    made = shares(ALL[:10], ALL[:10], 4, one_each)
    assert [len(share) for share in made] == [3, 3, 3, 1]
    assert [m for share in made for m in share] == [*ALL[:10]]


def test_on_two_h100s_the_other_counted_what_the_first_counts_alone() -> None:
    """ConvNeXt's fused step, with the set `paper`: tests/data/h100-spread."""
    folder = ROOT / "tests" / "data" / "h100-spread"
    (alone,) = run_files.load(folder / "plain.json.xz").measurements
    (spread,) = run_files.load(folder / "spread.json.xz").measurements
    (peer,) = spread.peers
    assert peer.device.identity != spread.fingerprint.device.identity
    by_metric = {s.metric: median(s.values) for s in alone.samples if s.phase == STEP}
    theirs = {s.metric: median(s.values) for s in peer.samples if s.phase == STEP}
    assert len(theirs) == 38
    assert {s.metric for s in spread.samples} == {s.metric for s in alone.samples}
    assert [name for name, count in theirs.items() if count != by_metric[name]] == ["pipe_adu"]
    assert theirs["pipe_adu"] == pytest.approx(by_metric["pipe_adu"], rel=1e-4)
    passes = (one.fingerprint.settings["passes"] for one in (alone, spread))
    assert [*passes] == [16, 10]


def test_what_the_gpus_do_not_agree_on_stays_on_the_test_s_own() -> None:
    own, *others = shares(ALL[:6], ALL[4:6], 3, one_each)
    assert own == ALL[:4]
    assert others == [(ALL[4], ALL[5])]


def test_a_round_of_one_pass_is_not_shared() -> None:
    assert shares(ALL[:3], ALL[:3], 4, three_at_once) == (ALL[:3],)


@given(
    metrics=st.lists(st.sampled_from(ALL), min_size=1, unique_by=lambda m: m.name),
    gpus=st.integers(2, 8),
    moved=st.integers(0, 40),
    passes_of=st.sampled_from([one_each, three_at_once]),
)
def test_every_metric_is_counted_once_and_no_share_is_longer_than_it_must_be(
    metrics: list[Metric], gpus: int, moved: int, passes_of: object
) -> None:
    assert callable(passes_of)
    movable = metrics[:moved]
    own, *others = shares(metrics, movable, gpus, passes_of)
    assert sorted(m.name for share in (own, *others) for m in share) == sorted(
        m.name for m in metrics
    )
    fixed = [m for m in metrics if m not in movable]
    assert {m.name for m in fixed} <= {m.name for m in own}
    assert len(others) < gpus
    assert all(others)
    most = math.ceil(passes_of(metrics) / gpus)
    assert all(passes_of(share) <= most for share in others)
    assert passes_of(own) <= max(most, passes_of(fixed))


def test_where_nobody_can_say_how_many_passes_there_are_nothing_is_shared() -> None:
    class Uncounted:
        def passes(self, _: Sequence[Metric]) -> int:
            raise CountersUnavailable("the driver and CUPTI do not fit", "Install another")

        def measure(self, *_: object) -> tuple[str]:
            return ("times alone",)

    spread: Any = PassShares(cast("Any", None), ["GPU-b"], 60.0)
    plan = Plan(metrics=ALL[:4])
    assert spread.measure(Uncounted(), None, None, plan, ALL[:4]) == ("times alone",)
