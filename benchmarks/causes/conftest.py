"""The flag that chooses what test_causes.py measures."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers it."""
    parser.getgroup("causes", "causes of slower steps").addoption(
        "--patched", action="store_true", help="with the causes put in; default: the code as it is"
    )
