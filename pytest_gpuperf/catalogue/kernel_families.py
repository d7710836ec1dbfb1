"""The family of a GPU kernel, and a short name for people, both from its name.

Names are the demangled ones from CUPTI, Nsight and torch.profiler. Most libraries document no
naming scheme, so the rules (`kernel_families.yaml`) come from real names. These were recorded on an
H200 (tests/data/h200-kernels) or are in public traces and issues (tests/data/kernel-names.json,
each with its source). A name that no rule matches is "other", never an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args
from zlib import crc32

from pytest_gpuperf.catalogue import yaml_table

Family = Literal[
    "convolution-forward",
    "convolution-data-gradient",
    "convolution-weight-gradient",
    "gemm",
    "attention",
    "normalization",
    "elementwise",
    "layout",
    "reduction",
    "resampling",
    "optimizer",
    "copy",
    "other",
]
FAMILIES: tuple[Family, ...] = get_args(Family)
"""All families. Softmax is a reduction, random numbers elementwise, moving data between memory
formats a layout. Pooling and interpolation are resampling, the driver's copies and fills copy,
communication between GPUs other."""

LONGEST = 60
"""Characters of the longest short name."""
_COMFORTABLE = 44
"""Template arguments are appended to a short name as long as it stays within this."""
_HEAD = 2000
"""The number of characters that are read. ATen repeats its template arguments in the signature
(5,050 characters for one random fill); the distinctive part stands far before this. The limit makes
the cost of any name constant, for all patterns."""
_OWN, _TOLD = 30, 200
"""The number of characters that show PyTorch's own kernel, and that distinguish kernels."""
_DATA = Path(__file__).with_suffix(".yaml")


@cache
def _rules(of: str) -> tuple[tuple[re.Pattern[str], Any], ...]:
    """Patterns and the family or data type that each means; the first match decides."""
    rules = yaml_table(_DATA)[of]
    return tuple(
        (re.compile(pattern, re.VERBOSE), kind) for rule in rules for kind, pattern in rule.items()
    )


@cache
def family(name: str) -> Family:
    """The family of the kernel of that name; "other" where no rule knows it, and for operators."""
    head = name[:_HEAD]
    return next((known for pattern, known in _rules("rules") if pattern.search(head)), "other")


@cache
def data_type(name: str) -> str:
    """The data type that a kernel of that name computes in; "" where the name does not say."""
    head = name[:_HEAD]
    return next((known for says, known in _rules("data_types") if says.search(head)), "")


@cache
def short_name(name: str) -> str:
    """A name of about 40 and at most 60 characters by which people can distinguish kernels.

    It has the kernel's own name without namespaces, plus details that distinguish variants. They
    are the function of an ATen kernel, data types and tile of a matrix product or convolution, or
    plain template arguments. Different kernels can share one name.
    """
    head = _plain(name)
    for shorten in (_xmma, _mangled, _templated):
        short = shorten(head)
        if short:
            return _cut(short)
    return _cut(head) or "(no name)"


def launched(kernels: Iterable[tuple[str, object, object]]) -> dict[str, str]:
    """A digest of the launch sizes (blocks and threads) by kernel name.

    It excludes PyTorch's own kernels, which autotuning never chooses.
    """
    sizes: dict[str, list[str]] = {}
    for name, *size in kernels:
        if "at::" not in name[:_OWN]:
            sizes.setdefault(name[:_TOLD], []).append(str(size))
    return {name: f"{crc32(repr(sorted(of)).encode()):08x}" for name, of in sizes.items()}


NAMING = family, short_name, data_type
"""The functions that read a kernel's name, each name once."""


def _plain(name: str) -> str:
    """The part of a name that the rules read: one printable line without anonymous namespaces."""
    head = re.sub(r"(\(anonymous namespace\)|<unnamed>|\{anonymous\})::", "", name[:_HEAD])
    return " ".join("".join(c if c.isprintable() else " " for c in head).split())


def _cut(text: str) -> str:
    """Cut in the middle: siblings of generated names differ in their ends."""
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 15]}...{text[-12:]}"


