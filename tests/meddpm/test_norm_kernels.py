"""The norm's kernels are compiled for GPUs here, where none is needed for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from suites.meddpm.norm import fused
from tests import ROOT

if fused.missing():
    pytest.skip(f"fused norm: {fused.missing()}", allow_module_level=True)


PROGRAM = """
import json
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
import triton.language as tl
from suites.meddpm.norm import kernels

TILE, PART, WARPS = map(int, sys.argv[1:])
VOLUMES = {"x", "y", "dx", "dy"}
SMALL = {"tiles", "splits", "chunk"}
SIZES = {"voxels", "channels", "voxel_stride", *SMALL}
CONSTANTS = {
    "channel_stride": 1, "ROWS": TILE // 64, "COLUMNS": 64, "WIDTH": 6, "LANES": 8,
    "PART": PART, "EPS": 1e-5, "SILU": True, "NATIVE": True, "SHIFTED": True,
    "ACC": tl.float32,
}

def compiled(name):
    kernel = getattr(kernels, f"group_norm_{name}")
    def of(argument):
        if argument in CONSTANTS:
            return "constexpr"
        return "*bf16" if argument in VOLUMES else "i32" if argument in SIZES else "*fp32"
    names = kernel.arg_names
    source = ASTSource(
        kernel,
        {argument: of(argument) for argument in names},
        {(names.index(a),): value for a, value in CONSTANTS.items() if a in names},
        {
            (at,): [["tt.divisibility", 16]]
            for at, argument in enumerate(names)
            if argument not in SMALL and argument not in CONSTANTS
        },
    )
    return compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": WARPS})

NAMES = "moments combine normalise gradient_sums combine_gradients gradient".split()
ptx = {name: compiled(name).asm["ptx"] for name in NAMES}
print(json.dumps({name: [text.count("ld.global.v4"), text.count("st.global.v4")]
    for name, text in ptx.items()}))
"""

VOLUMES = {"moments": (1, 0), "normalise": (1, 1), "gradient_sums": (2, 0), "gradient": (2, 1)}
"""Read and written by each."""


def test_volumes_are_read_and_written_16_bytes_at_a_time(tmp_path: Path) -> None:
    """In a process that compiles: this one's Triton interprets."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, (fused.TILE, fused.PART, fused.WARPS))],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    accesses = json.loads(done.stdout)
    per_volume = fused.TILE // fused.WARPS // 32 * 2 // 16
    for name, (read, written) in VOLUMES.items():
        loads, stores = accesses[name]
        assert loads >= read * per_volume, name
        assert stores == written * per_volume, name
