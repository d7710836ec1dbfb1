"""The raw page of ncu as CSV: what its cells, numbers and units say, and what is refused."""

from __future__ import annotations

import csv
import io
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.measure.ncu import profiled_step, report_reader
from tests.corruption import refusal, unreadable
from tests.measure.ncu_pages import COLUMNS, DATA, KERNEL, KERNELS, LONGER, page, written

STEP = Path("step.csv")


def refused(content: str | bytes) -> str:
    """Why this page is refused."""
    encoded = content.encode() if isinstance(content, str) else content
    with pytest.raises(BadFile) as caught:
        profiled_step.report_of(report_reader.parse_page(encoded, STEP))
    assert str(caught.value).startswith(str(STEP))
    return str(caught.value)


def test_what_was_printed_around_the_page_is_skipped(tmp_path: Path) -> None:
    notices = (DATA / "kernel.txt").read_text(encoding="utf-8")
    lines = KERNELS.read_text(encoding="utf-8").splitlines(keepends=True)
    between = [*lines[:3], "==WARNING== one, two\n", "\n", *lines[3:]]
    text = "\ufeff" + 'epoch "1\n' + notices + "".join(between) + "\n==PROF== Disconnected\n"
    read = profiled_step.read(written(tmp_path, text.replace("\n", "\r\n")))
    expected = profiled_step.read(KERNELS)
    assert [row.values for row in read.rows] == [row.values for row in expected.rows]


def test_the_made_up_page_has_the_form_of_the_real_one() -> None:
    real = next(csv.reader(io.StringIO(KERNELS.read_text(encoding="utf-8"))))
    identity = [name for name in COLUMNS if "__" not in name]
    assert [name for name in real if name in identity] == identity


# Numbers and units


@settings(max_examples=30)
@given(st.integers(0, 10**15), st.floats(0, 1e12))
def test_numbers_are_read_with_and_without_separators(whole: int, fraction: float) -> None:
    assert report_reader.number(f"{whole:,}") == report_reader.number(str(whole)) == whole
    assert report_reader.number(f"{fraction:,.2f}") == float(f"{fraction:.2f}")
    assert report_reader.number(repr(fraction)) == fraction


def test_a_cell_may_have_no_value() -> None:
    assert {report_reader.number(text) for text in ("", "n/a", "(!) n/a", "nan", "-nan")} == {None}


@settings(max_examples=30)
@given(st.text("0123456789.,+-eE_ na/()\u00a0\u0663\u00b2x"))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    with suppress(ValueError):
        value = report_reader.number(text)
        assert value is None or value >= 0


def test_other_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="beyond all floats"):
        report_reader.number("1e999")
    for text in ("-5", "1.980.000", "1 980", "1,98", "12,34,567", ",5", "inf", "7 (1; 2)", "x"):
        with pytest.raises(ValueError, match="not a number"):
            report_reader.number(text)


def test_units() -> None:
    known: dict[str, dict[str, float | None]] = {
        "ns": {"ns": 1.0, "nsecond": 1.0, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6},
        "bytes": {"byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "KiB": None},
        "%": {"%": 1.0, "": None},
        "cycles": {"cycle": 1.0},
        "instructions": {"inst": 1.0},
        "instructions/cycle": {"inst/cycle": 1.0},
        "thread instructions": {"inst": 1.0, "Ginst": 1e9},
        "FLOP": {"": 1.0, "op": 1.0, "math_op": 1.0, "inst": 1.0, "Tmath_op": 1e12, "byte": None},
    }
    for unit, factors in known.items():
        assert {text: report_reader.factor(unit, text) for text in factors} == factors
    assert {report_reader.factor("ns", text) for text in ("s", "second")} == {1e9}
    assert {report_reader.factor("FLOP", text) for text in ("T", "Top")} == {1e12}
    assert {report_reader.factor(*wrong) for wrong in (("ns", "byte"), ("bytes", "kbyte"))} == {
        None
    }


# Files that cannot be trusted


def test_the_cell_that_cannot_be_read_is_named() -> None:
    for kernel, said in (
        ({"sm__cycles_elapsed.max": "5.000,0"}, 'line 3 column sm__cycles_elapsed.max: "5.000,0"'),
        ({"sm__cycles_elapsed.max": "-5"}, 'line 3 column sm__cycles_elapsed.max: "-5"'),
        ({"CC": "nine"}, 'line 3: "nine" is no compute capability'),
        ({"CC": "5.2"}, "line 3: sm52 (compute capability 5.2) is not"),
        ({"CC": ""}, 'line 3: "." is no compute capability'),
        ({"Grid Size": "8 x 8"}, 'line 3 column Grid Size: "8 x 8" is not the size of a grid'),
        ({"Block Size": "(1.5, 1, 1)"}, "line 3 column Block Size"),
    ):
        assert said in refused(page({**KERNEL, **kernel}))
    said = refused(page(KERNEL, units={**COLUMNS, "gpu__time_duration.sum": "hour"}))
    assert 'line 2 column gpu__time_duration.sum: the unit "hour" is not known for ns' in said
    # Lines are those of the file.
    wrong = {**KERNEL, "sm__cycles_elapsed.max": "?"}
    text = "==PROF== one\n==PROF== two\n" + page({**KERNEL, "Kernel Name": "a\nb"}, wrong)
    assert "line 7 column sm__cycles_elapsed.max" in refused(text)


def test_what_is_no_page_is_refused_with_the_place() -> None:
    for text, said in (
        ("", "no raw page of ncu"),
        ("a,b,c\n1,2,3\n", "no raw page of ncu"),
        (page(), "has no kernel"),
        (page().splitlines()[0], "ends after its header"),
        (page(KERNEL).replace("\n", "\n0,", 1), "cells where the header has"),
        (page(KERNEL).replace('"', "", 1), "no raw page of ncu"),
        (page(KERNEL)[:-20], "not CSV"),
        (page(KERNEL) + page(KERNEL).splitlines()[2][:80] + '"\n', "may be cut off"),
        (page(KERNEL) + "Traceback (most recent call last)\n", "line 4: 1 cells where"),
        (page(KERNEL).replace('"Device"', '"Stream"'), 'line 1: the column "Stream" is there twic'),
        ("\n".join(page(KERNEL, KERNEL).splitlines()[::2]), "line 2: expected the row of units"),
        ('"ID","Process ID","Metric Name","Metric Value"\n', "line 1: this is ncu's details page"),
        # ncu itself may have said why there is no page.
        (
            (DATA / "bad-none.txt").read_text(encoding="utf-8"),
            "no CSV but an error of ncu: no kernel was profiled",
        ),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff", "not UTF-8 text"),
    ):
        assert said in refused(text)


def test_a_refused_file_is_left_as_it_is(tmp_path: Path) -> None:
    assert "has no kernel" in refusal(profiled_step.read, written(tmp_path, page()), BadFile)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for name in ("step.csv", "step.ncu-rep"):
        with pytest.raises(UsageFailure, match="no such file"):
            profiled_step.read(tmp_path / name)
    with pytest.raises(UsageFailure, match="cannot be read"):
        profiled_step.read(tmp_path)


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = written(tmp_path, page(KERNEL))
    with unreadable(file), pytest.raises(UsageFailure, match="cannot be read"):
        profiled_step.read(file)


@settings(max_examples=40)
@given(st.data())
def test_a_damaged_page_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(page(KERNEL, LONGER).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=3))
    # Nothing but BadFile is raised.
    with suppress(BadFile):
        assert profiled_step.report_of(report_reader.parse_page(bytes(content), STEP)).rows
