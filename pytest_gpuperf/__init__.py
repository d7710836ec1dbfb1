"""pytest-gpuperf: fail a build when a GPU training step got slower, and say which metric shows it.

Importing this package imports nothing else: `pytest --version` must not notice the plugin.
"""

__version__ = "0.1.0"

from typing import Any


def __getattr__(name: str) -> Any:
    """What workers need of it, imported when they ask: `from pytest_gpuperf import attached`."""
    if name == "attached":
        from pytest_gpuperf.measure.attachment import attached

        return attached
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
