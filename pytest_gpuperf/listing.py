"""`gpuperf metrics`: prints the metric catalogue per architecture. Needs no GPU."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pytest_gpuperf import output
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.metrics.listing import Listing, hardware, listing
from pytest_gpuperf.report import metrics as shown

SCHEMA = 1
"""Of what `--format json` prints."""
TEXT, JSON = "text", "json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `gpuperf metrics`."""
    parser.add_argument(
        "--gpu-arch",
        dest="architectures",
        action="extend",
        nargs="+",
        default=[],
        metavar="ARCH",
        help="only these architectures, sm90 for example; default: all",
    )
    parser.add_argument(
        "--set",
        dest="wanted",
        metavar="SETS",
        help="only what --gpuperf-metrics SETS would measure: a set, or sets and metrics separated "
        "by commas",
    )
    parser.add_argument(
        "--library",
        type=Path,
        metavar="PATH",
        help="the libcupti that is asked for the passes; default: the one that measuring would use",
    )
    parser.add_argument("--format", choices=(TEXT, JSON), default=TEXT, help="default: text")


def act(options: argparse.Namespace) -> int:
    """Does what the flags say: prints the catalogue, and returns 0.

    Raises UsageFailure for unknown architectures, sets and metrics, and for a --library that cannot
    be used.
    """
    from shutil import get_terminal_size

    found = listing(options.architectures, options.wanted, options.library)
    if options.format == JSON:
        output.show(json.dumps(as_json(found), indent=1))
    else:
        width = get_terminal_size().columns
        output.show("\n".join(line.text for line in shown.lines(found, width)))
    return 0


def as_json(found: Listing) -> dict[str, object]:
    """The listing as `--format json` prints it."""
    passes = found.passes
    return {
        "schema": SCHEMA,
        "metrics": [
            {
                "name": metric.name,
                "unit": metric.unit,
                "better": metric.direction.value,
                "class": metric.metric_class.value,
                "gated": metric.gated,
                "summary": metric.summary,
                "sets": [name for name, of in catalogue().sets.items() if metric.name in of],
                "hardware": {name: hardware(metric, name) for name in found.architectures}
                if metric.hardware
                else None,
            }
            for metric in found.metrics
        ],
        "cupti": None if isinstance(passes, str) else passes.release,
        "passes": None
        if isinstance(passes, str)
        else {name: passes.counts.get(name) for name in found.architectures},
    }
