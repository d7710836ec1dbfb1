"""The workers of pytest-xdist, as their controller sees them: their number, and each one's GPU.

A worker has to know its GPU before its conftest files are loaded, and so before any test is
collected: whether a session measures is read off its flags, its settings and its baselines.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.plugin import options

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

VARIABLE = "GPUPERF_ALLOTMENT"
"""The environment variable that tells a worker of its GPU."""

_FOLDER: pytest.StashKey[TemporaryDirectory[str]] = pytest.StashKey()

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_GROUPS = "groups.json"


@dataclass(frozen=True)
class GpuAssignment:
    """The GPUs of one worker of a session.

    A worker's test holds its GPU, or several, against the other workers, from before its fixtures
    to after them. Against other sessions a measurement holds the device's node.
    """

    gpus: tuple[str, ...]
    """UUIDs of the session's GPUs, the worker's own first, then those of no worker."""
    folder: str
    """The session's folder, with a file to lock for each GPU."""
    controller: int
    """The pid of the process whose children the workers are."""
    beside: int = 0
    """The number of other workers with the same GPU."""
    held: bool = False
    """Whether the process that started this process holds all the GPUs for it."""

    def to_text(self) -> str:
        """The assignment as a value of the environment variable."""
        return json.dumps(asdict(self))

    @contextmanager
    def holding(self, count: int = 1) -> Iterator[tuple[str, ...]]:
        """Holds the worker's GPU and as many others as make `count`, and yields their UUIDs.

        Waits for other workers without a time limit. All workers take GPUs in one order, so no two
        wait for each other. The GPUs of a worker that died are free.
        """
        from pytest_gpuperf.storage import files

        gpus = self.gpus[:count]
        with ExitStack() as holds:
            for uuid in () if self.held else sorted(gpus):
                holds.enter_context(files.locked(Path(self.folder, uuid), patience=math.inf))
            yield gpus


def own() -> GpuAssignment | None:
    """The assignment of this process; None where no other worker shares its GPUs.

    Removes the variable from the environment: processes that a test starts must not read it.
    """
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    told = json.loads(text)
    return GpuAssignment(**{**told, "gpus": tuple(told["gpus"])})


def assignments(gpus: Sequence[str], workers: int, folder: Path) -> list[GpuAssignment]:
    """The assignments of the workers: each has the next GPU, and after the last the first again.

    Makes the files in `folder` that the workers lock.
    """
    for uuid in gpus:
        (folder / uuid).touch()
    return [
        GpuAssignment(
            # Tests of several GPUs begin with those that no worker has.
            gpus=tuple(dict.fromkeys((gpus[number % len(gpus)], *gpus[workers:], *gpus))),
            folder=str(folder),
            controller=os.getpid(),
            beside=len(range(number % len(gpus), workers, len(gpus))) - 1,
        )
        for number in range(workers)
    ]


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """The number of workers for `-n auto`: one per GPU; None where pytest-xdist decides."""
    hook = config.hook.pytest_xdist_auto_num_workers
    rooms = {getattr(of.plugin, "__name__", "").split(".")[0] for of in hook.get_hookimpls()}
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or rooms - {"xdist", "pytest_gpuperf"}:
        return None
    return len(gpus(config)) or None


def gpus(config: pytest.Config) -> tuple[str, ...]:
    """UUIDs of the GPUs for this session's workers; empty where the session measures on no GPU.

    The GPUs have the architecture of the settings, and all the model of the first. Raises
    pytest.UsageError for a bad setting.
    """
    if not _measures(config):
        return ()
    from pytest_gpuperf.measure.instrument import STAND_IN

    found = fitting(options.read_settings(config).arch)
    # Two revisions are compared on one GPU, and that is the only one that is held for it.
    return found[:1] if STAND_IN in os.environ else found


