"""pytest-gpuperf: fail a build when a GPU training step got slower, and say which metric shows it.

Importing this package imports nothing else: `pytest --version` must not notice the plugin.
"""

__version__ = "0.1.0"
