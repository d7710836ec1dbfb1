"""The workers of pytest-xdist, as their controller sees them: which have which GPU, and how many.

A worker has to know its GPU before its conftest files are loaded, and so before any test is
collected: whether a session measures is read off its flags, its settings and its files.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from hashlib import sha256
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf.plugin import options

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from pytest_gpuperf.measure.device.nvml import VisibleGpu
    from pytest_gpuperf.model.entry import Entry

_GPUS: pytest.StashKey[tuple[VisibleGpu, ...]] = pytest.StashKey()
_FOLDER: pytest.StashKey[TemporaryDirectory[str]] = pytest.StashKey()

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_THREADS = "OMP_NUM_THREADS"
_TOLD = "tests.json"
_NEEDED = 2
"""Tests that a worker has to know of: the one that runs, and the next."""
_COMPILING_MS = 1000.0
"""How much longer a compiled step makes its test, as a step's wall time: that is of one execution
of five or more. On H100s' hosts the test of a compiled step of 8 ms took some 4 s, with torch's
cache filled, and no other of its suite half as long (docs/runs/workers). What a CUDA graph replays
is not known for compiled."""
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Nodes of NVIDIA's driver, and of WSL's: without one no GPU is looked for, and no file read."""
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
    rooms = {getattr(of.plugin, "__name__", "").split(".")[0] for of in hook.get_hookimpls()}
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS") or rooms - {"xdist", "pytest_gpuperf"}:
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
    shares = allotment.deal(found, len(ours), Path(folder.name), allotment.own_cores())
    for spec, own in zip(ours, shares, strict=True):
        spec.env |= {_VISIBLE: own.own, allotment.VARIABLE: own.to_text()}
        if own.threads and _THREADS not in os.environ:
            spec.env.setdefault(_THREADS, str(own.threads))


def dealt(config: pytest.Config) -> bool:
    """Whether this session's workers have GPUs of ours."""
    return _FOLDER in config.stash


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


def tell(
    folder: Path,
    items: Sequence[pytest.Item],
    baselines: Mapping[str, Mapping[str, Entry]],
    several: Collection[str],
) -> None:
    """Has the controller know which tests are to run in one worker: those of one `xdist_group`.

    And what the tests' `baselines` say: on which GPUs their processes were, as digests, and their
    lengths. Those that need `several` GPUs are longer than any: these are free at once before
    others begin.
    """
    from pytest_gpuperf.storage import files

    groups = {}
    for item in items:
        markers = item.iter_markers("xdist_group")
        names = {str(of.args[0] if of.args else of.kwargs.get("name", "default")) for of in markers}
        if names:
            groups[item.nodeid] = "_".join(sorted(names))  # as pytest-xdist does
    gpus = {
        test: sorted({gpu for entry in entries.values() for gpu in entry.gpus})
        for test, entries in baselines.items()
    }
    lengths_ms = {test: _length_ms(entries.values()) for test, entries in baselines.items()}
    lengths_ms |= dict.fromkeys(several, math.inf)
    told = {"groups": groups, "known": gpus, "lengths_ms": lengths_ms}
    files.write_atomically(folder / _TOLD, json.dumps(told))  # all workers say the same


def _length_ms(entries: Iterable[Entry]) -> float:
    """A test's length beside others': the wall time of its steps, and more where any is compiled.

    0 where nobody looked.
    """
    from pytest_gpuperf.model.measurement import STEP

    steps = [entry.samples.get(STEP, {}) for entry in entries]
    times, graphs = (
        [median(chain.from_iterable(step[metric])) for step in steps if step.get(metric)]
        for metric in ("wall_time", "compiled_graphs")
    )
    return math.fsum(times) + _COMPILING_MS * any(graphs)


def reorders(config: pytest.Config) -> bool:
    """Whether the order of tests is ours: neither kept, nor those first that failed or are new."""
    asked = any(config.getoption(name, False) for name in ("failedfirst", "newfirst"))
    return bool(config.getoption("loadscopereorder", True)) and not asked  # it came with xdist 3.8


def scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    """What has workers with GPUs run which test, under plain `-n` or by group; None elsewhere.

    Tests of one group stay together, and no worker has more tests waiting than it needs to go on:
    one of ours may take minutes. The longest come first, unless an order was asked for.
    Each test has a GPU, on which it runs while that has other work too, since GPUs of one name
    differ: one that its baseline has processes of; else, by its name, the same in every session, of
    which a baseline is made.
    """
    if not dealt(config) or config.getoption("dist") not in ("load", "loadgroup"):
        return None
    from xdist.scheduler import LoadScopeScheduling

    digests = {gpu.uuid: gpu.device.identity for gpu in gpus(config)}

    def gpu_of(node: Any) -> str | None:
        return digests.get(node.gateway.spec.env.get(_VISIBLE, ""))

    class GpuScheduling(LoadScopeScheduling):  # type: ignore[misc]
        """Work by the group; without one each test by itself."""

        _groups: Mapping[str, str] = {}
        _known: Mapping[str, Collection[str]] | None = None
        _lengths_ms: Mapping[str, float] = {}
        _unordered = reorders(config)
        _here: Collection[str] = ()
        _homes: dict[str, Collection[str]]
        workqueue: OrderedDict[str, dict[str, bool]]
        assigned_work: dict[Any, dict[str, dict[str, bool]]]

        def schedule(self) -> None:
            """Called first when all workers have collected, and have told of their tests."""
            file = Path(config.stash[_FOLDER].name, _TOLD)
            if self._known is None:
                told = json.loads(file.read_bytes()) if file.exists() else {}
                self._groups, self._known = told.get("groups", {}), told.get("known", {})
                self._lengths_ms = told.get("lengths_ms", {})
                self._here, self._homes = {gpu for gpu in map(gpu_of, self.nodes) if gpu}, {}
                self._order_workers()
            super().schedule()

        def _order_workers(self) -> None:
            """Puts those last of which more than there is work are not used.

            First those of a GPU that has a worker already, and of them those of no test's GPU.
            """
            units: defaultdict[str, list[str]] = defaultdict(list)
            for nodeid in next(iter(self.registered_collections.values())):
                units[self._split_scope(nodeid)].append(nodeid)
            homes = {gpu for scope, unit in units.items() for gpu in self._home(scope, unit)}
            of_gpu: Counter[str | None] = Counter()
            turns = {}
            for node in self.nodes:
                gpu = gpu_of(node)
                turns[node] = (of_gpu[gpu], gpu not in homes)
                of_gpu[gpu] += 1
            for node in sorted(turns, key=turns.__getitem__):
                self.assigned_work[node] = self.assigned_work.pop(node)

        def _split_scope(self, nodeid: str) -> str:
            return self._groups.get(nodeid, nodeid)

        def _known_for(self, unit: Collection[str]) -> set[str]:
            tests = self._known or {}
            return {gpu for test in unit for gpu in tests.get(test, ()) if gpu in self._here}

        def _home(self, scope: str, unit: Collection[str]) -> Collection[str]:
            if scope not in self._homes:
                by_name = (
                    {max(self._here, key=lambda gpu: _claim(gpu, scope))} if self._here else ()
                )
                self._homes[scope] = self._known_for(unit) or by_name
            return self._homes[scope]

        def _assign_work_unit(self, node: Any) -> None:
            if self._unordered:
                self._unordered = False
                self.workqueue = self._longest_first()
            own, queue = gpu_of(node), self.workqueue
            wanted = (scope for scope, unit in queue.items() if own in self._home(scope, unit))
            free = (scope for scope, unit in queue.items() if not self._known_for(unit))
            queue.move_to_end(next(chain(wanted, free, queue)), last=False)
            super()._assign_work_unit(node)
            # What comes next is dealt in this order: first to those that are done first.
            for other in sorted(self.nodes, key=self._left_ms):
                self.assigned_work[other] = self.assigned_work.pop(other)

        def _left_ms(self, node: Any) -> float:
            units = self.assigned_work[node].values()
            left = [nodeid for unit in units for nodeid, done in unit.items() if not done]
            return math.fsum(self._lengths_ms.get(nodeid, 0.0) for nodeid in left)

        def _longest_first(self) -> OrderedDict[str, dict[str, bool]]:
            """The work by its length, but a module's together, for its fixtures.

            What nobody knows is last, in its order: claims come after what they compare.
            """
            queue = self.workqueue
            modules = {scope: next(iter(unit)).partition("::")[0] for scope, unit in queue.items()}
            lengths_ms = {
                scope: math.fsum(self._lengths_ms.get(test, 0.0) for test in unit)
                for scope, unit in queue.items()
            }
            of_module: defaultdict[str, float] = defaultdict(float)
            for scope, of_unit in lengths_ms.items():
                of_module[modules[scope]] += 0.0 if math.isinf(of_unit) else of_unit

            def turn(scope: str) -> tuple[bool, float, float]:
                needs_several = math.isinf(lengths_ms[scope])
                return not needs_several, -of_module[modules[scope]], -lengths_ms[scope]

            return OrderedDict((scope, queue[scope]) for scope in sorted(queue, key=turn))

        def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
            """Ends the session where one in the place of a worker that died has other tests."""
            super().add_node_collection(node, collection)
            if node not in self.registered_collections:
                others = sorted({*collection} ^ {*(self.collection or ())})
                them = ", ".join(others[:3]) or "another order"
                pytest.exit(
                    f"{node.gateway.id}, in the place of a worker that died, collected other tests "
                    f"than those before it: {them}. Where they are made of a set, sort it",
                    returncode=pytest.ExitCode.TESTS_FAILED,
                )

        def _reschedule(self, node: Any) -> None:
            # The one in the place of a worker that died has collected nothing at first.
            if node.shutting_down or node not in self.registered_collections:
                return
            # A worker begins a test when it knows which is next, or that none is.
            while self.workqueue and self._pending_of(self.assigned_work[node]) < _NEEDED:
                self._assign_work_unit(node)
            if not self.workqueue:
                node.shutdown()

        def remove_node(self, node: Any) -> str | None:
            """The test that the worker died in is lost, and not run again; all others are."""
            if self.collection is None:  # the one in its place collects, too
                self.registered_collections.pop(node, None)
            left = {
                scope: unit
                for scope, unit in self.assigned_work.pop(node).items()
                if not all(unit.values())
            }
            if not left:
                return None
            unit = next(iter(left.values()))
            died: str = next(nodeid for nodeid, done in unit.items() if not done)
            unit[died] = True
            self.workqueue = OrderedDict(
                {scope: unit for scope, unit in left.items() if not all(unit.values())}
                | self.workqueue
            )
            for other in self.nodes:
                self._reschedule(other)
            return died

    return GpuScheduling(config, log)