def fitting(arch: str) -> tuple[str, ...]:
    """UUIDs of the GPUs that this process sees, of the architecture `arch` and of one kind."""
    from pytest_gpuperf.measure.device import nvml

    visible = nvml.visible_gpus().items()
    found = {uuid: (of.arch, of.slug) for uuid, of in visible if arch in ("auto", of.arch)}
    return tuple(uuid for uuid, kind in found.items() if kind == next(iter(found.values())))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a worker how its controller was started: a worker knows only its own part."""
    parameters = node.config.invocation_params
    node.workerinput["gpuperf_invocation"] = (list(parameters.args), str(parameters.dir))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Gives every worker that is started on this machine a GPU, in its environment.

    A worker that replaces a dead worker starts from the same specification, with the same GPU.
    Workers that were given a GPU by `--tx` keep it.
    """
    ours = [spec for spec in specs if spec.popen and not spec.via and _VISIBLE not in spec.env]
    found = gpus(config) if ours else ()
    if not found:
        return
    folder = config.stash[_FOLDER] = TemporaryDirectory(
        prefix="gpuperf-", ignore_cleanup_errors=True
    )
    config.add_cleanup(folder.cleanup)
    for spec, own in zip(ours, assignments(found, len(ours), Path(folder.name)), strict=True):
        spec.env |= {_VISIBLE: own.gpus[0], VARIABLE: own.to_text()}


def tell(folder: Path, items: Sequence[pytest.Item]) -> None:
    """Gives the controller the groups of tests that need one worker: those of one `xdist_group`.

    pytest-xdist 3.8 appends the group to a test's id, by which baselines know the test; under
    pytest 9.2 not even the id has the group.
    """
    from pytest_gpuperf.storage import files

    groups = {}
    for item in items:
        markers = item.iter_markers("xdist_group")
        names = {str(of.args[0] if of.args else of.kwargs.get("name", "default")) for of in markers}
        if names:
            groups[item.nodeid] = "_".join(sorted(names))  # as pytest-xdist does
    files.write_atomically(folder / _GROUPS, json.dumps(groups))  # all workers say the same


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """The scheduler that keeps each group of tests in one worker; None for others' sessions.

    The scheduler is pytest-xdist's `--dist loadscope`, by group or test. A worker that dies
    loses the test that it ran, and no other: by itself pytest-xdist 3.8 runs that test again until
    no worker may be replaced, or waits forever.
    """
    if not dealt(config) or config.getoption("dist") not in ("load", "loadgroup"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    class GpuScheduling(LoadScopeScheduling):  # type: ignore[misc]
        @cached_property
        def _groups(self) -> dict[str, str]:
            file = Path(config.stash[_FOLDER].name, _GROUPS)
            groups: dict[str, str] = json.loads(file.read_bytes()) if file.exists() else {}
            return groups

        def _split_scope(self, nodeid: str) -> str:
            return self._groups.get(nodeid, nodeid)

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            super().add_node_collection(node, collection)
            if node not in self.registered_collections:
                pytest.exit(
                    f"{node.gateway.id}, which replaced a worker that died, collected other tests "
                    "than the workers before. If tests come from a set, sort the set",
                    returncode=pytest.ExitCode.TESTS_FAILED,
                )

        def _reschedule(self, node: Any) -> None:
            # The one in the place of a worker that died has collected nothing at first.
            while node in self.registered_collections and not node.shutting_down:
                super()._reschedule(node)
                # A worker begins a test when it knows which is next, or that none is.
                if self._pending_of(self.assigned_work[node]) > 1:
                    break

        def remove_node(self, node: Any) -> str | None:
            if self.collection is None:  # the one in its place collects, too
                self.registered_collections.pop(node, None)
            units = self.assigned_work[node].values()
            begun = next((test for unit in units for test, done in unit.items() if not done), None)
            for unit in units:
                if begun in unit:
                    unit[begun] = True
            super().remove_node(node)
            return begun

    return GpuScheduling(config, log)


def dealt(config: pytest.Config) -> bool:
    """Whether this session's workers have GPUs of ours."""
    return _FOLDER in config.stash


def _measures(config: pytest.Config) -> bool:
    """Whether tests of this session may measure on a GPU, as far as can be seen before them.

    A project that measures has baselines, or a flag or setting of ours until they are accepted.
    """
    settings = options.read_settings(config)
    if config.option.collectonly or settings.replay is not None:
        return False
    if settings.arch == "cpu" or settings.collector == "cpu":
        return False
    accepted = settings.baselines.glob("sm*/*/*.yaml")
    return options.any_given(config) or next(accepted, None) is not None
