"""JSON Schemas (2020-12) of the files we keep, for programs that read them.

Made of the dataclasses that the files are validated against, so that both say the same. Loading
checks beyond them what types cannot say: that metrics are the catalogue's, each sampled once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from pytest_gpuperf.model import entry
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import baseline_files, files, kernel_files, run_files

if TYPE_CHECKING:
    from pydantic_core import core_schema


_KEPT: dict[str, tuple[type, int]] = {
    "run": (Run, run_files.SCHEMA),
    "baseline": (entry.BaselineFile, baseline_files.SCHEMA),
    "kernels": (entry.KernelFile, kernel_files.SCHEMA),
}
KINDS = tuple(_KEPT)
"""Of files: a run, the YAML of a suite's baselines, and the kernel tables beside it."""


def schema(kind: str) -> dict[str, Any]:
    """The schema of files of this kind, in the version that this code reads and writes."""
    expected, version = _KEPT[kind]
    made = files.adapter(expected).json_schema(schema_generator=_Documented)
    made["properties"]["schema"] = {"const": version}
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:pytest-gpuperf:{kind}:{version}",
        **made,
    }


class _Documented(GenerateJsonSchema):
    """Entries are described by the docstrings under attributes; no title repeats their names."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002
        return False

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        made = super().dataclass_schema(schema)
        for described in made["properties"].values():
            if text := described.get("description"):
                # One line, in the words of JSON.
                described["description"] = re.sub(r"\bNone\b", "null", " ".join(text.split()))
        return made
