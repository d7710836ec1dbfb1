"""What tests of measuring share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def modules_frozen() -> Iterator[None]:
    """Measuring collects garbage first, which need not look through torch every time."""
    gc.freeze()
    yield
    gc.unfreeze()
