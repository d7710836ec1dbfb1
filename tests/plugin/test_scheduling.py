"""Which worker runs which test, and on which GPU: the scheduler by itself, with scripted GPUs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.model.entry import Entry
from pytest_gpuperf.plugin import workers
from tests.plugin.projects import STEP, Project
from tests.plugin.several_gpus import on_three_gpus

xdist = pytest.importorskip("xdist.workermanage")


@pytest.fixture
def host(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a host with three GPUs, one of another kind."""
    return on_three_gpus(project, monkeypatch)


class Worker:
    """A worker as a scheduler sees it, which notes what it is sent."""

    shutting_down = False

    def __init__(self, name: str, spec: Any) -> None:
        self.gateway = SimpleNamespace(id=name, spec=spec)
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


NAMES = ["a1", "b1", "a2", "c", "d", "e", "f"]
GROUP = "@pytest.mark.xdist_group('a')\n"


def entry(gpus: Sequence[str], step_ms: float | None, *, compiled: bool = False) -> Entry:
    """Two processes on these GPUs; the shorter a step, the more it was disturbed once."""
    times = ((step_ms, step_ms), (step_ms, 99 - step_ms)) if step_ms is not None else ()
    graphs = ((float(compiled),),) * 2
    samples = {"step": {"wall_time": times, "compiled_graphs": graphs} if times else {}}
    return Entry("2026-03-01", "", {}, {}, {}, "", samples, tuple(gpus))


def scheduling(
    host: Project,
    count: int,
    known: Mapping[str, str] | None = None,
    names: Sequence[str] = NAMES,
    steps_ms: Mapping[str, float] | None = None,
    several: str = "",
    compiled: str = "",
) -> tuple[Any, list[Worker]]:
    """A scheduler of so many workers that have collected these, of which a1 and a2 are a group.

    The baselines of tests have processes of those GPUs of the host that they are `known` for, and
    a step takes so long there. A test of `several` GPUs has that name, and one that is `compiled`.
    """
    functions = [
        f"{GROUP if name[0] == 'a' else ''}def test_{name}(gpuperf): pass\n" for name in names
    ]
    items = host.pytester.getitems("import pytest\n" + "".join(functions))
    config = host.pytester.parseconfigure("--dist=load", *["--tx=popen"] * count)
    specs = [xdist.execnet.XSpec("popen") for _ in range(count)]
    workers.deal(config, specs)
    digests = {gpu.uuid[-1]: gpu.device.identity for gpu in workers.gpus(config)}
    by_name = dict(zip(names, items, strict=True))
    baselines = {
        item.nodeid: {
            "step": entry(
                [digests.get(gpu, gpu) for gpu in (known or {}).get(name, "")],
                (steps_ms or {}).get(name),
                compiled=name == compiled,
            )
        }
        for name, item in by_name.items()
    }
    told = [by_name[several].nodeid] if several else []
    workers.tell(Path(config.stash[workers._FOLDER].name), items, baselines, told)
    made: Any = workers.scheduler(config, xdist.Producer("test"))
    nodes = [Worker(f"gw{number}", spec) for number, spec in enumerate(specs)]
    for node in nodes:
        made.add_node(node)
        made.add_node_collection(node, [item.nodeid for item in items])
    made.schedule()
    return made, nodes


SHARED = {"a1": "a", "b1": "b", "c": "b", "d": "b", "e": "a", "f": "b"}
"""Whose GPU each test is, but that of a group."""


def test_a_group_stays_together_and_nobody_has_more_work_than_it_needs(host: Project) -> None:
    made, (one, two) = scheduling(host, 2, SHARED)
    assert [NAMES[number] for number in one.sent] == ["a1", "a2"]
    assert [NAMES[number] for number in two.sent] == ["b1", "c"]
    made.mark_test_complete(two, 1)
    assert [NAMES[number] for number in two.sent[2:]] == ["d"]
    made.mark_test_complete(one, 0)
    assert [NAMES[number] for number in one.sent[2:]] == ["e"]


