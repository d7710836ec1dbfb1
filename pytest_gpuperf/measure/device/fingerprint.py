"""The fingerprint beside the device: what the GPU is beyond its name, versions, the revision."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest_gpuperf
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.measurement import Machine
from pytest_gpuperf.storage import files

_GIT_TIMEOUT_SECONDS = 10
INSTALLED = frozenset({"site-packages", "dist-packages"})
_ASIDE = ("torch", "torchgen", "functorch", "pytest_gpuperf")
_LAYOUTS = ("*.py", "*/__init__.py", "src/*.py", "src/*/__init__.py")
"""Where a project has its modules and packages."""
_NOT_OURS = sys.stdlib_module_names | {"pytest_gpuperf", "conftest", "setup", "__main__"}


def software(*, of_gpu: bool = True) -> dict[str, str]:
    """Versions by name: python, platform, cpu, gpuperf, torch, cuda, cudnn, driver.

    Imports torch. Missing software (torch, the CUDA of a CPU build) is left out, and so is the
    driver if the step is not `of_gpu`. The kernel's version is not recorded: it differs between
    machines and explains no counter.
    """
    versions = {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "gpuperf": pytest_gpuperf.__version__,
        **_torch_versions(),
        "driver": driver_version() if of_gpu else "",
    }
    return {name: version for name, version in versions.items() if version}


def machine() -> Machine | None:
    """The VBIOS, board and limits of CUDA's device 0; None if NVML does not report them.

    In a MIG instance, memory is that of the instance, and the rest that of the whole GPU.
    """
    with nvml.open_session() as session:
        gpu = session.gpu()
        if gpu is None:
            return None
        memory = session.ask("nvmlDeviceGetMemoryInfo", gpu.visible)
        whole = gpu.physical

        def current(function: str) -> bool | None:
            modes = session.ask(function, whole)  # current and pending
            return bool(modes[0]) if modes else None

        made = Machine(
            vbios=session.text("nvmlDeviceGetVbiosVersion", whole),
            board_part=session.text("nvmlDeviceGetBoardPartNumber", whole),
            inforom=session.text("nvmlDeviceGetInforomImageVersion", whole),
            memory_bytes=None if memory is None else int(memory.total),
            ecc=current("nvmlDeviceGetEccMode"),
            mig=current("nvmlDeviceGetMigMode"),
            power_limit_watts=session.watts("nvmlDeviceGetPowerManagementDefaultLimit", whole),
            enforced_power_limit_watts=session.watts("nvmlDeviceGetEnforcedPowerLimit", whole),
            pcie_generation=session.integer("nvmlDeviceGetMaxPcieLinkGeneration", whole),
            pcie_width=session.integer("nvmlDeviceGetMaxPcieLinkWidth", whole),
        )
    return None if made == Machine() else made


def driver_version() -> str:
    """The version of NVIDIA's driver; "" where none answers."""
    with nvml.open_session() as session:
        return session.text("nvmlSystemGetDriverVersion")


def cpu_model() -> str:
    """The name of the processor, as "AMD EPYC 9654"; the instruction set where it has no name."""
    with suppress(OSError):
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        # Arm kernels do not give a model name.
        if named := re.search(r"^model name\s*:[ \t]*(\S.*?)\s*$", text, re.MULTILINE):
            return named[1]
    return platform.processor() or platform.machine()


def revision(folder: Path, baselines: Path | None = None) -> str:
    """The short hash of the git commit of `folder`, with "+dirty" after changes.

    Changed means: a tracked file of the repository differs from the commit, staged or not.
    Untracked files do not count, since run files and caches are untracked. Files in the folder of
    the `baselines` do not count, because they are accepted one after the other. Returns "" outside
    a repository, before its first commit, and if git is missing or does not answer.
    """
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not commit:
        return ""
    of = ["--", ":/"]
    if baselines is not None and baselines.is_relative_to(folder):
        of.append(f":(exclude){baselines.relative_to(folder).as_posix()}")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", *of)
    return f"{commit}+dirty" if changes else commit


@cache
def project(folder: Path) -> str:
    """The repository's name and the path of `folder` in it: "train", or "monorepo/train".

    The name is the last part of origin's URL: forks, shallow clones and worktrees share it. Without
    an origin, it is the name of the repository's folder. Returns "" where `revision` does.
    """
    asked = ("rev-parse", "--path-format=absolute", "--git-common-dir", "--show-prefix")
    own, _, inside = _git(folder, *asked).partition("\n")
    place = own and (_git(folder, "config", "--get", "remote.origin.url") or own)
    name = re.split(r"[/:]", place.rstrip("/").removesuffix(".git").rstrip("/"))[-1]
    return f"{name}/{inside}".rstrip("/")


