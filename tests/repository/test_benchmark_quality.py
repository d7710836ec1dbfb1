"""What the quality gates of a session found: read from JUnit XML, kept, and shown as a table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from benchmarks.quality import RECORDED, main, recorded, save, table
from pytest_gpuperf.errors import UsageFailure
from suites.meddpm.limits import LIMITS, Errors, Similarity
from suites.meddpm.optimizations import ALONE, OPTIMIZATIONS, composed
from tests import ROOT

COMMITTED = ROOT / "docs" / "runs" / "meddpm-quality.json"

ERRORS = asdict(Errors(6.376e-8, 2.5833e-6, 4.0632e-6, 9.2729e-6, "middle.weight"))
ALIKE = asdict(Similarity(0.9999999446331929, 0.9999999628580785, 3))


def case(name: str, properties: Mapping[str, object] | None = None, inside: str = "") -> str:
    """A test as pytest writes it; `inside` is what it says of one that did not pass."""
    listed = "".join(
        f'<property name="{key}" value={quoteattr(str(value))} />'
        for key, value in (properties or {}).items()
    )
    known = f"<properties>{listed}</properties>" if listed else ""
    return f'<testcase classname="a.test_a" name="{name}" time="1">{known}{inside}</testcase>'


def junit(folder: Path, *cases: str) -> Path:
    """A session's file."""
    file = folder / "quality.xml"
    text = f'<testsuites><testsuite name="pytest">{"".join(cases)}</testsuite></testsuites>'
    file.write_text(f'<?xml version="1.0" encoding="utf-8"?>{text}', encoding="utf-8")
    return file


# What a session found.


def test_properties_of_all_three_tests_are_one_configurations(tmp_path: Path) -> None:
    file = junit(
        tmp_path,
        case("test_samples_look_alike[tf32]", ALIKE),
        case("test_loss_curve[tf32]", {"curve": 0.0078}),
        case("test_errors_against_float64[tf32]", ERRORS),
    )
    quality = recorded(file)
    assert quality == {"tf32": {**ERRORS, "curve": 0.0078, **ALIKE}}
    assert [*quality["tf32"]] == [*ERRORS, "curve", *ALIKE]
    assert type(quality["tf32"]["scales"]) is int


def test_configurations_are_in_the_suites_order_then_parts_alone_then_others(
    tmp_path: Path,
) -> None:
    names = ["tf32+sdpa+fused_adam", *ALONE[::-1], *list(OPTIMIZATIONS)[::-1], "bf16+sdpa"]
    cases = [case(f"test_errors_against_float64[{name}]", ERRORS) for name in names]
    assert [*recorded(junit(tmp_path, *cases))] == [
        *OPTIMIZATIONS,
        *ALONE,
        "tf32+sdpa+fused_adam",
        "bf16+sdpa",
    ]


def test_a_test_that_failed_has_recorded_what_it_found(tmp_path: Path) -> None:
    failed = case("test_loss_curve[best]", {"curve": "nan"}, '<failure message="Failed" />')
    assert recorded(junit(tmp_path, failed))["best"]["curve"] == pytest.approx(
        math.nan, nan_ok=True
    )


def test_tests_without_what_the_gates_record_are_ignored(tmp_path: Path) -> None:
    file = junit(
        tmp_path,
        case("test_loss_curve[best]", inside='<skipped message="no sm90" />'),
        case("test_loss_curve[tf32]", {"gpuperf.device": "NVIDIA H200", "loss": 1.0}),
        case("test_errors_catch_a_fault[wrong_epsilon-names0-the output]", {"loss": 1.0}),
        case("test_plain", {"curve": 1.0}),
        case("test_loss_curve[bf16]", {"curve": 0.025}),
    )
    assert recorded(file) == {"bf16": {"curve": 0.025}}