@pytest.mark.parametrize(
    ("known", "one", "two"),
    [
        # Each has what its own GPU is known for, in order, and then what nobody is.
        ({"b1": "b", "e": "a"}, ["a1", "a2", "d"], ["b1", "c", "f"]),
        ({"b1": "a", "c": "a", "d": "a"}, ["a1", "a2", "b1"], ["e", "f", "c"]),
        # A group goes where one of its tests is known.
        ({"a2": "b"}, ["b1", "c", "d"], ["a1", "a2", "e"]),
        # Whoever has nothing else takes what is known elsewhere.
        (dict.fromkeys(NAMES, "a"), ["a1", "a2", "d"], ["b1", "c", "e"]),
        # Known for both, and for a GPU that is not here.
        (dict.fromkeys(NAMES, "ab"), ["a1", "a2", "d"], ["b1", "c", "e"]),
        (dict.fromkeys(NAMES, "z"), ["a1", "a2", "d"], ["b1", "c", "e"]),
    ],
)
def test_a_test_runs_on_a_gpu_that_its_baseline_knows_while_there_is_other_work(
    host: Project,
    known: dict[str, str],
    one: list[str],
    two: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What no baseline knows is the first GPU's here."""
    first = nvml.visible_gpus()[0].device.identity
    monkeypatch.setattr(workers, "_claim", lambda gpu, _: gpu == first)
    made, nodes = scheduling(host, 2, known)
    for node in nodes:
        made.mark_test_complete(node, node.sent[0])
    assert [[NAMES[number] for number in node.sent] for node in nodes] == [one, two]


@pytest.mark.parametrize(
    ("steps_ms", "special", "one"),
    [
        ({}, {}, ["a1", "a2", "b1", "c"]),  # a group of two first, and then as they stand
        ({"d": 5.0, "f": 7.0}, {}, ["f", "d", "a1", "a2"]),
        ({"a2": 6.0, "d": 5.0, "f": 7.0}, {}, ["f", "a1", "a2", "d"]),
        ({"a1": 4.0, "a2": 4.0, "d": 5.0, "f": 7.0}, {}, ["a1", "a2", "f", "d"]),
        # What is compiled takes seconds before its first execution.
        ({"d": 5.0, "f": 7.0, "e": 1.0}, {"compiled": "e"}, ["e", "f", "d", "a1", "a2"]),
        ({"d": 5.0, "f": 1007.0, "e": 6.0}, {"compiled": "e"}, ["f", "e", "d", "a1", "a2"]),
        # Several GPUs are free at once only before others begin.
        ({"d": 5.0, "f": 7.0}, {"several": "e"}, ["e", "f", "d", "a1", "a2"]),
    ],
)
def test_by_their_baselines_the_longest_steps_begin_first(
    host: Project, steps_ms: dict[str, float], special: dict[str, Any], one: list[str]
) -> None:
    """Those of a group together; what nobody knows comes last, in its order."""
    made, (node,) = scheduling(host, 1, steps_ms=steps_ms, **special)
    for done in range(2):
        made.mark_test_complete(node, node.sent[done])
    assert [NAMES[number] for number in node.sent[: len(one)]] == one


def test_a_module_s_tests_stay_together_and_who_wants_no_other_order_has_none(
    host: Project,
) -> None:
    """Its fixtures may be costly. One of several GPUs goes before everything."""
    host.tests(STEP)
    items = ["a.py::one", "a.py::two", "b.py::one", "b.py::two", "c.py::both"]
    lengths_ms = dict(zip(items, (3.0, 5.0, 6.0, 1.0, math.inf), strict=True))
    told = {"groups": {}, "known": {}, "lengths_ms": lengths_ms}

    def order(*flags: str) -> list[str]:
        config = host.pytester.parseconfigure("--dist=load", "--tx=popen", *flags)
        spec = xdist.execnet.XSpec("popen")
        workers.deal(config, [spec])
        Path(config.stash[workers._FOLDER].name, workers._TOLD).write_text(json.dumps(told))
        made: Any = workers.scheduler(config, xdist.Producer("test"))
        node = Worker("gw0", spec)
        made.add_node(node)
        made.add_node_collection(node, items)
        made.schedule()
        for done in range(3):
            made.mark_test_complete(node, node.sent[done])
        return [items[number] for number in node.sent]

    assert order() == ["c.py::both", "a.py::two", "a.py::one", "b.py::one", "b.py::two"]
    assert order("--no-loadscope-reorder") == items


def test_a_test_of_another_gpu_is_taken_over_when_all_of_ones_own_have_begun(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long it takes; and then the longest."""
    monkeypatch.setattr(workers, "_claim", lambda *_: 0)
    known = {"b1": "a", "c": "a", "d": "b", "e": "b", "f": "b", "a1": "b"}
    steps_ms = {"b1": 1.0, "c": 2.0, "d": 3.0, "e": 4.0, "f": 5.0, "a1": 0.5}
    made, (one, _) = scheduling(host, 2, known, steps_ms=steps_ms)
    made.mark_test_complete(one, one.sent[0])
    assert [NAMES[number] for number in one.sent] == ["c", "b1", "d"]


def test_without_a_baseline_a_test_has_the_same_gpu_in_every_session(host: Project) -> None:
    """But for the last, which go to whoever has nothing else."""
    names = [f"t{number}" for number in range(40)]

    def session(turns: Sequence[int]) -> dict[int, str]:
        made, nodes = scheduling(host, 2, names=names)
        ran: dict[int, str] = {}
        for turn in cycle(turns):
            node = nodes[turn]
            waiting = [number for number in node.sent if number not in ran]
            if not waiting:
                break
            ran[waiting[0]] = node.gateway.spec.env["CUDA_VISIBLE_DEVICES"]
            made.mark_test_complete(node, waiting[0])
        return ran

    one, other = session([0, 1]), session([1, 0, 0, 1, 1])
    both = one.keys() & other.keys()
    assert len(both) > 25
    assert sum(one[number] == other[number] for number in both) > 0.8 * len(both)
    assert {*one.values()} == {"GPU-a", "GPU-b"}


def test_of_more_workers_than_tests_those_are_used_whose_gpus_are_known(host: Project) -> None:
    _, nodes = scheduling(host, 2, {"a1": "b"}, names=["a1"])
    assert [(node.sent, node.shutting_down) for node in nodes] == [([], True), ([0], True)]


@pytest.mark.parametrize("name", ["b1", "c", "d", "e", "f"])
def test_a_single_test_runs_on_its_own_gpu(host: Project, name: str) -> None:
    _, nodes = scheduling(host, 2, names=[name])
    gpus = {node.gateway.spec.env["CUDA_VISIBLE_DEVICES"]: node for node in nodes}
    digests = {gpu.uuid: gpu.device.identity for gpu in nvml.visible_gpus()}
    scope = f"test_a_single_test_runs_on_its_own_gpu.py::test_{name}"
    own = max(gpus, key=lambda uuid: workers._claim(digests[uuid], scope))
    assert [uuid for uuid, node in gpus.items() if node.sent] == [own]


def test_of_more_workers_than_tests_no_gpu_has_two_while_another_is_idle(host: Project) -> None:
    _, nodes = scheduling(host, 4, {"b1": "b", "c": "b"}, names=["b1", "c"])
    used = {node.gateway.spec.env["CUDA_VISIBLE_DEVICES"] for node in nodes if node.sent}
    assert used == {"GPU-a", "GPU-b"}


def test_every_gpu_has_tests_of_its_own() -> None:
    """Of 800 tests 100 on each of eight, by their names; three standard deviations are 28."""
    gpus = [sha256(f"GPU-{number}".encode()).hexdigest()[:12] for number in range(8)]
    tests = [f"tests/test_steps.py::test_step[{number:03}]" for number in range(800)]
    owners = Counter(max(gpus, key=lambda gpu: workers._claim(gpu, test)) for test in tests)
    assert {gpu: 70 < count < 130 for gpu, count in owners.items()} == dict.fromkeys(gpus, True)


def test_the_second_test_goes_first_to_who_is_done_first(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has to know of its next test before it begins one."""
    monkeypatch.setattr(workers, "_claim", lambda *_: 0)
    steps_ms = {"b1": 30.0, "c": 1.0, "d": 0.5, "e": 0.4}
    _, nodes = scheduling(host, 2, names=["b1", "c", "d", "e"], steps_ms=steps_ms)
    sent = [[["b1", "c", "d", "e"][number] for number in node.sent] for node in nodes]
    assert sorted(sent) == [["b1", "e"], ["c", "d"]]


@pytest.mark.parametrize("collected", [["b1", "c", "d", "e", "f"], ["f", *NAMES[:-1]]])
def test_who_collects_other_tests_in_the_place_of_a_worker_ends_the_session(
    host: Project, collected: list[str]
) -> None:
    made, (one, two) = scheduling(host, 2, SHARED)
    names = {name: made.collection[number] for number, name in enumerate(NAMES)}
    made.remove_node(one)
    other = Worker("gw2", two.gateway.spec)
    made.add_node(other)
    with pytest.raises(pytest.exit.Exception, match=r"gw2, in the place of .* sort it") as ended:
        made.add_node_collection(other, [names[name] for name in collected])
    assert ("test_a1" in str(ended.value)) is ("a1" not in collected)
    assert ("another order" in str(ended.value)) is ("a1" in collected)


def test_groups_within_groups_are_those_of_xdist(host: Project, tmp_path: Path) -> None:
    items = host.pytester.getitems(
        """
        import pytest

        @pytest.mark.xdist_group("b")
        class TestB:
            @pytest.mark.xdist_group("a")
            def test_both(self): pass
            def test_one(self): pass
        """
    )
    workers.tell(tmp_path, items, {}, [])
    groups = json.loads((tmp_path / workers._TOLD).read_bytes())["groups"]
    assert [*groups.values()] == ["a_b", "b"]


def test_of_a_worker_that_dies_the_test_is_lost_that_it_ran(host: Project) -> None:
    made, (one, two) = scheduling(host, 2, SHARED)
    assert made.remove_node(one).endswith("test_a1")
    done = 0
    while done < len(two.sent):
        made.mark_test_complete(two, two.sent[done])
        done += 1
    # All else of the other's comes after what is its own.
    assert [NAMES[number] for number in two.sent] == ["b1", "c", "d", "f", "a2", "e"]


def test_the_test_that_the_last_worker_dies_in_is_lost(host: Project) -> None:
    made, (one, two) = scheduling(host, 2, SHARED)
    made.mark_test_complete(two, 1)
    made.remove_node(one)
    assert made.remove_node(two).endswith("test_c")


def test_who_asks_for_another_distribution_has_it(host: Project) -> None:
    host.tests(STEP)
    for dist, dealt, ours in (
        ("loadfile", True, False),
        ("load", False, False),
        ("loadgroup", True, True),  # which is what ours does
    ):
        config = host.pytester.parseconfigure(f"--dist={dist}", "--tx=popen")
        if dealt:
            workers.deal(config, [xdist.execnet.XSpec("popen")])
        assert (workers.scheduler(config, xdist.Producer("test")) is not None) == ours, dist


@pytest.mark.parametrize("flag", ["--no-loadscope-reorder", "--ff", "--nf"])
def test_an_order_that_was_asked_for_is_kept(host: Project, flag: str) -> None:
    host.tests(STEP)
    assert workers.reorders(host.pytester.parseconfig())
    assert not workers.reorders(host.pytester.parseconfig(flag))