def elsewhere(root: Path) -> str:
    """The project's packages whose code is not that of the checkout around `root`.

    As "~/venv/lib/python3.12/site-packages/net instead of src/net"; "" if there are none. An
    environment inside of the checkout is not part of it. A copy of the present code is no other.
    """
    top, tracked = _tracked(root)
    found = []
    for name, place in tracked.items():
        file = Path(str(_globals(sys.modules.get(name)).get("__file__") or top)).resolve()
        inside = file.is_relative_to(top) and INSTALLED.isdisjoint(file.relative_to(top).parts)
        used = file.parent if file.stem == "__init__" else file
        if not inside and not _equal(used, top / place) and _build((top, root), of_file(file)):
            home = re.escape(os.environ.get("HOME") or "~")
            found.append(f"{re.sub(f'^{home}/', '~/', str(used))} instead of {place}")
    return ", ".join(found)


@cache
def _equal(used: Path, ours: Path) -> bool:
    """Whether the Python files that both a module and its copy have are the same, if any are."""
    files = [*ours.rglob("*.py")] if ours.is_dir() else [ours]
    pairs = [(file, used / file.relative_to(ours)) for file in files]
    return {a.read_bytes() == b.read_bytes() for a, b in pairs if b.is_file()} == {True}


@cache
def _tracked(root: Path) -> tuple[Path, dict[str, str]]:
    """The checkout around `root`, and the places that its importable modules have in it."""
    top = _git(root, "rev-parse", "--show-toplevel")
    forms = [f":({start}glob){layout}" for start in ("", "top,") for layout in _LAYOUTS]
    listed = _git(root, "ls-files", "--full-name", "--", *forms).splitlines() if top else []
    places = (file.removesuffix("/__init__.py") for file in listed)
    names = {name: place for place in places if (name := Path(place).stem) not in _NOT_OURS}
    return Path(top).resolve(), names


def _build(folders: Sequence[Path], distribution: str) -> bool:
    """Whether build files in these folders name this distribution, or it has no known name.

    A setup.py that computes its name may build any.
    """
    files = [at / file for at in folders for file in ("pyproject.toml", "setup.cfg", "setup.py")]
    named = rf"['\"]?{distribution.replace('-', '[-_.]+')}(?![\w.-])|\w+[,)]"
    texts = [file.read_text("utf-8", "replace") for file in files if file.is_file()]
    return not distribution or any(re.search(rf"(?i)\bname\s*=\s*({named})", t) for t in texts)


def _git(folder: Path, *arguments: str) -> str:
    # Without optional locks, `git status` leaves the index alone: another git may be at work.
    try:
        printed = files.git(
            folder, "--no-optional-locks", *arguments, patience=_GIT_TIMEOUT_SECONDS
        )
    except UsageFailure:
        return ""
    return printed.decode(errors="replace").strip()


def _torch_versions() -> dict[str, str]:
    try:
        import torch
    except ImportError:
        return {}
    cudnn: Any = torch.backends.cudnn
    number = cudnn.version() or 0
    thousands = 10_000 if number >= 90_000 else 1_000  # 91900 is 9.19.0, 8907 was 8.9.7
    written = f"{number // thousands}.{number % thousands // 100}.{number % 100}"
    return {
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda or "",
        "cudnn": written if number else "",
    }


def of_file(file: Path) -> str:
    """The name of the distribution that installed `file`; "" if there is none.

    A development install or a checkout is the user's own code.
    """
    parts = file.parts
    at = next((at for at, part in enumerate(parts) if part in INSTALLED), len(parts))
    return _of_package(parts[at + 1].removesuffix(".py")) if at + 1 < len(parts) else ""


def libraries() -> dict[str, str]:
    """The versions of imported libraries that import torch, by name in alphabetical order.

    A step calls operators through them; its kernel table says which. The search repeats when the
    number of imported modules changes: 5 ms for 2,500 modules.
    """
    return dict(_libraries(len(sys.modules)))


@cache
def _libraries(_: int) -> dict[str, str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    using = [one for one in [*sys.modules.values()] if _globals(one).get("torch") is torch]
    files = {str(_globals(one).get("__file__") or "") for one in using}
    names = {of_file(Path(file)) for file in files} - {""}
    return {name: version for name in sorted(names) if (version := metadata.version(name))}


def _globals(module: object) -> dict[str, object]:
    """The module's names, without `getattr`, which would import lazy modules."""
    return getattr(module, "__dict__", {})


@cache
def _of_package(package: str) -> str:
    """The distribution of a package. Most share its name, which is tried first."""
    if package in _ASIDE:
        return ""
    try:
        name = metadata.distribution(package).name
    except metadata.PackageNotFoundError:
        name = _by_package().get(package, "")
    return re.sub(r"[-_.]+", "-", name).lower()  # releases of one write its hyphens otherwise


@cache
def _by_package() -> dict[str, str]:
    """Distributions by what they say that they hold; to read all their files takes seconds."""
    every = metadata.distributions()
    return {held: d.name for d in every for held in (d.read_text("top_level.txt") or "").split()}
