"""The scripted CUPTI, for the commands that ask one."""

from __future__ import annotations

from tests.measure.cupti.conftest import bare, fake, fake_library, loaded

__all__ = ["bare", "fake", "fake_library", "loaded"]
