"""Loads Triton before `pytester` runs anything in this process.

It forgets the modules that are imported under it, and of two copies of Triton one would interpret
what the other compiles.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    import triton.language  # noqa: F401
