"""Names: metrics, architectures, families of kernels, units and how numbers are written."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def yaml_table(file: Path) -> Any:
    """The content of a YAML file beside the code, read on first use. Callers must not modify it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
