"""The workers of pytest-xdist, as their controller sees them: which have which GPU, and how many.

A worker has to know its GPU before its conftest files are loaded, and so before any test is
collected: whether a session measures is read off its flags, its settings and its files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.plugin import options

if TYPE_CHECKING:
    from pytest_gpuperf.measure.device.nvml import VisibleGpu

_GPUS: pytest.StashKey[tuple[VisibleGpu, ...]] = pytest.StashKey()
_FOLDER: pytest.StashKey[TemporaryDirectory[str]] = pytest.StashKey()

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
_US = b"gpuperf"
"""What a file says that uses us: a fixture, a marker, an import."""
_BIND = """
import os
try:
    os.sched_setaffinity(0, channel.receive())
except OSError:
    pass
"""
"""Run in a worker's main thread, of which the others inherit it. Where the kernel refuses, threads
run where they like."""


def count(config: pytest.Config) -> int | None:
    """How many workers `-n auto` starts: one per GPU; None where that is not for us to say."""
    hook = config.hook.pytest_xdist_auto_num_workers
    asked = {caller.plugin_name for caller in hook.get_hookimpls()} - {"gpuperf", "xdist"}
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or asked:
        return None
    return len(gpus(config)) or None


def gpus(config: pytest.Config) -> tuple[VisibleGpu, ...]:
    """The GPUs that the workers of this session are given; none where it measures on none.

    Those of the architecture that was asked for, and all of one kind: the first's. Raises
    pytest.UsageError for a bad setting.
    """
    if _GPUS not in config.stash:
        config.stash[_GPUS] = _fitting(config) if _measures(config) else ()
    return config.stash[_GPUS]


def fitting(arch: str) -> tuple[VisibleGpu, ...]:
    """The GPUs that this process sees, of the architecture `arch` and of one kind."""
    from pytest_gpuperf.measure.device import nvml

    found = [gpu for gpu in nvml.visible_gpus() if arch in ("auto", gpu.device.arch)]
    kind = {(gpu.device.arch, gpu.device.slug) for gpu in found[:1]}
    return tuple(gpu for gpu in found if (gpu.device.arch, gpu.device.slug) in kind)


def deal(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Gives every worker that is started on this machine a GPU, in its environment.

    A worker in place of one that died is started from the same specification: it has the same GPU.
    Who has said by `--tx` which GPU a worker has is left to it.
    """
    ours = [spec for spec in specs if spec.popen and not spec.via and _VISIBLE not in spec.env]
    found = gpus(config) if ours else ()
    if not found:
        return
    from pytest_gpuperf.measure.device import allotment

    folder = config.stash[_FOLDER] = TemporaryDirectory(
        prefix="gpuperf-", ignore_cleanup_errors=True
    )
    config.add_cleanup(folder.cleanup)
    dealt = allotment.deal(found, len(ours), Path(folder.name), allotment.own_cores())
    for spec, own in zip(ours, dealt, strict=True):
        spec.env |= {_VISIBLE: own.own, allotment.VARIABLE: own.to_text()}
        if own.threads and _THREADS not in os.environ:
            spec.env.setdefault(_THREADS, str(own.threads))


def bind(node: Any) -> None:
    """Has a worker that begins run on its own processors, before it imports anything."""
    environment = node.gateway.spec.env
    if not environment:
        return
    from pytest_gpuperf.measure.device import allotment

    own = allotment.read(environment.get(allotment.VARIABLE))
    if own is not None and own.cpus:
        channel = node.gateway.remote_exec(_BIND)
        channel.send(own.cpus)
        channel.waitclose()


def _fitting(config: pytest.Config) -> tuple[VisibleGpu, ...]:
    return fitting(options.read_settings(config).arch)


def _measures(config: pytest.Config) -> bool:
    """Whether tests of this session may measure on a GPU, as far as can be seen before them."""
    settings = options.read_settings(config)
    if config.option.collectonly or settings.replay is not None:
        return False
    if settings.arch == "cpu" or settings.collector == "cpu":
        return False
    return options.any_given(config) or any(map(_mentions_us, _files(config)))


def _mentions_us(file: Path) -> bool:
    try:
        return _US in file.read_bytes()
    except OSError:
        return False


def _files(config: pytest.Config) -> Iterator[Path]:
    """The conftest files that are loaded, and the Python files that tests are collected from."""
    for plugin in config.pluginmanager.get_plugins():
        file = Path(getattr(plugin, "__file__", None) or "")
        if file.name == "conftest.py":
            yield file
    ignored = (*config.getini("norecursedirs"), "__pycache__")
    for argument in config.args:
        path = config.invocation_params.dir / argument.partition("::")[0]
        if path.is_file():
            yield path
        for folder, below, names in os.walk(path):
            below[:] = [name for name in below if not any(fnmatch(name, of) for of in ignored)]
            yield from (Path(folder, name) for name in names if name.endswith(".py"))
