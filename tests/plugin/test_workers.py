"""Workers of pytest-xdist on a host with several GPUs, all of them scripted."""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.measure.device import allotment, nvml
from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.model.entry import Entry
from pytest_gpuperf.plugin import hooks, workers
from tests.plugin.projects import STEP, Project
from tests.plugin.scripted import A100
from tests.scripted_nvml import Gpu, Library

xdist = pytest.importorskip("xdist.workermanage")

HOST = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
from pytest_gpuperf.plugin import workers
from tests.scripted_nvml import Gpu, Library

workers._DRIVERS = (Path("/dev/null"),)

class Host(Library):
    # Every process that this one's parent has started is on every GPU.
    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle):
        handle.processes = []
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended meanwhile
                name, _, of = file.read_text().rpartition(")")
                if int(of.split()[1]) == os.getppid():
                    handle.processes.append(int(name.split()[0]))
        return super().nvmlDeviceGetComputeRunningProcesses_v3(handle)

sys.modules["pynvml"] = Host([
    Gpu(uuid, name="NVIDIA A100-SXM4-80GB", capability=(8, 0), cpus=[0x3])
    for uuid in ("GPU-a", "GPU-b", "GPU-c")
])
VISIBLE = os.environ.get("CUDA_VISIBLE_DEVICES")
THREADS = os.environ.get("OMP_NUM_THREADS")
"""
"""At the end of a conftest file, which sees its environment as it is when it is imported."""

TESTS = """
import json, os, sys
from contextlib import contextmanager
import pytest
import conftest

@contextmanager
def alone(gpus):
    # Whoever else has one of these GPUs meanwhile finds that it is taken.
    for uuid in gpus:
        os.close(os.open(uuid, os.O_CREAT | os.O_EXCL))
    yield
    for uuid in gpus:
        os.unlink(uuid)

def use(gpuperf, name):
    with alone(gpuperf.gpus):
        gpuperf.measure(lambda: None)
    said = conftest.VISIBLE, gpuperf.gpus, conftest.THREADS, sorted(os.sched_getaffinity(0))
    with open("diary", "a") as diary:
        print(json.dumps([name, os.environ["PYTEST_XDIST_WORKER"], *said]), file=diary)

@pytest.mark.gpu
@pytest.mark.parametrize("number", range(4))
def test_of_others(number):
    with alone([conftest.VISIBLE]):
        os.sched_yield()

@pytest.mark.parametrize("number", range(6))
def test_one(gpuperf, number): use(gpuperf, "one")

@pytest.mark.gpus(2)
@pytest.mark.parametrize("number", range(2))
def test_two(gpuperf, number): use(gpuperf, "two")

@pytest.mark.gpus(3)
def test_three(gpuperf): raise AssertionError("ran")

def test_last_words(gpuperf):
    gpuperf.measure(lambda: None)
    os._exit(3)
"""


def has_gpus(project: Project, more: str = "") -> None:
    """The project's device is several, as `HOST` has them; `more` of the conftest file follows."""
    project.device()
    conftest = project.root / "conftest.py"
    conftest.write_text(conftest.read_text("utf-8") + HOST + more, encoding="utf-8")


