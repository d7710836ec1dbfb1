"""Without a GPU, Triton's interpreter runs the kernels: it is asked for before they load."""

from __future__ import annotations

import os
from contextlib import suppress

import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

with suppress(ImportError):
    # Before `pytester` runs anything in this process: it forgets the modules that are imported
    # under it, and of two copies of Triton one interprets what the other compiles.
    import triton.language  # noqa: F401
