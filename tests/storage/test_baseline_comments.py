"""Comments in YAML: where they are after the file was written anew, and when they go."""

from __future__ import annotations

import pytest

from pytest_gpuperf.storage import baseline_files

OLD = """\
# about the file
tolerance:
  # noisy since driver 580
  cycles: 1%  # was 0.5%
tests:  # all

    # the slow one
  'a.py::test: #1':
    step:
          cycles:
          - [1, 2]  # a warm GPU
          # a quiet one
          - [3, 4]
      text: 'it''s one
        # no comment
        two'
      reason: don't  # it's so
      odd: [a 'b c, 'd # e']
  gone:
    # of what is gone
    step: 1  # too
# the end
"""
NEW = """\
tolerance:
  cycles: 1%
tests:
  'a.py::test: #1':
    step:
          cycles:
          - [5, 6]
          - [3, 4]
      text: "it's one\\n# no comment\\ntwo"
      reason: don't
      odd: [a 'b c, 'd # e']
      more: 1
"""
KEPT = """\
# about the file
tolerance:
  # noisy since driver 580
  cycles: 1%  # was 0.5%
tests:  # all
  # the slow one
  'a.py::test: #1':
    step:
          cycles:
          - [5, 6]
          # a quiet one
          - [3, 4]
      text: "it's one\\n# no comment\\ntwo"
      reason: don't  # it's so
      odd: [a 'b c, 'd # e']
      more: 1
# the end
"""


@pytest.mark.parametrize(
    ("old", "kept"),
    [
        (OLD, KEPT),
        (KEPT, KEPT),
        ("tests:\n  'a # b': 1\n", NEW),
        ("", NEW),
        ("# alone", f"{NEW}# alone\n"),
    ],
    ids=["moved", "the same again", "no comment", "nothing", "nothing else"],
)
def test_comments_stay_with_what_they_are_about(old: str, kept: str) -> None:
    assert baseline_files.with_comments(old, NEW) == kept
