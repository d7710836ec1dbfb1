"""Comments in YAML: where they are after the file was written anew, and when they go."""

from __future__ import annotations

from pytest_gpuperf.storage import baseline_files

OLD = """\
# about the file
tolerance:
  # noisy since driver 580
  cycles: 1%  # was 0.5%
calibration:  # of March
  classes: {}
tests:

    # the slow one
  'a.py::test: #1':
    step:
      # of the step
      samples:
        step:
          cycles:
          - [1, 2]  # a warm GPU
          # a quiet one
          - [3, 4]
      text: 'one
        # no comment
        two'
  gone:
    # of what is gone
    step: 1  # too
accepted:
# the first
- date: '1'  # a Sunday
  reason: first
# the end
"""
NEW = """\
tolerance:
  cycles: 1%
calibration:
  classes: {}
  date: '3'
tests:
  'a.py::test: #1':
    step:
      samples:
        step:
          cycles:
          - [5, 6]
          - [3, 4]
      text: "one\\n# no comment\\ntwo"
accepted:
- date: '1'
  reason: first
- date: '2'
  reason: second
"""
KEPT = """\
# about the file
tolerance:
  # noisy since driver 580
  cycles: 1%  # was 0.5%
calibration:  # of March
  classes: {}
  date: '3'
tests:
  # the slow one
  'a.py::test: #1':
    step:
      # of the step
      samples:
        step:
          cycles:
          - [5, 6]
          # a quiet one
          - [3, 4]
      text: "one\\n# no comment\\ntwo"
accepted:
# the first
- date: '1'  # a Sunday
  reason: first
- date: '2'
  reason: second
# the end
"""


def test_comments_stay_with_what_they_are_about() -> None:
    assert baseline_files.with_comments(OLD, NEW) == KEPT
    assert baseline_files.with_comments(KEPT, NEW) == KEPT


def test_without_comments_nothing_is_added_and_without_entries_only_they_are() -> None:
    for old, added in (("tests:\n  'a # b': 1\n", ""), ("", ""), ("# alone", "# alone\n")):
        assert baseline_files.with_comments(old, NEW) == NEW + added
