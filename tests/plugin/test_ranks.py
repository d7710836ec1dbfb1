"""Steps over ranks: real processes, one run, one verdict, and what is said when a rank fails."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid

import pytest

from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.plugin.projects import STEP as MEASURES
from tests.plugin.projects import Project, refused
from tests.plugin.test_conditions import AT_NIGHT

OVER_RANKS = """
    import os, signal, time

    def entry(rank):
        ENTERED

        def step():
            FAULT

        return step

    def test_step(gpuperf):
        gpuperf.measure_ranks(entry, 2)
"""
SKIPS = "rank == 1 and __import__('pytest').skip('not here')"
"""Before the step is made."""
UNDER_TORCHRUN = """
    import os

    def test_step(gpuperf):
        rank = os.environ["RANK"]
        print("RANK", rank)
        with open(f"executions-{rank}", "a") as file:
            gpuperf.measure(lambda: print("x", end="", file=file, flush=True))
"""
DATA_PARALLEL = """
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel

    def entry(rank):
        torch.set_num_threads(1)
        distributed.init_process_group("gloo")
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(8, 8))
        given = torch.ones(2, 8)

        def step():
            model(given).sum().backward()

        for _ in range(3):  # in the second it makes its buckets anew
            step()
        return step

    def test_step(gpuperf):
        gpuperf.measure_ranks(entry, 2)
"""


def left_running(project: Project) -> list[str]:
    """Processes that run in the project's folder."""
    found = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    mine = str(os.getpid())
    return [
        line
        for line in found.stdout.splitlines()
        if str(project.root) in line and line.split()[0] != mine
    ]


def torchrun(project: Project, *arguments: str) -> list[subprocess.CompletedProcess[str]]:
    """As torchrun would start two ranks of pytest, in their order; it is torch that has it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
    }
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=project.root,
            env={**os.environ, **shared, "RANK": str(rank), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]
    said = [(process, *process.communicate(timeout=60)) for process in started]
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, error)
        for process, out, error in reversed(said)
    ]


def launched(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of pytest under torchrun itself, which ends the others where one has failed."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    return subprocess.run(
        [sys.executable, *torchrun, "-m", "pytest", *arguments],
        cwd=project.root,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_test_starts_its_ranks_and_judges_them_as_one(a100: Project) -> None:
    """Each sees one GPU: `measure_ranks(entry, torch.cuda.device_count())` says 1 there."""
    a100.tests(
        """
        import os

        def test_step(gpuperf):
            there = 1 if "RANK" in os.environ else 2
            gpuperf.measure_ranks(lambda rank: lambda: None, there)
            gpuperf.measure_ranks(lambda rank: lambda: None, 3, name="three")
        """
    )
    assert a100.run("--gpuperf-missing=record").ret == 0
    measured, three = a100.saved().measurements
    assert [peer.name for peer in measured.peers] == ["rank 0", "rank 1"]
    assert measured.workload == {"ranks": 2}
    of_step = {sample.metric for sample in measured.samples if sample.phase == STEP}
    assert of_step == {"step_time", "wall_time"}  # counters are each rank's own
    assert "cycles" in {sample.metric for sample in measured.peers[1].samples}
    assert len(three.peers) == 3
    assert a100.has_baseline()
    assert left_running(a100) == []


def test_under_torchrun_the_first_rank_writes_prints_and_judges_for_all(a100: Project) -> None:
    a100.tests(
        f"""{UNDER_TORCHRUN}
    import pytest

    ENTERED = []

    def entry(rank):
        ENTERED.append(rank)
        return lambda: None

    @pytest.mark.parametrize("ranks", [2, 4, 2])
    def test_ranks(gpuperf, ranks):
        gpuperf.measure_ranks(entry, ranks)

    def test_entered():
        assert ENTERED == [int(os.environ["RANK"])] * 2