def _parts(head: str) -> tuple[str, str]:
    """The kernel's qualified name and its template arguments, by one pass over the brackets.

    A space outside brackets ends a return type; a parenthesis outside of them begins the arguments.
    """
    depth = start = opened = closed = end = 0
    for index, char in enumerate(head):
        if depth == 0 and char == "(":
            end = index
            break
        if depth == 0 and char == " ":
            start, opened, closed = index + 1, 0, 0
        elif depth == 0 and char == "<":
            opened, depth = index, 1
        elif char in "<({":
            depth += 1
        elif char in ">)}" and depth:
            depth -= 1
            closed = index
    else:
        end = len(head)
    if not opened:
        return head[start:end], ""
    return head[start:opened], head[opened + 1 : closed if closed > opened else end]


_DTYPES = {
    "float": "f32", "double": "f64", "c10::BFloat16": "bf16", "__nv_bfloat16": "bf16",
    "c10::Half": "f16", "__half": "f16", "unsigned int": "u32", "long": "i64", "int": "i32",
    "true": "T", "false": "F",
}  # fmt: skip
_XMMA = re.compile(r"(sm\d+)_xmma_(depthwise_convolution_)?(fprop|dgrad|wgrad|gemm)_(\w+)")
_XMMA_TYPE = re.compile(r"_(tf32|bf16|f16|f64|i8|e4m3|e5m2|f32)")
# Flags that distinguish xmma kernels of one kind, type and tile.
_XMMA_FLAGS = (
    ("_indexed", "idx"), ("_wo_smem", "nosmem"), ("_strided", "strided"), ("_split_k", "splitk"),
    ("segment_k_on", "segk"), ("t1r1s1", "1x1x1"),
)  # fmt: skip


def _xmma(head: str) -> str:
    """sm90_xmma_wgrad tf32 128x128x32, of cuDNN's and cuBLAS's kernels; "" for others."""
    match = _XMMA.match(head)
    if not match:
        return ""
    arch, depthwise, kind, rest = match.groups()
    rest = f"_{rest}"
    # f32f32_tf32f32_f32 computes in tf32: the narrower type, wherever it stands
    types = _XMMA_TYPE.findall(rest.replace("f32f32_tf32", "f32_tf32", 1))
    dtype = next(
        (t for t in ("tf32", "bf16", "f16", "i8", "e4m3", "e5m2", "f64") if t in types), "f32"
    )
    layout = re.search(r"_([nt][nt])_[nt]_|_(nchw)_tile", rest)
    tile = re.search(r"tilesize([\dx]+)", rest)
    words = [f"{arch}_xmma_{'dw_' if depthwise else ''}{kind}", dtype]
    words += [next(filter(None, layout.groups()))] if layout else []
    words += [tile[1]] if tile else []
    return " ".join(words + [short for text, short in _XMMA_FLAGS if text in rest])


def _mangled(head: str) -> str:
    """The first two telling identifiers of a mangled name; "" for other names."""
    if not head.startswith("_Z"):
        return ""
    names: list[str] = []
    position = 2
    while len(names) < 2 and (length := _LENGTH.search(head, position)):
        position = length.end() + int(length[1])
        word = head[length.end() : position]
        if word not in _NAMESPACES and not word.startswith("_GLOBAL_"):
            names.append(word)
    return " ".join(names)


_LENGTH = re.compile(r"(?<!\d)(?<!L[ijlmb])(\d{1,3})(?=[A-Za-z_])")
_NAMESPACES = {
    "at", "native", "cuda", "cutlass", "cudnn", "cutlass_cudnn", "conv", "gemm", "kernel",
}  # fmt: skip

# Functions that only wrap the telling function.
_CARRIERS = {
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "ReduceOp", "func_wrapper_t", "TensorListMetadata",
    "TensorListScalarListMetadata", "FusedOptimizerTensorListMetadata", "ADAM_MODE", "OpaqueType",
    "normal_and_transform", "uniform_and_transform", "gpu_index_kernel",
}  # fmt: skip
_FUNCTION = re.compile(
    r"at::native::(?:\w+::)*(\w+)(?!\w|::)"
    r"|\b(\w+Functor|(?<=std::)(?:multiplies|plus|minus|divides))\b"
)
_WEAR = re.compile(
    r"^launch_|^(CUDA)?Functor_?|(_cuda)?_kernel(_impl|_cuda)*$|_?[Ff]unctor(?=\w?$|[A-Z])"
    r"|_functor$|_impl$|KernelImplInternal$|(?<=\w)Ops$"
)
_LAMBDA = re.compile(r"lambda\(([\w:, ]+)\)")


