"""Asks a libcupti which sizes of parameter structs it takes, without a device.

    echo '{"cuptiRangeProfilerEnable": [32, 36], ...}' |
        python tests/measure/cupti/sizes.py LIBCUPTI

prints, for each function, those of the sizes that it takes. One that it does not know it refuses as
an invalid parameter, before it looks at anything else. What it makes of one that it knows depends
on the other fields: so all of them are null, and then all of them point to zeros, each in a process
that may well crash of it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

FIELDS, ZEROS = 64, 1 << 16
INVALID_PARAMETER = 1


def refused(function: ctypes._NamedFuncPointer, size: int, field: int) -> bool:
    """Whether it calls a struct of this size, with this in every field, invalid."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, sys.stderr.fileno())
        struct = (ctypes.c_size_t * FIELDS)(size, 0, *[field] * (FIELDS - 2))
        os.write(writing, str(function(struct)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        said = stream.read()
    os.waitpid(child, 0)
    return said == str(INVALID_PARAMETER)


def main() -> None:
    """Answers what stdin asks."""
    path = Path(sys.argv[1])
    for name in ("libnvperf_host.so", "libnvperf_target.so"):
        ctypes.CDLL(str(path.with_name(name)))
    library, zeros = ctypes.CDLL(str(path)), ctypes.create_string_buffer(ZEROS)
    fields = (0, ctypes.addressof(zeros))
    taken = {
        name: [
            size
            for size in sizes
            if not all(refused(getattr(library, name), size, field) for field in fields)
        ]
        for name, sizes in json.load(sys.stdin).items()
    }
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