"""
    )
    first, other = torchrun(a100, "--gpuperf-missing=record", "-p", "no:randomly", "-rs")
    assert (first.returncode, other.returncode) == (0, 0)
    assert "4 passed, 1 skipped" in first.stdout
    said = " ".join(first.stdout.split())
    assert "this test measures 4 ranks, but torchrun started 2. Type torchrun --nproc" in said
    assert "--nproc-per-node 4 -m pytest" in said
    assert "baseline recorded" in first.stdout
    assert (other.stdout, other.stderr) == ("", "")
    (file,) = a100.run_files()
    measured, *others = run_files.load(file).measurements
    assert [peer.name for peer in measured.peers] == ["rank 0", "rank 1"]
    assert len(others) == 2
    executed = [(a100.root / f"executions-{rank}").read_text() for rank in (0, 1)]
    assert executed == ["xxx", "xxx"]  # here, and in fresh ranks that look at kernels too
    assert measured.kernels is not None
    assert len(measured.kernels.peers) == 1


SEVERAL_HOSTS = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "host",
    "MASTER_PORT": "29500",
}


def test_ranks_of_several_hosts_run_what_measures_nothing(
    a100: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SEVERAL_HOSTS.items():
        monkeypatch.setenv(name, value)
    a100.tests("def test_unit():\n    pass")
    assert a100.run().ret == 0
    a100.tests(MEASURES)
    assert "but gpuperf measures ranks of one host only" in refused(a100.run())


def test_under_torchrun_xdist_is_refused(a100: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its workers are no ranks: each would measure a step that the others do not execute."""
    for name, value in {**SEVERAL_HOSTS, "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    a100.tests(MEASURES)
    result = a100.run("-n1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "Leave -n out" in str(result.stdout)


@AT_NIGHT
@pytest.mark.parametrize("hook", ["pytest_collect_file", "pytest_collection_modifyitems"])
def test_a_rank_says_what_keeps_it_from_its_tests(a100: Project, hook: str) -> None:
    a100.tests(UNDER_TORCHRUN)
    a100.conftest(
        f"""
        import os

        def {hook}():
            assert os.environ["RANK"] == "0", "not here"
        """
    )
    result = launched(a100, "--gpuperf-missing=record", "-p", "no:randomly")
    assert result.returncode == 1
    assert "gpuperf: rank 1: " in result.stderr
    assert "AssertionError: not here" in result.stderr


@AT_NIGHT
def test_who_has_died_is_said_though_the_next_test_is_a_long_one(a100: Project) -> None:
    """They are told to end, and killed where that takes longer than 30 s."""
    a100.tests(
        """
        import os, time

        def test_step(gpuperf):
            gpuperf.measure(lambda: os.environ["RANK"] == "1" and os._exit(3))

        def test_long():
            time.sleep(600)
        """
    )
    result = launched(a100, "--gpuperf-missing=warn", "-p", "no:randomly")
    assert result.returncode == 1
    assert "rank 1 ended" in result.stdout
    assert "gpuperf: rank 0: all ranks stopped because rank 1 ended" in result.stderr
    assert "1 failed in" in result.stdout


APART = {
    # Where the others open a process group, each of them waits for all.
    "skips before the entry": (
        """
        from threading import Event

        def entry(rank):
            Event().wait()

        def test_step(gpuperf):
            if os.environ["RANK"] == "1":
                pytest.skip("not here")
            gpuperf.measure_ranks(entry, 2)
        """,
        1,
        (
            "the ranks do not execute the step equally often",
            " waited for the other ranks before the entry of step of test_steps.py::test_step",
        ),
    ),
    "fails in the entry": (
        """
        from threading import Event

        def entry(rank):
            if rank:
                raise ValueError("entry broke")
            Event().wait()

        def test_step(gpuperf):
            gpuperf.measure_ranks(entry, 2)
        """,
        1,
        (
            "gpuperf: rank 0: all ranks stopped because rank 1 failed: ValueError: entry broke",
            " was last in the entry of step of test_steps.py::test_step",
        ),
    ),
    # torchrun looks at other codes than 0.
    "ends": (
        """
        def test_step(gpuperf):
            gpuperf.measure(lambda: os.environ["RANK"] == "1" and os._exit(0))
        """,
        0,
        ("rank 1 ended",),
    ),
}
"""What rank 1 does, its exit code, and what rank 0 says."""
LATER = """
        @pytest.mark.parametrize("number", range(3))
        def test_later(gpuperf, number):
            gpuperf.measure(lambda: None)
"""
ALWAYS = ("skips before the entry", "ends")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[AT_NIGHT] * (case not in ALWAYS)) for case in APART]
)
def test_after_ranks_have_parted_it_is_said_and_no_test_begins(a100: Project, case: str) -> None:
    source, code, phrases = APART[case]
    a100.tests(f"\n        import os\n        import pytest\n{source}{LATER}")
    first, other = torchrun(a100, "--gpuperf-missing=warn", "-p", "no:randomly")
    assert (first.returncode, other.returncode) == (1, code)
    said = " ".join((first.stdout + first.stderr).split())
    assert [phrase for phrase in phrases if phrase not in said] == []
    assert " passed" not in said
    assert other.stderr == "" or case == "fails in the entry"


