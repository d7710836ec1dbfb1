#!/usr/bin/env python3
"""Stands in for ncu: runs its program, and writes the report in `ncu.json` beside this file."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    words = sys.argv[1:]
    if words == ["--version"]:
        print("NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 1)")
        return 0
    program = words.index(sys.executable)
    code = subprocess.call(words[program:])
    report = Path(words[words.index("--export", 0, program) + 1])
    report.write_text(Path(__file__).with_name("ncu.json").read_text())
    return code


if __name__ == "__main__":
    sys.exit(main())
