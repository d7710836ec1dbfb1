"""What every report says of the same results, word for word: see `golden.py`."""

from __future__ import annotations

import pytest

from tests.report import golden

TEXTS = golden.texts()


@pytest.mark.parametrize("file", TEXTS)
def test_the_text_of_a_report(file: str) -> None:
    assert TEXTS[file] == (golden.FOLDER / file).read_text(encoding="utf-8")