@AT_NIGHT
def test_an_error_between_measurement_and_verdict_is_no_fault_of_the_next_test(
    a100: Project,
) -> None:
    a100.tests(f"\n        import pytest\n{LATER}")
    a100.conftest(
        """
        import os
        from pytest_gpuperf.plugin.fixture import GpuPerf

        def fails(self, result):
            assert os.environ["RANK"] == "1" or "[0]" not in result.test, "before the verdict"

        GpuPerf._conclude = fails
        """
    )
    first, other = torchrun(a100, "--gpuperf-missing=warn", "-p", "no:randomly")
    assert (first.returncode, other.returncode) == (1, 1)
    assert "AssertionError: before the verdict" in first.stdout
    assert "1 failed, 2 passed" in first.stdout
    assert "torchrun --nproc-per-node 2 -m pytest" in first.stdout  # to make a baseline


@pytest.mark.parametrize(
    ("fault", "phrases"),
    [
        (
            "rank == 1 and os.kill(os.getpid(), signal.SIGKILL)",
            [
                "gpuperf: all ranks stopped because rank 1 was ended by SIGKILL",
                "was last in execution 1 of step of test_steps.py::test_step",
            ],
        ),
        pytest.param(
            "assert rank == 0, 'boom'",
            ["rank 1 failed: AssertionError: boom", "Last output of rank 1:"],
            marks=AT_NIGHT,
        ),
        pytest.param(
            "rank == 1 and time.sleep(600)",
            [
                "rank 1 made no progress for 4 s",
                "Last output of rank 1:",
                "in step",
            ],
            marks=AT_NIGHT,
        ),
        pytest.param(SKIPS, ["rank 1 failed: Skipped: not here"], marks=AT_NIGHT),
    ],
    ids=["is killed", "raises", "hangs", "skips"],
)
def test_a_rank_at_fault_is_named_and_leaves_nothing(
    a100: Project, fault: str, phrases: list[str]
) -> None:
    place, other = ("ENTERED", "FAULT") if fault == SKIPS else ("FAULT", "ENTERED")
    a100.tests(OVER_RANKS.replace(place, fault).replace(other, "pass"))
    limit = 4 if "sleep" in fault else 600
    result = a100.run(f"--gpuperf-time-limit={limit}")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = " ".join(str(result.stdout).split())
    assert [phrase for phrase in phrases if phrase not in said] == []
    assert left_running(a100) == []


@AT_NIGHT
def test_a_regression_over_ranks_takes_as_many_fresh_ranks_as_one_process_would(
    project: Project,
) -> None:
    project.tests(DATA_PARALLEL)
    assert project.run_apart("--gpu-arch=cpu", "--gpuperf-missing=record").ret == 0
    more = "rank and given @ given.T; model(given).sum()"
    project.tests(DATA_PARALLEL.replace("model(given).sum()", more))
    result = project.run_apart("--gpu-arch=cpu", "--gpuperf-processes=3")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = str(result.stdout)
    assert "on portable (cpu)" in said
    assert "rank 1: test_steps.py:13 entry.step calls 2 more operators" in said
    found = run_files.load(project.run_files()[-1]).attributions[0].attribution
    assert (found.rank, found.lines[0].function) == (1, "entry.step")


UNDER_TORCHRUN_SLOWED = """
    import os, torch

    ONES = torch.ones(8, 8)

    def step():
        out = ONES @ ONES
        SLOWED
        return out.sum()

    def test_step(gpuperf):
        gpuperf.measure(step)
"""


@AT_NIGHT
def test_under_torchrun_each_rank_has_its_kernels_and_the_slow_one_is_named(
    project: Project,
) -> None:
    """What starts pytest may be typed behind `gpuperf record --`."""
    project.tests(UNDER_TORCHRUN_SLOWED.replace("SLOWED", "pass"))
    ranks = ("torchrun", "--standalone", "--nproc-per-node", "2", "-m", "pytest")
    record = ("record", "--processes", "1", "--run", "recorded.json", "--")
    assert project.gpuperf(*record, *ranks, "--gpu-arch=cpu").ret == 0
    (measured,) = project.saved("recorded.json").measurements
    assert measured.kernels is not None
    assert [len(table.launches) for table in (measured.kernels, *measured.kernels.peers)] == [2, 2]
    assert project.update("recorded.json") == 0
    project.tests(
        UNDER_TORCHRUN_SLOWED.replace("SLOWED", "int(os.environ['RANK']) and ONES @ ONES")
    )
    first, other = torchrun(project, "--gpu-arch=cpu", "-p", "no:randomly")
    assert (first.returncode, other.returncode) == (1, 1)
    assert "rank 1: test_steps.py:" in " ".join(first.stdout.split())
    (found,) = project.saved().attributions
    assert (found.attribution.rank, found.attribution.lines[0].function) == (1, "step")
