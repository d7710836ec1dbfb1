"""`gpuperf ab`: two revisions in turn, until each test is decided; the checkout is left alone.

What the processes bring is a script's, but for one test: what they really are is told there.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.commands.ab import EXAMPLES
from pytest_gpuperf.errors import BAD_CONFIGURATION, FAILED, INTERRUPTED, OK
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.device import nvml
from pytest_gpuperf.measure.fresh_process import Finished, Start
from pytest_gpuperf.measure.instrument import STAND_IN
from pytest_gpuperf.model.measurement import Conditions, KernelTable, Measurement, Reading
from pytest_gpuperf.model.result import TEST_FAILED
from pytest_gpuperf.storage import files, run_files
from tests import examples
from tests.commands.revisions import CYCLES, ONE, TWO, Processes, Started, checkout, git, left
from tests.kernel_steps import table

if TYPE_CHECKING:
    from tests.plugin.projects import Project

__all__ = ["checkout"]
ALWAYS = "--gpuperf-kernels=always"
HOT = Conditions(Reading(), Reading(throttle_reasons=("hardware thermal slowdown",)))


@dataclass
class Scripted(Processes):
    """Each measures what the script has for its side and number."""

    factors: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Per side its processes' factors of the cycles; the last of them for all that follow."""
    slower: Mapping[str, float] = field(default_factory=dict)
    """By test, how many times of a side's change it has; once for ONE, and none for others."""
    tests: Mapping[str, Sequence[str]] = field(default_factory=dict)
    codes: Mapping[str, int] = field(default_factory=dict)
    more: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    skipped: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hot: Set[tuple[str, int]] = frozenset()
    """Sides and numbers of processes during which the GPU was throttled."""

    def finished(self, one: Started, before: Sequence[Started]) -> Finished:
        """By its side, and how many it has had before."""
        assert one.python == sys.executable
        side, number = one.side, sum(other.side == one.side for other in before)
        tests = [test for test in self.tests.get(side, (ONE,)) if test not in one.deselected]
        kernels = table(("conv", 300.0, 9.0)) if ALWAYS in one.arguments else None
        made = [self._one(side, number, test, kernels) for test in tests]
        code = self.codes.get(side, 0)
        run = replace(examples.run(made), skipped=self.skipped.get(side, {}))
        return Finished(run if code in (OK, FAILED) else None, code, f"output of {side}", 60.0)

    def _one(self, side: str, number: int, test: str, kernels: KernelTable | None) -> Measurement:
        factors = self.factors.get(side, (1.0,))
        change = factors[min(number, len(factors) - 1)] - 1
        cycles = CYCLES * (1 + change * self.slower.get(test, test == ONE))
        made: dict[str, Any] = {"test": test, "kernels": kernels, **self.more.get(side, {})}
        made["conditions"] = HOT if (side, number) in self.hot else None
        return examples.measurement({"cycles": [cycles]}, process=f"{side}{number}", **made)

    @property
    def order(self) -> str:
        return "".join(one.side for one in self.started)


@pytest.fixture
def folder(checkout: Path) -> Path:
    """A repository of one commit, with a change that is in none."""
    (checkout / "step.py").write_text("LAYERS = 1\n", encoding="utf-8")
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "One layer")
    (checkout / "step.py").write_text("LAYERS = 2\n", encoding="utf-8")
    return checkout


@pytest.fixture
def processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """In the place of fresh processes, of the repository in `folder`."""
    assert folder == Path.cwd()
    scripted = Scripted()
    scripted.stand_in(monkeypatch)
    return scripted


def ab(*words: str) -> int:
    return __main__.main(["ab", *words])


def kept(folder: Path, side: str) -> Any:
    (file,) = folder.glob(f".gpuperf/ab/*/{side}.json")
    return run_files.load(file)


# Really in fresh processes

STEPS = """
def test_step(gpuperf):
    gpuperf.measure(lambda: None, workload={"layers": 1})

def test_same(gpuperf):
    gpuperf.measure(lambda: None)
"""


