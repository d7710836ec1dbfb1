"""The kernels compile for every architecture, by the same way as on a GPU, without one."""

from __future__ import annotations

import re
import sys

import pytest

from pytest_gpuperf.catalogue.architectures import ARCHITECTURES, CPU
from pytest_gpuperf.errors import UsageFailure
from suites.convnext_ddpm.kernels import compiler
from suites.convnext_ddpm.kernels.compiler import SOURCES, compiled, unavailable
from tests.convnext import kernel_cases as cases
from tests.convnext.emulation import Recorder
from tests.convnext.kernel_cases import COMPOSITIONS
from tests.plugin.test_conditions import AT_NIGHT

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-core, and NVRTC")

KERNELS = {
    "block.cu": ("convnext_block<3, 10, 5, 7, 9, 2>", "convnext_block<8, 16, 8, 4, 4, 1>"),
    "convolution.cu": (
        "convolution_naive<3, 33, 3, 1, 1, GELU>",
        "convolution_tiled<5, 33, 3, 1, RELU, 8, 2, 4, 4>",
        "convolution_grouped<32, 32, 3, 1, 32, NONE, 8, 2, 4>",
    ),
    "convolution_bf16.cu": ("convolution_im2col_bf16<33, 5, 3, 1, GELU, 8, 8, 16, 4, 1>",),
    "layer_norm.cu": (
        "norm_naive<3, 63>",
        "norm_resident<64, 64, 1024, 16, 4>",
        "norm_partial<262144, 256, 16, 4>",
        "norm_reduce<262144, 4096>",
        "norm_scale<64, 4096, 256, 16, 4, true>",
        "norm_scale<5, 63, 256, 16, 1, false>",
    ),
    "pointwise.cu": (
        *("add_bias", "add", "activate<GELU>", "gate<true>", "sigmoid_of", "upsample"),
        *("space_to_depth", "linear<32, 128, true>"),
    ),
}
"""Of each source, a use of every kernel."""

GPUS = [arch for arch in ARCHITECTURES if arch not in (CPU, "sm103")]
"""The sources ask for sm80 and for sm90, and the others have nothing more that is used here."""
BY_DAY = ("sm70", "sm80", "sm90")
"""What the sources tell apart; the others are compiled at night."""


def test_every_kernel_is_compiled_and_run() -> None:
    """Those of the sources, those that are compiled here, and those that the cases launch."""
    declared = re.compile(r"__global__[^;{]*?(\w+)\((?:const|float)")
    computed = {
        file.name: set(declared.findall(file.read_text(encoding="utf-8")))
        for file in SOURCES.glob("*.cu")
    }
    compiled_here = {source: {_template(k) for k in kernels} for source, kernels in KERNELS.items()}
    launched: dict[str, set[str]] = {}
    recorder = Recorder(processors=1)
    for name, composition in COMPOSITIONS.items():
        blocks = cases.BLOCKS if "kernel" in name else ()
        for case in (*cases.CONVOLUTIONS, *cases.NORMS, *cases.OTHERS, *blocks):
            case.call(composition(recorder), cases.inputs(case))
    for launch in recorder.launches:
        launched.setdefault(launch.source, set()).add(_template(launch.kernel))
    assert computed == compiled_here == launched


def _template(kernel: str) -> str:
    return kernel.partition("<")[0]


@pytest.mark.parametrize(
    "arch", [arch if arch in BY_DAY else pytest.param(arch, marks=AT_NIGHT) for arch in GPUS]
)
@pytest.mark.parametrize("source", KERNELS)
def test_compiles(source: str, arch: str) -> None:
    core = compiler.cuda_core()
    if reason := unavailable(source, arch):
        assert source in reason
        assert arch in reason
        return
    _, known = nvrtc.nvrtcGetSupportedArchs()
    if int(arch.removeprefix("sm")) not in known:
        pytest.skip(f"this NVRTC knows no {arch}: the test extra has CUDA 12.9's, which does")
    # All at once, which takes a third of the time that one by one takes.
    options = compiler.options(core, arch)
    program = core.Program((SOURCES / source).read_text(), "c++", options)
    code = program.compile("cubin", name_expressions=KERNELS[source])
    assert code.code[:4] == b"\x7fELF"


def test_one_kernel_is_compiled_once() -> None:
    first = compiled("pointwise.cu", "gate<true>", "sm90")
    assert compiled("pointwise.cu", "gate<true>", "sm90") is first
    assert compiled("pointwise.cu", "gate<true>", "sm80") is not first


def test_what_does_not_compile_says_so() -> None:
    with pytest.raises(UsageFailure, match=r"pointwise\.cu: no_such<3> does not compile for sm90"):
        compiled("pointwise.cu", "no_such<3>", "sm90")


@pytest.mark.parametrize("arch", [*GPUS, CPU])
def test_bfloat16_needs_its_tensor_cores(arch: str) -> None:
    reason = unavailable("convolution_bf16.cu", arch)
    if arch in ("sm70", "sm75"):
        assert reason == (
            "convolution_bf16.cu needs the bfloat16 tensor cores of sm80 or later; this is " + arch
        )
    else:
        assert reason == ("the kernels are CUDA C++: they need a GPU" if arch == CPU else None)


def test_without_cuda_core_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", None)
    with pytest.raises(UsageFailure, match=r"pip install 'cuda-core\[cu13\]'"):
        compiler.cuda_core()