def test_workers_have_gpus_of_their_own_share_them_and_are_replaced(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three on two GPUs, one of which dies while it holds its own."""
    has_gpus(project)
    project.tests(TESTS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0,7,1")
    for variable in ("OMP_NUM_THREADS", STAND_IN):
        monkeypatch.delenv(variable, raising=False)
    result = project.run_apart("-n3", "-rs", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    # The dead worker's test alone is lost.
    result.assert_outcomes(passed=12, failed=1, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "*worker 'gw?' crashed while running 'test_steps.py::test_last_words'",
            "SKIPPED*: needs 3 GPUs of one kind; 2 here for the test to have",
        ]
    )
    diary = [json.loads(line) for line in (project.root / "diary").read_text("utf-8").splitlines()]
    assert len(diary) == 8
    visible = {worker: own for _, worker, own, *_ in diary}
    names = {"gw0": "GPU-c", "gw1": "GPU-a", "gw2": "GPU-c"}
    assert visible.items() <= {**names, "gw3": visible.get("gw3")}.items()
    assert visible.get("gw3") in (None, "GPU-c", "GPU-a")
    for name, _, own, gpus, threads, cpus in diary:
        other = "GPU-a" if own == "GPU-c" else "GPU-c"
        assert gpus == ([own, other] if name == "two" else [own])
        assert threads is None or int(threads) <= len(cpus)
    # The controller alone writes, and of each test once. Nobody was a stranger.
    measured = project.saved().measurements
    assert len(measured) == len({measurement.test for measurement in measured}) == 8
    for measurement in measured:
        conditions = measurement.fingerprint.conditions
        assert conditions is not None
        assert conditions.before.other_processes == conditions.after.other_processes == ()


DYING = """
from time import sleep

def others_begin(worker):
    # One that takes the place of another follows when that has been seen to be dead.
    while not os.path.exists(worker):
        sleep(0.01)

ME = os.environ.get("PYTEST_XDIST_WORKER", "controller")
Path(ME).touch()
"""
"""Below `HOST`: workers that die, and wait for each other's end."""


@pytest.mark.parametrize(
    ("count", "conftest", "step", "failed"),
    [
        # The one in its place is sent two tests, as it begins one when it knows of the next.
        (1, "", "ME == 'gw0'", 1),
        # Both; the first one in their place collects while the second dies.
        (2, "ME == 'gw2' and others_begin('gw3')", "ME in ('gw0', 'gw1')", 2),
        # With all its tests collected, before the other has.
        (
            2,
            """
def pytest_collection_finish():
    if ME == "gw0":
        os._exit(3)
def pytest_collection():
    if ME == "gw1":
        others_begin("gw2")
""",
            "False",
            0,
        ),
    ],
)
def test_whoever_dies_and_whenever_all_other_tests_run(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    conftest: str,
    step: str,
    failed: int,
) -> None:
    has_gpus(project, DYING + conftest)
    project.tests(
        f"""
        import os
        import pytest
        from conftest import ME

        @pytest.mark.parametrize("number", range(6))
        def test_one(gpuperf, number):
            if {step}:
                os._exit(3)
            gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    flags = (f"-n{count}", "--gpuperf-missing=warn", "--gpuperf-processes=1")
    result = project.pytester.runpytest_subprocess(*flags, timeout=60)
    result.assert_outcomes(passed=6 - failed, failed=failed)


def gpu(uuid: str, **others: Any) -> Gpu:
    return Gpu(uuid, **{"name": A100["name"], "capability": (8, 0), **others})


@pytest.fixture
def host(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a host with three GPUs, one of another kind."""
    hopper = Gpu("GPU-h", name="NVIDIA H200", capability=(9, 0))
    library = Library([gpu("GPU-a"), hopper, gpu("GPU-b")])
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(workers, "_DRIVERS", (Path("/dev/null"),))
    variables = ("CUDA_VISIBLE_DEVICES", "PYTEST_XDIST_AUTO_NUM_WORKERS", "OMP_NUM_THREADS")
    for variable in (*variables, STAND_IN):
        monkeypatch.delenv(variable, raising=False)
    return project


def started(project: Project, *arguments: str) -> list[dict[str, str]]:
    """What is added to the environment of each worker."""
    config = project.pytester.parseconfigure(*arguments)
    specs = [xdist.execnet.XSpec(spec) for spec in config.getvalue("tx")]
    workers.deal(config, specs)
    return [dict(spec.env) for spec in specs]


def counted(project: Project, *arguments: str) -> int | None:
    """How many workers we would have `-n auto` start."""
    return workers.count(project.pytester.parseconfig("-nauto", *arguments))


def test_auto_is_a_worker_per_gpu_that_fits_where_something_is_measured(host: Project) -> None:
    host.tests(STEP)
    assert counted(host) == 2
    assert counted(host, "--gpu-arch=sm90") == 1
    assert counted(host, "test_steps.py::test_step") == 2
    for elsewhere in ("--gpu-arch=cpu", "--gpuperf-collector=cpu", "--gpu-arch=sm70", "--co"):
        assert counted(host, elsewhere) is None, elsewhere


def test_workers_of_one_revision_of_two_share_the_gpu_that_is_held_for_both(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    monkeypatch.setenv(STAND_IN, str(host.root))
    assert counted(host) == 1
    dealt = started(host, "--tx=popen", "--tx=popen")
    assert [own["CUDA_VISIBLE_DEVICES"] for own in dealt] == ["GPU-a", "GPU-a"]


def test_who_says_how_many_workers_there_are_is_believed(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    monkeypatch.setenv("PYTEST_XDIST_AUTO_NUM_WORKERS", "5")
    assert counted(host) is None
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS")
    host.pytester.makeconftest("def pytest_xdist_auto_num_workers(config): return 7")
    assert counted(host) is None


def test_without_a_driver_no_file_is_read(host: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    host.tests(STEP)
    monkeypatch.setattr(workers, "_DRIVERS", ())
    monkeypatch.setattr(workers, "_files", None)
    assert counted(host) is None


def test_who_does_not_use_us_keeps_all_gpus(host: Project) -> None:
    host.tests("def test_plain(): pass")
    assert counted(host) is None
    assert started(host, "--tx=popen", "--tx=popen") == [{}, {}]
    # A flag, a setting or a conftest file of ours says that it does.
    assert counted(host, "--gpu-arch=auto") == 2
    host.ini("gpuperf_rounds = 3")
    assert counted(host) == 2
    host.ini()
    host.pytester.makeconftest("# gpuperf is used by a fixture here")
    assert counted(host) == 2


def test_tests_are_looked_for_where_pytest_finds_them(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below links, those in a circle too, and in a package by its name."""
    package = host.root / "elsewhere" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "test_it.py").write_text("def test_it(gpuperf): pass", encoding="utf-8")
    inside = host.root / "inside"
    inside.mkdir()
    assert counted(host, "inside") is None
    (inside / "circle").symlink_to(inside)
    (inside / "linked").symlink_to(package)
    assert counted(host, "inside") == 2
    assert counted(host, "--pyargs", "package") is None
    monkeypatch.syspath_prepend(package.parent)
    for name in ("package", "package.test_it", "package.test_it::test_it"):
        assert counted(host, "--pyargs", name) == 2, name
    assert "package" not in sys.modules
    for name in ("no.such", "__main__", "sys"):
        assert counted(host, "--pyargs", name) is None, name


def test_a_worker_runs_on_its_own_processors_from_the_start() -> None:
    """And where it may not, on those that it has."""
    allowed = sorted(os.sched_getaffinity(0))
    group = xdist.execnet.Group(execmodel="main_thread_only")
    for cpus, has in ((allowed[-1:], allowed[-1:]), ((4095,), allowed)):
        own = allotment.Allotment(("GPU-a",), "", os.getpid(), cpus=tuple(cpus), threads=1)
        gateway = group.makegateway("popen")
        gateway.spec.env[allotment.VARIABLE] = own.to_text()
        workers.bind(SimpleNamespace(gateway=gateway))
        asked = gateway.remote_exec("import os; channel.send(sorted(os.sched_getaffinity(0)))")
        assert asked.receive() == has
    group.terminate(1)


def test_threads_are_as_many_as_cores_unless_somebody_has_said_how_many(
    host: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.tests(STEP)
    cores = [frozenset({number}) for number in range(6)]
    monkeypatch.setattr(allotment, "own_cores", lambda: cores)
    two = ("--tx=popen", "--tx=popen//env:OMP_NUM_THREADS=1")
    assert [own["OMP_NUM_THREADS"] for own in started(host, *two)] == ["3", "1"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert not any("OMP_NUM_THREADS" in own for own in started(host, "--tx=popen", "--tx=popen"))


def test_a_worker_that_somebody_has_placed_stays_there(host: Project) -> None:
    host.tests(STEP)
    mine = "--tx=popen//env:CUDA_VISIBLE_DEVICES=1"
    placed, ours = started(host, mine, "--tx=popen")
    assert placed == {"CUDA_VISIBLE_DEVICES": "1"}
    assert ours["CUDA_VISIBLE_DEVICES"] == "GPU-a"


def test_a_number_of_gpus_is_a_whole_one(host: Project) -> None:
    for marker in ("gpus", "gpus(0)", "gpus(1, 2)", "gpus('2')", "gpus(n=2)"):
        host.tests(f"import pytest\n@pytest.mark.{marker}\ndef test_step(gpuperf): pass")
        result = host.run("--gpu-arch=cpu")
        assert result.ret == pytest.ExitCode.USAGE_ERROR, marker
        result.stderr.fnmatch_lines(["ERROR: test_steps.py::test_step: *gpus*"])


def test_without_workers_a_test_has_the_first_gpus_that_its_process_sees(host: Project) -> None:
    host.device()
    host.tests(
        """
        import pytest

        @pytest.mark.gpus(2)
        def test_two(gpuperf): assert gpuperf.gpus == ("GPU-a", "GPU-b")
        def test_one(gpuperf): assert gpuperf.gpus == ("GPU-a",)

        @pytest.mark.gpus(3)
        def test_three(gpuperf): raise AssertionError("ran")
        """
    )
    host.run().assert_outcomes(passed=2, skipped=1)


def test_a_fresh_process_has_what_the_test_holds_that_started_it(
    host: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It holds nothing itself: its session does."""
    told = allotment.Allotment(("GPU-b", "GPU-a"), str(tmp_path), os.getppid())
    monkeypatch.setenv(allotment.VARIABLE, told.passed_on(["GPU-b", "GPU-a"]).to_text())
    host.device()
    host.tests(
        """
        import os, pytest

        @pytest.mark.gpus(2)
        def test_two(gpuperf):
            assert gpuperf.gpus == ("GPU-b", "GPU-a")
            assert "GPUPERF_ALLOTMENT" not in os.environ
        """
    )
    host.run().assert_outcomes(passed=1)


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


def test_where_all_workers_die_with_their_tests_collected_nothing_is_green(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    dying = "def pytest_collection_finish(): 'PYTEST_XDIST_WORKER' in os.environ and os._exit(3)\n"
    has_gpus(project, dying)
    project.tests(STEP)
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", "--max-worker-restart=0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuperf: the workers died before any test ran"])


def test_where_nobody_can_be_told_tests_say_so(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that is full."""
    full = """
from pytest_gpuperf.errors import UsageFailure

def tell(folder, *_):
    raise UsageFailure(f"{folder}: cannot be written: No space left on device")

workers.tell = tell
"""
    has_gpus(project, full)
    project.tests(f"{dedent(STEP)}\ndef test_other(): pass\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", "--gpuperf-processes=1")
    result.assert_outcomes(passed=1, errors=1)
    # No line of the test has run: it stands where the test does.
    result.stdout.fnmatch_lines(["*No space left on device*", "test_steps.py:1: Failed"])


def test_by_the_group_tests_have_a_gpu_and_the_names_that_baselines_know(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(project)
    project.tests(
        """
        import os
        import pytest

        @pytest.mark.xdist_group("together")
        @pytest.mark.parametrize("number", range(4))
        def test_one(gpuperf, number):
            gpuperf.measure(lambda: None)
            with open("diary", "a") as diary:
                print(os.environ["PYTEST_XDIST_WORKER"], file=diary)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
    project.run_apart("-n2", "--dist=loadgroup", *flags).assert_outcomes(passed=4)
    assert len({*(project.root / "diary").read_text("utf-8").splitlines()}) == 1
    tests = {measurement.test for measurement in project.saved().measurements}
    assert tests == {f"test_steps.py::test_one[{number}]" for number in range(4)}


@pytest.mark.parametrize(("dist", "refused"), [("load", True), ("loadgroup", False)])
def test_groups_of_others_stay_together(
    project: Project, monkeypatch: pytest.MonkeyPatch, dist: str, *, refused: bool
) -> None:
    """They may have one database: whether or not ours are among them, or are refused."""
    has_gpus(project)
    marker = "@pytest.mark.gpuperf(metrics='none')" if refused else ""
    project.tests(
        f"""
        import os
        import pytest

        @pytest.mark.xdist_group("database")
        class TestDatabase:
            @pytest.mark.parametrize("number", range(6))
            def test_one(self, number):
                with open("diary", "a") as diary:
                    print(os.environ["PYTEST_XDIST_WORKER"], file=diary)

        {marker}
        def test_ours(): pass
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    result = project.run_apart("-n2", f"--dist={dist}")
    result.assert_outcomes(passed=6 + (not refused), errors=int(refused))
    assert len({*(project.root / "diary").read_text("utf-8").splitlines()}) == 1


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


def test_a_worker_that_somebody_has_placed_has_the_order_of_the_others(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_gpus(project)
    project.tests(
        """
        import pytest

        @pytest.mark.parametrize("number", range(3))
        def test_one(gpuperf, number): gpuperf.measure(lambda: None)

        @pytest.mark.gpus(2)
        def test_two(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    placed = ("--tx=popen//env:CUDA_VISIBLE_DEVICES=2", "--tx=2*popen", "--dist=load")
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
    result = project.run_apart(*placed, *flags)
    assert "Different tests were collected" not in result.stdout.str()
    assert result.parseoutcomes().get("passed", 0) >= 3


@pytest.mark.parametrize(
    ("marks", "count"),
    [
        ("", 2),
        ("@pytest.mark.skip", 0),
        ("@pytest.mark.skipif(True, reason='r')", 0),
        ("@pytest.mark.skipif(condition=True, reason='r')", 0),
        ("@pytest.mark.skipif(False, reason='r')", 2),
        ("@pytest.mark.skipif('True')", 2),  # pytest evaluates it
    ],
)
def test_what_is_skipped_waits_for_no_gpu(host: Project, marks: str, count: int) -> None:
    (item,) = host.pytester.getitems(
        f"import pytest\n@pytest.mark.gpus(2)\n{marks}\ndef test_two(gpuperf): pass\n"
    )
    assert hooks._gpus(item) == count


def test_the_baselines_say_on_which_gpu_a_test_runs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the workers have them the other way round."""
    measured_is_what_is_visible = """
from pytest_gpuperf.measure.device import nvml
from tests.plugin.scripted import ScriptedCollector

ScriptedCollector.device = lambda self: nvml.visible_gpus()[0].device
"""
    has_gpus(project, measured_is_what_is_visible)
    project.tests(
        """
        def test_one(gpuperf): use(gpuperf, "one")
        def test_two(gpuperf): use(gpuperf, "two")

        def use(gpuperf, name):
            gpuperf.measure(lambda: None)
            with open("diary", "a") as diary:
                print(name, *gpuperf.gpus, file=diary)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    for visible in ("0,1", "1,0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1", "--gpuperf-run=run.json")
        project.run_apart("-n2", *flags).assert_outcomes(passed=2)
        project.update("run.json")
    lines = (project.root / "diary").read_text("utf-8").splitlines()
    # Which worker is the first is chance.
    before, after = (dict(line.split() for line in those) for those in (lines[:2], lines[2:]))
    assert {*before.values()} == {"GPU-a", "GPU-b"}
    assert after == before


def test_the_controller_is_told_how_long_steps_take_by_their_baselines(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a test measures; what needs several GPUs is longer than anything."""
    heard = """
_tell = workers.tell

def tell(folder, *of):
    _tell(folder, *of)
    Path("told.json").write_bytes((folder / workers._TOLD).read_bytes())

workers.tell = tell
"""
    has_gpus(project, heard)
    project.tests(
        """
        import pytest

        def test_one(gpuperf): gpuperf.measure(lambda: None)
        def test_two(gpuperf):
            gpuperf.measure(lambda: None)
            gpuperf.measure(lambda: None, name="again")

        @pytest.mark.gpus(2)
        def test_several(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    monkeypatch.delenv(STAND_IN, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    flags = ("--gpuperf-missing=warn", "--gpuperf-processes=1", "--gpuperf-run=run.json")
    several = {"test_steps.py::test_several": math.inf}
    known = {"test_steps.py::test_one": 286.1, "test_steps.py::test_two": 2 * 286.1}
    for lengths_ms in (several, known | several):
        project.run_apart("-n1", *flags).assert_outcomes(passed=3)
        assert json.loads((project.root / "told.json").read_bytes())["lengths_ms"] == lengths_ms
        project.update("run.json")


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