def test_an_uncommitted_slowdown_is_found_with_its_kernel(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    project.device(kernels=[["conv", 900, 5e6]])
    project.tests(STEPS)
    git(project.root, "init", "-q", "-b", "main")
    git(project.root, "add", "-A")
    git(project.root, "commit", "-q", "-m", "Fast")
    slower = {"::test_step": {"cycles": 1.02, "step_time": 1.02}}
    project.device(kernels=[["conv", 900, 5e6], ["more", 18, 1e5]], factors=slower)
    index = (project.root / ".git" / "index").read_bytes()
    report = ("--output", "ab.md", "--output", "ab.html", "--output", "ab.json")
    assert ab("main", *report, "--", "-p", "no:randomly", "test_steps.py") == FAILED
    said = capsys.readouterr().out
    assert "gpuperf: step_time +2.00 % (and 1 more metric) on NVIDIA A100" in said
    assert "more" in said
    assert "1 regressed, 1 unchanged: 3 pairs of processes in " in said
    assert "pair 1 of 9 at most, main: 2 measurements in " in said
    assert "pair 2 of 9 at most, main: 1 measurement in " in said
    assert "update-baseline" not in said + (project.root / "ab.md").read_text("utf-8")
    old, new = (kept(project.root, side) for side in "ab")
    revision = git(project.root, "rev-parse", "--short=12", "HEAD").strip()
    assert {m.fingerprint.revision for m in old.measurements} == {revision}
    assert {m.fingerprint.revision for m in new.measurements} == {f"{revision}+dirty"}
    assert len({m.process for m in (*old.measurements, *new.measurements)}) == 8
    assert new.command == f"gpuperf ab main {' '.join(report)} -- -p no:randomly test_steps.py"
    assert "regressed" in (project.root / "ab.html").read_text("utf-8")
    assert run_files.load(project.root / "ab.json").verdicts == new.verdicts
    assert (project.root / ".git" / "index").read_bytes() == index
    assert git(project.root, "worktree", "list").count("\n") == 1


# In turn, and until it is decided


@pytest.mark.parametrize(
    ("new", "order", "code", "outcome"),
    [
        ([1.0], "ab", OK, "unchanged"),
        ([1.001], "abbaab", OK, "unchanged"),
        ([1.01], "abbaabab", FAILED, "regressed"),
        ([0.99], "abbaab", OK, "improved"),
        ([1.002, 1.01], "abbaabbaabab", FAILED, "regressed"),
    ],
)
def test_processes_follow_each_other_until_it_is_decided(
    processes: Scripted,
    capsys: pytest.CaptureFixture[str],
    new: Sequence[float],
    order: str,
    code: int,
    outcome: str,
) -> None:
    processes.factors = {"b": new}
    assert ab("main", "--", "tests") == code
    assert processes.order == order
    said = capsys.readouterr().out
    assert f"\n1 {outcome}: " in said
    assert ("gpuperf compare .gpuperf/ab/" in said) is (outcome != "unchanged")


def test_those_of_one_look_start_together_up_to_two_pairs(processes: Scripted) -> None:
    """The first pair alone: it may be all. Once a step is known to use torch, more is imported."""
    processes.factors = {"b": [1.01, 0.99, 1.0, 1.02]}
    processes.more = {"a": {"software": {"torch": "2.11"}}}
    assert ab("main", "--", "tests") == FAILED
    assert processes.together == [2, 4, 4, 4, 4]
    assert processes.ahead == [[], *[["torch._dynamo"]] * 4]


def test_what_is_decided_is_measured_no_more_but_for_the_kernels_of_what_is_slower(
    processes: Scripted, folder: Path
) -> None:
    two = f"{ONE}_more"
    processes.tests = {"a": (ONE, two, TWO), "b": (ONE, two, TWO)}
    processes.factors = {"b": [1.02]}
    assert ab("main", "--", "tests") == FAILED
    for one in processes.started[2:]:  # without ONE, whose name would leave out the other, too
        assert one.deselected == {TWO, two}
    assert "".join(".k"[ALWAYS in one.arguments] for one in processes.started) == "......kk"
    assert [entry.test for entry in kept(folder, "b").attributions] == [ONE]
    assert len(kept(folder, "b").results()) == 3


@pytest.mark.parametrize("most", [1, 3, 4])
def test_no_more_processes_are_started_than_allowed(
    processes: Scripted, capsys: pytest.CaptureFixture[str], most: int
) -> None:
    processes.factors = {"b": [1.01, 0.99, 1.0, 1.02]}
    assert ab("main", "--processes", str(most), "--", "tests") == FAILED
    assert len(processes.order) == 2 * most
    assert "inconclusive" in capsys.readouterr().out


@pytest.mark.parametrize(("sign", "code"), [(-1, OK), (1, FAILED)])
def test_what_may_be_a_gain_and_is_surely_no_loss_does_not_fail(
    processes: Scripted, capsys: pytest.CaptureFixture[str], sign: int, code: int
) -> None:
    """Nine pairs that do not agree by how much; the same by the other sign does fail."""
    processes.factors = {"b": [1 + sign * one for one in (0.003, 0.015, 0.027) * 3]}
    assert ab("main", "--", "tests") == code
    assert len(processes.order) == 18
    assert "\n1 inconclusive: " in capsys.readouterr().out


def test_undecided_at_the_time_limit_fails_and_says_so(
    processes: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(0, 10_000, 7))
    monkeypatch.setattr("time.monotonic", lambda: float(next(ticks)))
    processes.factors = {"b": [1.01]}
    assert ab("main", "--time-limit", "60", "--", "tests") == FAILED
    assert len(processes.order) < 6
    said = " ".join(capsys.readouterr().out.split())
    assert "the time limit ended before 1 measurement could be decided. --time-limit 120" in said


# What is compared


def test_reports_and_the_job_summary_name_both_revisions(
    processes: Scripted, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes.factors = {"b": [1.01]}
    for name, value in {"ACTIONS": "true", "STEP_SUMMARY": str(folder / "summary.md")}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    files = [folder / f"ab.{suffix}" for suffix in ("md", "html", "json")]
    assert ab("main", *(f"--output={file}" for file in files), "--", "tests/perf") == FAILED
    title = git(folder, "log", "-1", "--format=%h %s").strip()
    for file in (*files, folder / "summary.md"):
        text = file.read_text(encoding="utf-8")
        assert f"main ({title})" in text
    compared = [(one.test, one.name, one.revision) for one in kept(folder, "b").judged_by]
    assert compared == [(ONE, "step", f"main ({title})")]


def test_the_worst_is_the_same_in_a_headline_and_in_the_next_command(
    processes: Scripted, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command may be typed in the folder that `gpuperf ab` was."""
    processes.factors, processes.slower = {"b": [1.01]}, {TWO: 3.0}
    processes.tests = dict.fromkeys("ab", (ONE, TWO))
    inner = folder / "tests" / "perf"
    inner.mkdir(parents=True)
    for file in (folder / "pytest.ini", inner / "test_steps.py"):
        file.touch()
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "Tests")
    os.chdir(inner)
    report = ("--output", str(folder / "ab.md"))
    assert ab("main", *report, "--", "test_steps.py") == FAILED
    (said,) = capsys.readouterr().out.split("measure the worst again:\n")[1:]
    assert said.startswith(f"  gpuperf ab main {' '.join(report)} -- test_steps.py::test_two\n")
    text = (folder / "ab.md").read_text(encoding="utf-8")
    assert text.index("test\\_two regressed") < text.index("test\\_one regressed")


def test_head_is_a_revision_or_the_working_tree(processes: Scripted, folder: Path) -> None:
    assert ab("main", "--", "tests") == OK
    assert {one.folder == folder for one in processes.started if one.side == "b"} == {True}
    git(folder, "stash")
    git(folder, "commit", "-q", "--allow-empty", "-m", "Another")
    processes.started.clear()
    before = git(folder, "status", "--porcelain"), (folder / ".git" / "index").read_bytes()
    assert ab("HEAD~1", "HEAD", "--", str(folder / "tests"), f"--rootdir={folder}") == OK
    assert folder not in {one.folder for one in processes.started}
    for one in processes.started:
        assert one.arguments[-2:] == [f"{one.folder}/tests", f"--rootdir={one.folder}"]
    after = git(folder, "status", "--porcelain"), (folder / ".git" / "index").read_bytes()
    assert after == before
    assert not left(folder)


def test_what_one_side_removed_skips_or_fails_stands_first_in_the_comment(
    processes: Scripted, folder: Path
) -> None:
    gone, off, bad, late, new, both = (
        f"{ONE}_{word}" for word in ("gone", "off", "bad", "late", "new", "both")
    )
    processes.tests = {"a": (ONE, gone, off, late), "b": (ONE, late, bad)}
    processes.skipped = {
        "a": {bad: TEST_FAILED, both: "needs a GPU"},
        "b": {off: "slow", late: TEST_FAILED, new: TEST_FAILED, both: "needs a GPU"},
    }
    assert ab("main", "--output", "ab.md", "--", "tests") == OK
    assert kept(folder, "b").skipped == {
        gone: "only in main",
        off: "only in main, skipped in the working tree: slow",
        bad: "only in the working tree, failed in main",
        late: "failed in the working tree",
        new: "failed in the working tree",
    }
    heading, *listed = (folder / "ab.md").read_text(encoding="utf-8").split("\n")[:6]
    assert heading == "# gpuperf: 2 unchanged, 1 not compared, 5 incomplete"
    assert [line.count("incomplete, **") for line in listed] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"workload": {"size": 64}},
            "A and B have no measurement to compare\n  test_one: the workloads differ: size ",
        ),
        (
            {"device": examples.OTHER_H200},
            "two devices, NVIDIA H200 (aaaa00000001) and NVIDIA H200 (bbbb",
        ),
    ],
)
def test_another_workload_or_device_is_not_compared(
    processes: Scripted, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], says: str
) -> None:
    processes.more = {"b": changes}
    assert ab("main", "--", "tests") == BAD_CONFIGURATION
    assert says in capsys.readouterr().err


# The device


@pytest.mark.usefixtures("processes")
def test_a_gpu_is_held_until_all_is_measured(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait; the processes themselves, of which xdist has several, hold another place."""
    node = folder.parent / "node"
    node.mkdir()
    monkeypatch.setattr(nvml, "detect_device", lambda: examples.H200)
    monkeypatch.setattr(nvml, "node", lambda: node)
    places: list[str] = []
    original = Scripted.one

    def looking(self: Scripted, start: Start, time_limit: float) -> Finished:
        with pytest.raises(files.Locked), files.locked(node, patience=0):
            pass
        places.append(start.environment[STAND_IN])
        with files.locked(Path(places[-1]), patience=0):
            return original(self, start, time_limit)

    monkeypatch.setattr(Scripted, "one", looking)
    assert ab("main", "--", "tests") == OK
    assert len(places) == 2
    assert len({*places}) == 1
    assert not Path(places[0]).exists()
    with files.locked(node, patience=0):
        pass


def test_pairs_on_a_throttled_gpu_do_not_count(
    processes: Scripted, capsys: pytest.CaptureFixture[str]
) -> None:
    processes.hot = {("b", 0), ("a", 1)}
    processes.factors = {"b": [2.0, 0.5, 1.0]}
    assert ab("main", "--", "tests") == OK
    assert processes.order == "abbaab"
    processes.hot = {("a", number) for number in range(9)}
    processes.started.clear()
    assert ab("main", "--processes", "3", "--", "tests") == FAILED
    assert "unfit" in capsys.readouterr().out


# What goes wrong


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian"], '"mian" is not a revision of .*Did you mean "main"'),
        (["--upload-pack=x"], "usage: gpuperf"),
        (["main", "--processes", "0"], "--processes 0 must be from 1 to 9"),
        (["main", "--processes", "10"], "--processes 10 must be from 1 to 9"),
        (["main", "--time-limit", "0"], "--time-limit 0 must be more than 0 seconds"),
        (["main", "--time-limit", "nan"], "--time-limit nan must be more than 0 seconds"),
        (["main", "--output", "ab.txt"], '".txt" is not a report format'),
        (
            ["main", "--install", "echo out; exit 3"],
            "`echo out; exit 3` exited with 3 .*:\nout\n",
        ),
    ],
)
def test_bad_configuration_says_what_to_do(
    processes: Scripted,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    said: str,
) -> None:
    assert ab(*words, "--", "tests") == BAD_CONFIGURATION
    assert re.search(said, capsys.readouterr().err)
    assert not processes.started
    assert not left(folder)


@pytest.mark.parametrize("command", ["ab HEAD", "prove", "record"])
def test_a_link_out_of_the_project_ends_a_command_before_it_measures(
    command: str,
    processes: Scripted,
    folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (folder / ".gpuperf").symlink_to(outside)
    assert __main__.main([*command.split(), "--", "tests"]) == BAD_CONFIGURATION
    assert f"leads out of the project, to {outside}/" in capsys.readouterr().err
    assert (processes.started, [*outside.iterdir()]) == ([], [])


def test_outside_of_a_repository_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ab("main", "--", "tests") == BAD_CONFIGURATION
    said = capsys.readouterr().err
    assert "not a git repository" in said
    assert said.endswith(". Run gpuperf in a git checkout\n")


@pytest.mark.usefixtures("processes")
def test_what_is_installed_is_installed_in_each_worktree_and_not_in_the_checkout(
    folder: Path,
) -> None:
    git(folder, "commit", "-qam", "Two layers")
    log = folder.parent / "log"
    assert ab("HEAD~1", "HEAD", "--install", f"cat step.py >> {log}", "--", "tests") == OK
    assert log.read_text("utf-8") == "LAYERS = 1\nLAYERS = 2\n"
    assert ab("HEAD", "--install", f"pwd > {log}", "--", "tests") == OK
    assert log.read_text("utf-8").rstrip().endswith("/a")


@pytest.mark.parametrize(
    ("side", "code", "ends_with"), [("a", 4, 4), ("b", 2, 2), ("a", 5, 5), ("b", -11, 139)]
)
def test_a_side_that_measures_nothing_ends_it(
    processes: Scripted,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    side: str,
    code: int,
    ends_with: int,
) -> None:
    processes.codes = {side: code}
    assert ab("main", "--", "tests") == ends_with
    said = capsys.readouterr().err
    assert f"output of {side}" in said
    name = "main" if side == "a" else "the working tree"
    assert f"gpuperf: {name}" in said
    assert not left(folder)


@pytest.mark.parametrize(("side", "code"), [("a", OK), ("b", FAILED)])
def test_a_failing_test_fails_it_where_it_is_of_the_new_revision(
    processes: Scripted, capsys: pytest.CaptureFixture[str], side: str, code: int
) -> None:
    processes.codes = {side: FAILED}
    assert ab("main", "--", "tests") == code
    said = capsys.readouterr()
    assert said.err.count(f"output of {side}") == 1
    assert "note: tests failed in " in said.out


@pytest.mark.parametrize("after", [0, 1, 3])
def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing_else(
    processes: Scripted, folder: Path, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    processes.ends, processes.factors = after, {"b": [1.01]}
    assert ab("main", "--", "tests") == INTERRUPTED
    assert "gpuperf: interrupted" in capsys.readouterr().err
    assert not left(folder)
    assert len([*folder.glob(".gpuperf/ab/*/?.json")]) == min(after, 2)


def test_sigterm_removes_the_worktrees(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*_: object, **__: object) -> Finished:
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError

    monkeypatch.setattr(fresh_process, "run_in_turn", told)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as ended:
        ab("main", "--", "tests")
    assert ended.value.code == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert not left(folder)


def test_everything_after_the_dashes_is_pytest_s(processes: Scripted) -> None:
    assert ab("main", "--", "tests", "-k", "one", "--", "x") == OK
    assert processes.started[0].arguments[-5:] == ["tests", "-k", "one", "--", "x"]
    assert ab("main") == errors.OK


def test_every_example_works_as_it_is_typed(processes: Scripted, folder: Path) -> None:
    git(folder, "tag", "v1.2")
    git(folder, "commit", "-qam", "Two layers")
    git(folder, "tag", "v1.3")
    for example in EXAMPLES:
        assert ab(*shlex.split(example)[2:]) == OK
    assert processes.order == "ab" * len(EXAMPLES)
    assert (folder / "ab.md").exists()
