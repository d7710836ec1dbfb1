"""Loads Triton, and what torch loads late, before `pytester` runs anything in this process.

It forgets the modules that are imported under it. Of two copies of Triton one would interpret what
the other compiles.
"""

from __future__ import annotations

from contextlib import suppress

import torch._dynamo  # noqa: F401 -- an optimizer loads it

with suppress(ImportError):
    import triton.language  # noqa: F401
