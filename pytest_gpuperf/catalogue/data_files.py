"""The tables beside the code: YAML files of this package, each read when it is first needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any


@cache
def read(file: Path) -> Any:
    """What the YAML in `file`, one of this package, says. Nobody changes it."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
