"""Architectures: their names, their order, and the patterns that name several."""

from __future__ import annotations

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import UsageFailure


def test_a_pattern_matches_by_number_from_there_on() -> None:
    for pattern, matching, others in (
        ("sm80", ["sm80"], ["sm86"]),
        ("sm80+", ["sm80", "sm90"], ["sm75"]),
        ("sm90+", ["sm100"], []),  # by number, not by letter
        ("sm100+", ["sm121"], ["sm90"]),  # also a GPU newer than this package
        ("sm70+", [], ["cpu"]),
        ("cpu", ["cpu"], ["sm90"]),
        ("cpu+", ["cpu"], ["sm90"]),
    ):
        for name in (*matching, *others):
            assert architectures.matches(pattern, name) is (name in matching), (pattern, name)


def test_an_unknown_name_is_a_usage_failure_that_suggests_and_lists() -> None:
    for word, suggested in (
        *(("SM_90", "sm90"), ("90", "sm90"), ("CPU", "cpu")),
        *(("gpu", ""), ("h100", ""), ("hm100", "")),
    ):
        with pytest.raises(UsageFailure) as failure:
            architectures.validate(word)
        said = str(failure.value)
        assert (f'Did you mean "{suggested}"?' if suggested else '". gpuperf knows') in said, word
        assert all(name in said for name in architectures.ARCHITECTURES)
        assert "sm80 (A100, A30), " in said


def test_a_pattern_that_names_nothing_is_a_usage_failure() -> None:
    with pytest.raises(UsageFailure, match='unknown architecture "hopper"'):
        architectures.matches("hopper+", "sm90")


def test_slug() -> None:
    for name, slug in (
        ("NVIDIA H200", "nvidia-h200"),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "nvidia-a100-sxm4-40gb-mig-1g-5gb"),
        (" Quadro  RTX (8000) ", "quadro-rtx-8000"),
    ):
        assert architectures.slug(name) == slug
