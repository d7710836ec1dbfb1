#!/usr/bin/env python3
"""Stands in for ncu: runs the program it is given, and writes a report that was prepared.

What to do is in `ncu.json`
beside this file; what it was called with goes into `calls.json`, a line per call.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parent
FLAGS = {"--force-overwrite"}


def main() -> int:
    script = {"page": "", "says": "", "code": 0, **json.loads((HOME / "ncu.json").read_text())}
    words = sys.argv[1:]
    if words == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
        return 0
    options: dict[str, str] = {}
    while words and words[0].startswith("--"):
        name = words.pop(0)
        options[name] = "" if name in FLAGS else words.pop(0)
    with (HOME / "calls.json").open("a") as calls:
        told = {"options": options, "program": words, "TMPDIR": os.environ.get("TMPDIR")}
        calls.write(json.dumps(told) + "\n")
    fails = script["says"] and not script["page"]
    code = script["code"] if fails else subprocess.call(words)
    print(script["says"])
    if script["page"]:
        Path(options["--export"]).write_text(script["page"])
    return code


if __name__ == "__main__":
    sys.exit(main())
