"""Prints where a project has its baselines, for the command `gpuperf`: pytest reads its settings.

It ends before conftest files are loaded.
"""

from __future__ import annotations

import sys

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the setting, for where this plugin is not installed."""
    parser.addini("gpuperf_baselines", "folder of the baselines", default="baselines")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Prints the folder in the last line."""
    typed = getattr(early_config.known_args_namespace, "gpuperf_gpuperf_baselines", None)
    folder = early_config.invocation_params.dir if typed else early_config.rootpath
    print(f"\n{folder / (typed or early_config.getini('gpuperf_baselines'))}", flush=True)
    raise SystemExit(0)


if __name__ == "__main__":
    # Whatever a project takes for an error.
    sys.exit(pytest.main(["-W", "ignore", *sys.argv[1:]], plugins=[sys.modules[__name__]]))
