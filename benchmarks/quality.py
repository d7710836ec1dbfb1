"""What Med-DDPM's quality gates found: how far each configuration is from exact.

    pytest suites/meddpm/test_quality.py --junit-xml quality.xml
    python -m benchmarks.quality quality.xml docs/runs/meddpm-quality.json

The first runs the gates on this machine's GPU; they record what they find, also where it is within
the limits. The second keeps it in a file, of which the documentation's table is made, and prints
that table.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.medians import ABSENT
from pytest_gpuperf.errors import GpuperfError, UsageFailure
from suites.meddpm.optimizations import ALONE, OPTIMIZATIONS, composed

RECORDED: dict[str, dict[str, Callable[[str], float | str]]] = {
    "test_errors_against_float64": {
        **dict.fromkeys(("loss", "output", "gradients", "weight"), float),
        "worst": str,
    },
    "test_loss_curve": {"curve": float},
    "test_samples_look_alike": {"ssim": float, "ms_ssim": float, "scales": int},
}
"""By test: the properties that it records, and what each is in a JUnit file that has only text."""

_COLUMNS = {
    "loss": "loss",
    "output": "output",
    "gradients": "gradients",
    "weight": "of one weight",
    "curve": "loss curve",
    "dissimilarity": "1 - SSIM",
}
"""Of the table: what of the file is in it, and its heading."""


def recorded(xml: Path) -> dict[str, dict[str, float | str]]:
    """What the tests of a session recorded, by configuration: the suite's, parts alone, others.

    A test that failed has recorded what it found, one that was skipped has nothing. Raises
    UsageFailure for a file that is no JUnit XML.
    """
    recorded: dict[str, dict[str, float | str]] = {}
    for case in _root(xml).iter("testcase"):
        test, _, configuration = case.get("name", "").removesuffix("]").partition("[")
        kinds = RECORDED.get(test, {})
        for item in case.iterfind("properties/property"):
            name = item.get("name", "")
            if name in kinds:
                value = kinds[name](item.get("value", ""))
                recorded.setdefault(configuration, {})[name] = value
    # Tests come in the order in which workers were done with them, which is another each time.
    names = [name for kinds in RECORDED.values() for name in kinds]
    return {
        configuration: {name: values[name] for name in names if name in values}
        for configuration in dict.fromkeys((*OPTIMIZATIONS, *ALONE, *recorded))
        if (values := recorded.get(configuration))
    }


def _root(xml: Path) -> ElementTree.Element:
    remedy = f"Write it with: pytest suites/meddpm/test_quality.py --junit-xml {xml}"
    try:
        root = ElementTree.parse(xml).getroot()
    except OSError as error:
        raise UsageFailure(f"{xml}: cannot be read ({error.strerror}). {remedy}") from None
    except ElementTree.ParseError as error:
        raise UsageFailure(f"{xml}: this is no JUnit XML ({error}). {remedy}") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise UsageFailure(f"{xml}: this is no JUnit XML (its root is <{root.tag}>). {remedy}")
    return root


def save(quality: Mapping[str, Mapping[str, float | str]], file: Path) -> None:
    """Writes what was found, to three significant digits.

    Of SSIM and MS-SSIM the lower counts, and what it lacks to 1: three digits of SSIM are a 1.
    """
    rounded = {configuration: _rounded(values) for configuration, values in quality.items()}
    file.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def _rounded(values: Mapping[str, float | str]) -> dict[str, float | str]:
    kept = {name: value for name, value in values.items() if name not in ("ssim", "ms_ssim")}
    if "ssim" in values:
        kept["dissimilarity"] = 1 - min(float(values["ssim"]), float(values["ms_ssim"]))
    return {
        name: float(f"{value:.3g}") if isinstance(value, float) else value
        for name, value in kept.items()
    }


def table(file: Path) -> str:
    """A row per configuration of a file that `save` wrote, in the file's order."""
    rows = [
        f"| configuration | precision | {' | '.join(_COLUMNS.values())} |",
        f"| --- | --- |{' ---: |' * len(_COLUMNS)}",
    ]
    for name, values in json.loads(file.read_bytes()).items():
        cells = [cell(values.get(column)) for column in _COLUMNS]
        rows.append(f"| `{name}` | {composed(name).precision} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def cell(value: float | None) -> str:
    """A number of two digits, as the table has it."""
    if value is None:
        return ABSENT
    if not value or not math.isfinite(value):
        return f"{value:g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Keeps what a session found, and prints it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("xml", type=Path, help="what pytest's --junit-xml wrote")
    parser.add_argument("file", type=Path, help="where the results are written")
    asked = parser.parse_args(arguments)
    try:
        quality = recorded(asked.xml)
        if not quality:
            raise UsageFailure(
                f"{asked.xml}: no quality gate recorded anything in it. Run pytest with -rs, which "
                "says why tests were skipped"
            )
    except GpuperfError as error:
        print(error, file=sys.stderr)
        return 4
    save(quality, asked.file)
    sys.stdout.write(table(asked.file))
    return 0


if __name__ == "__main__":
    sys.exit(main())
