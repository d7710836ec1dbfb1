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


def _launched() -> dict[str, dict[str, list[str]]]:
    """By source and kernel, the uses that the cases launch."""
    recorder = Recorder(processors=1)
    for name, composition in COMPOSITIONS.items():
        blocks = cases.BLOCKS if "kernel" in name else ()
        for case in (*cases.CONVOLUTIONS, *cases.NORMS, *cases.OTHERS, *blocks):
            case.call(composition(recorder), cases.inputs(case))
    launched: dict[str, dict[str, list[str]]] = {}
    for launch in recorder.launches:
        kernels = launched.setdefault(launch.source, {})
        kernels.setdefault(launch.kernel.partition("<")[0], []).append(launch.kernel)
    return launched


KERNELS = _launched()
GPUS = [arch for arch in ARCHITECTURES if arch not in (CPU, "sm103")]
"""The sources ask for sm80 and for sm90, and the others have nothing more that is used here."""
BY_DAY = ("sm70", "sm80", "sm90")
"""What the sources tell apart; the others are compiled at night."""


def test_every_kernel_is_compiled_and_run() -> None:
    declared = re.compile(r"__global__[^;{]*?(\w+)\((?:const|float)")
    sources = {file.name: file.read_text(encoding="utf-8") for file in SOURCES.glob("*.cu")}
    assert {name: {*declared.findall(text)} for name, text in sources.items()} == {
        name: {*kernels} for name, kernels in KERNELS.items()
    }


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
    uses = tuple(uses[0] for uses in KERNELS[source].values())
    code = program.compile("cubin", name_expressions=uses)
    assert code.code[:4] == b"\x7fELF"


def test_one_kernel_is_compiled_once() -> None:
    first = compiled("pointwise.cu", "gate<true>", "sm90")
    assert compiled("pointwise.cu", "gate<true>", "sm90") is first
    assert compiled("pointwise.cu", "gate<true>", "sm80") is not first


def test_what_does_not_compile_says_so() -> None:
    with pytest.raises(UsageFailure, match=r"pointwise\.cu: no_such<3> does not compile for sm90"):
        compiled("pointwise.cu", "no_such<3>", "sm90")


def test_bfloat16_needs_its_tensor_cores() -> None:
    for arch in (*GPUS, CPU):
        reason = unavailable("convolution_bf16.cu", arch)
        if arch in ("sm70", "sm75"):
            needs = "needs the bfloat16 tensor cores of sm80 or later; this is"
            assert reason == f"convolution_bf16.cu {needs} {arch}"
        else:
            assert reason == ("the kernels are CUDA C++: they need a GPU" if arch == CPU else None)


def test_without_cuda_core_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    monkeypatch.setitem(sys.modules, "cuda.core.experimental", None)
    with pytest.raises(UsageFailure, match=r"pip install 'cuda-core\[cu13\]'"):
        compiler.cuda_core()