def test_a_file_of_pytest_itself(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # its pytest is not our worker's
    pytester.makepyfile(
        f"""
        import pytest

        @pytest.mark.parametrize("configuration", ["tf32+fused_norm", "baseline"])
        def test_errors_against_float64(record_property, configuration):
            for name, value in {ERRORS}.items():
                record_property(name, value)
            assert configuration == "baseline"

        @pytest.mark.parametrize("configuration", ["baseline", "best"])
        def test_samples_look_alike(record_property, configuration):
            if configuration == "best":
                pytest.skip("not here")
            for name, value in {ALIKE}.items():
                record_property(name, value)
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:gpuperf", "--junit-xml=quality.xml")
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    quality = recorded(pytester.path / "quality.xml")
    assert quality == {"baseline": {**ERRORS, **ALIKE}, "tf32+fused_norm": ERRORS}
    assert [*quality] == ["baseline", "tf32+fused_norm"]


def test_the_suites_tests_are_those_that_are_read() -> None:
    suite = (ROOT / "suites" / "meddpm" / "test_quality.py").read_text(encoding="utf-8")
    assert set(re.findall(r"^def (test_\w+)\(", suite, re.MULTILINE)) == set(RECORDED)
    errors, curve, alike = RECORDED.values()
    assert [*errors] == [field.name for field in fields(Errors)]
    assert [*alike] == [field.name for field in fields(Similarity)]
    assert [*curve] == re.findall(r'append\(\("(\w+)"', suite)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"\x1f\x8b\xff", b"<testsuites><testsuite>", b"<html><body /></html>"],
    ids=["empty", "JSON", "bytes", "cut off", "another XML"],
)
def test_a_file_that_is_no_junit_xml_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "quality.xml"
    file.write_bytes(content)
    with pytest.raises(UsageFailure, match="this is no JUnit XML") as refused:
        recorded(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert f"pytest suites/meddpm/test_quality.py --junit-xml {file}" in str(refused.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageFailure, match=r"quality\.xml: cannot be read \(No such file"):
        recorded(tmp_path / "quality.xml")


# What is kept of it.


def test_three_digits_are_kept_and_of_similarity_what_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    save({"tf32": {**ERRORS, "curve": 0.0078241, **ALIKE}, "sdpa": ERRORS}, file)
    errors = {
        "loss": 6.38e-8,
        "output": 2.58e-6,
        "gradients": 4.06e-6,
        "weight": 9.27e-6,
        "worst": "middle.weight",
    }
    text = file.read_text(encoding="utf-8")
    assert json.loads(text) == {
        "tf32": {**errors, "curve": 0.00782, "scales": 3, "dissimilarity": 5.54e-8},
        "sdpa": errors,
    }
    assert text.startswith('{\n "tf32": {\n  "loss": 6.38e-08,')
    assert text.endswith("}\n")


@pytest.mark.parametrize(
    ("ssim", "ms_ssim", "expected"), [(1.0, 1.0, 0.0), (1.0, 0.75, 0.25), (0.5, 0.75, 0.5)]
)
def test_the_lower_similarity_counts(
    ssim: float, ms_ssim: float, expected: float, tmp_path: Path
) -> None:
    save({"best": asdict(Similarity(ssim, ms_ssim, 1))}, tmp_path / "quality.json")
    kept = json.loads((tmp_path / "quality.json").read_bytes())
    assert kept == {"best": {"scales": 1, "dissimilarity": expected}}


def test_the_command_keeps_a_session_and_prints_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    xml, file = junit(tmp_path, case("test_loss_curve[bf16]", {"curve": 0.025})), tmp_path / "kept"
    assert main([str(xml), str(file)]) == 0
    assert json.loads(file.read_bytes()) == {"bf16": {"curve": 0.025}}
    assert capsys.readouterr().out == table(file)


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ("<", "this is no JUnit XML"),
        (case("test_loss_curve[best]", inside="<skipped />"), "no quality gate recorded anything"),
    ],
    ids=["no XML", "all skipped"],
)
def test_the_command_leaves_the_kept_file_alone_where_there_is_nothing_to_keep(
    cases: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "kept"
    file.write_text("before", encoding="utf-8")
    assert main([str(junit(tmp_path, cases)), str(file)]) == 4
    assert said in capsys.readouterr().err
    assert file.read_text(encoding="utf-8") == "before"


# The table.


def test_a_row_has_the_precision_and_two_digits_of_everything(tmp_path: Path) -> None:
    file = tmp_path / "quality.json"
    kept = {
        "tf32": {**ERRORS, "curve": 0.0316, "scales": 3, "dissimilarity": 0.0},
        "baseline": {"loss": 1.26, "output": 10.0, "gradients": float("nan"), "weight": 9.96e-4},
        "bf16+sdpa": {"curve": 1e-12, "dissimilarity": 6.82e-6},
    }
    file.write_text(json.dumps(kept), encoding="utf-8")
    assert table(file).splitlines() == [
        "| configuration | precision | loss | output | gradients | of one weight | loss curve "
        "| 1 - SSIM |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| `tf32` | tf32 | 6.4e-8 | 2.6e-6 | 4.1e-6 | 9.3e-6 | 3.2e-2 | 0 |",
        "| `baseline` | ieee | 1.3e0 | 1.0e1 | nan | 1.0e-3 | - | - |",
        "| `bf16+sdpa` | bf16 | - | - | - | - | 1.0e-12 | 6.8e-6 |",
    ]


# What an H200 found.


@pytest.fixture(scope="module")
def committed() -> dict[str, dict[str, float]]:
    """The file that the documentation's table is made of."""
    kept: dict[str, dict[str, float]] = json.loads(COMMITTED.read_bytes())
    return kept


LIMITED = ("loss", "output", "gradients", "weight", "curve", "dissimilarity")


def test_on_an_h200_every_gate_of_every_configuration_ran(
    committed: dict[str, dict[str, float]],
) -> None:
    assert [*committed] == [*OPTIMIZATIONS, *ALONE]
    assert {name for name, kept in committed.items() if {*LIMITED} <= {*kept}} == {*OPTIMIZATIONS}
    assert all({*LIMITED[:4]} <= {*committed[name]} for name in ALONE)


def test_on_an_h200_everything_is_within_the_limits_of_its_precision(
    committed: dict[str, dict[str, float]],
) -> None:
    beyond = {
        (name, what): kept[what]
        for name, kept in committed.items()
        for what in LIMITED
        if what in kept and not kept[what] <= getattr(LIMITS[composed(name).precision], what)
    }
    assert beyond == {}
