"""What a measurement is called."""

from __future__ import annotations

from tests.examples import measurement


def test_a_measurement_is_called_by_its_test() -> None:
    for test, name, says in (
        ("a/b.py::test_x", "step", "test_x"),
        ("a/b.py::TestClass::test_x", "step", "test_x"),
        ("a/b.py::test_x[a::b]", "step", "test_x[a::b]"),
        ("a/b.py::test_x", "sampling", "test_x, sampling"),
        ("odd", "step", "odd"),
    ):
        assert measurement(test=test, name=name).title == says, (test, name)
