"""Loads the plugin from a plain checkout, where it is not installed."""

from __future__ import annotations

import pytest

from pytest_gpuperf.plugin import hooks


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Registers pytest-gpuperf under the name of its entry point, so that `-p no:gpuperf` works."""
    if not pluginmanager.has_plugin("gpuperf") and not pluginmanager.is_blocked("gpuperf"):
        pluginmanager.register(hooks, "gpuperf")