def _claim(gpu: str, scope: str) -> bytes:
    """How much a test is this GPU's: of equal chances for all, which no checksum has."""
    return sha256(f"{gpu} {scope}".encode("utf-8", "surrogatepass")).digest()


def _fitting(config: pytest.Config) -> tuple[VisibleGpu, ...]:
    from pytest_gpuperf.measure.instrument import STAND_IN

    found = fitting(options.read_settings(config).arch)
    # Two revisions are compared on one GPU, and that is the only one that is held for it.
    return found[:1] if STAND_IN in os.environ else found


def _measures(config: pytest.Config) -> bool:
    """Whether tests of this session may measure on a GPU, as far as can be seen before them."""
    settings = options.read_settings(config)
    if config.option.collectonly or settings.replay is not None:
        return False
    if settings.arch == "cpu" or settings.collector == "cpu":
        return False
    if not any(node.exists() for node in _DRIVERS):
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
    seen = set()  # links may lead in a circle
    for argument in config.args:
        named = argument.partition("::")[0]
        path = config.invocation_params.dir / named
        if config.option.pyargs and not path.exists():
            path = _package(named.partition(".")[0]) or path
        if path.is_file():
            yield path
        for folder, below, names in os.walk(path, followlinks=True):
            real = os.path.realpath(folder)
            if real in seen:
                below.clear()
                continue
            seen.add(real)
            below[:] = [name for name in below if not any(fnmatch(name, of) for of in ignored)]
            yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _package(name: str) -> Path | None:
    """The folder of a package, or the file of a module, which is not imported for it."""
    try:
        spec = find_spec(name)
    except ValueError:  # no name of a module, or one that was made by hand
        return None
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return Path(places[0]) if places and places[0] else None