def _templated(head: str) -> str:
    """The kernel's own name with its function or template arguments; "" if it has no name."""
    if family(head) == "copy":
        return head
    qualified, arguments = _parts(head)
    own = qualified.rpartition("::")[2]
    if own in ("Kernel", "Kernel2") and arguments:  # cutlass::Kernel2<cutlass_80_...>
        own, arguments = arguments.partition("<")[0].rpartition("::")[2], ""
    elif own.lower() in ("kernel", "device_kernel") and "::" in qualified:
        inner = re.search(r"(GemmUniversal|FlashAtt\w+|\w+(?=::Kernel_traits))", arguments)
        own = " ".join(qualified.split("::")[-2:-1] + ([inner[1]] if inner else []))
    own = _own(own)
    functions = _functions(arguments) if own.endswith(_ATEN) else []
    if functions:
        plain = re.match(r"(\d+), (\d+),", arguments) if own == "reduce_kernel" else None
        size = [f"{plain[1]}x{plain[2]}"] if plain else []
        own = re.sub(r"_kernel$", "", own)
        return " ".join([own, *size, *functions])
    direction = re.search(r"implicit_gemm::([fdw]\w+?)(_indexed)?::", arguments)
    for word in [direction[1]] if direction else _values(arguments):
        if len(own) + 1 + len(word) > _COMFORTABLE:
            break
        own = f"{own} {word}"
    return own


# Kernels that are nothing without the function they apply.
_ATEN = ("elementwise_kernel", "reduce_kernel", "apply_kernel", "distribution_kernel")


def _own(own: str) -> str:
    """A name that is its own, without what all its siblings have."""
    own = re.sub(r"^_5x_cudnn_|^cudnn_(generated_fort_native|infer|train)_|_fused(?=_)", "", own)
    own = re.sub(r"_knob_\d+|_cga[\dx]+|_v1$", "", own)
    own = re.sub(r"^(cutlass(?:_\d+)?)_tensorop_", r"\1_", own)
    return own.replace("distribution_elementwise_grid_stride", "distribution")


def _functions(arguments: str) -> list[str]:
    """The functions that an ATen kernel applies, and on what: `AUnary Mul f32`, `sum bf16`."""
    functions: list[str] = []
    own_type: list[str] = []
    last = 0
    for match in _FUNCTION.finditer(arguments):
        word = match[1] or match[2]
        if word in _CARRIERS or word[:6] in ("Tensor", "Opaque") or word.endswith("Cast"):
            continue
        if functions and "(" in arguments[last : match.start()].replace("operator()", ""):
            break  # past the function, at its parameters
        word = _WEAR.sub("", word).strip("_")
        last = match.end()
        types = re.match(r"<([\w:, ]+)", arguments[last : last + 80])
        own_type = own_type or (_values(types[1])[:1] if types else [])
        functions += [word] if word else []
        if len(functions) == 2:
            break
    # lambda(float, float): how many values it takes tells backward functions from forward ones.
    # lambda(int) takes an index.
    taken = _LAMBDA.search(arguments)
    values = _values(taken[1])[:1] if taken and "ReduceOp" not in arguments else []
    if not values or (own_type and values == ["i32"]):
        values = [re.sub(r"x\d+$", "", word) for word in own_type]
    return functions + values if functions else []


def _values(arguments: str) -> list[str]:
    """The plain arguments before the first that is a type of its own, repeats counted: f32x3."""
    words: list[list[str | int]] = []
    for argument in re.split(r", ", arguments):
        # (cudnnKernelDataType_t)0; nsys writes all values like that, nvprof int=4
        plain = re.sub(r"^(\([\w:]+\)|\w+=)(?=\d)", "", argument.strip())
        opaque = re.search(r"OpaqueType<(\d+)u?>$", plain)
        word = f"{opaque[1]}B" if opaque else _DTYPES.get(plain, plain if plain.isdigit() else "")
        if not word:
            break
        if words and words[-1][0] == word and not word[0].isdigit():
            words[-1][1] = int(words[-1][1]) + 1
        else:
            words.append([word, 1])
    return [f"{word}x{count}" if int(count) > 1 else str(word) for word, count in words]
