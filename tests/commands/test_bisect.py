"""`gpuperf bisect`: the commit is named, whatever cannot be measured in between.

What a process measures is what the file `factor` of its checkout says.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path

import pytest

from pytest_gpuperf import __main__
from pytest_gpuperf.commands.bisect import EXAMPLES
from pytest_gpuperf.errors import BAD_CONFIGURATION, FAILED, INTERRUPTED
from pytest_gpuperf.measure import fresh_process
from pytest_gpuperf.measure.fresh_process import Finished
from tests import examples
from tests.plugin.test_conditions import EVERY

ONE, TWO = "tests/perf/test_steps.py::test_one", "tests/perf/test_steps.py::test_two"
CYCLES = 4e8
BROKEN, HANGS = "broken", "hangs"
_NEW = ("user.name=a", "user.email=a@b", "commit.gpgsign=false", "gc.auto=0")
_GIT = ("git", *(word for setting in _NEW for word in ("-c", setting)))


def git(folder: Path, *words: str) -> str:
    done = subprocess.run([*_GIT, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


@dataclass
class Processes:
    """Fresh processes, of which some do not import and some hang."""

    ends: int = 999
    """After so many of them comes Ctrl-C."""
    started: list[str] = field(default_factory=list)

    def __call__(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        time_limit: float,
        environment: Mapping[str, str],
        tick: Callable[[float], None],
        python: str,
    ) -> Finished:
        assert environment
        assert python
        tick(0.0)
        self.started.append(folder.name)
        if len(self.started) > self.ends:
            raise KeyboardInterrupt
        written = (folder / "factor").read_text("utf-8").strip()
        if written in (BROKEN, HANGS):
            return Finished(None, 2, written, time_limit, timed_out=written == HANGS)
        factors = dict(zip((ONE, TWO), map(float, written.split()), strict=True))
        left_out = {word.partition("=")[2] for word in arguments if "--deselect=" in word}
        made = [
            examples.measurement(
                {"cycles": [CYCLES * factor], "instructions": [1e9]},
                test=test,
                process=f"p{len(self.started)}",
            )
            for test, factor in factors.items()
            if test not in left_out
        ]
        return Finished(examples.run(made), 0, "", 1.0)

    @property
    def builds(self) -> int:
        """Of how many commits there were processes, the good one not counted."""
        return len({*self.started}) - 1


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Processes:
    """In the place of fresh processes."""
    scripted = Processes()
    monkeypatch.setattr(fresh_process, "run_pytest", scripted)
    return scripted


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    git(checkout, "init", "-q", "-b", "main")
    return checkout


def history(folder: Path, factors: Sequence[str]) -> None:
    """A commit for each, with its number for a message and a tag; by one process of git."""
    stream = []
    for number, factor in enumerate(factors):
        stream.append(
            f"commit refs/heads/main\ncommitter a <a@b> {1_700_000_000 + number} +0000\n"
            f"data {len(str(number))}\n{number}\n"
            f"M 100644 inline factor\ndata {len(factor)}\n{factor}\n"
            f"reset refs/tags/c{number}\nfrom refs/heads/main\n"
        )
    text = "\n".join(stream)
    subprocess.run(["git", "fast-import", "--quiet"], cwd=folder, input=text, text=True, check=True)
    git(folder, "reset", "-q", "--hard", "main")


def bisect(*words: str) -> int:
    return __main__.main(["bisect", *words])


def named(capsys: pytest.CaptureFixture[str]) -> str:
    """The message of the commit that is named."""
    said = capsys.readouterr().out
    return said.partition("\nthe first that is slower: ")[2].partition("\n")[0].split(" ")[-1]


def of_one(*factors: float) -> list[str]:
    return [f"{factor} 1.0" for factor in factors]


@pytest.mark.parametrize("slow", [1, 6, 9])
def test_the_commit_is_named_wherever_it_is(
    folder: Path, processes: Processes, capsys: pytest.CaptureFixture[str], slow: int
) -> None:
    history(folder, of_one(*[1.0] * slow, *[1.02] * (10 - slow)))
    assert bisect("c0", "main", "--", "tests") == FAILED
    said = capsys.readouterr().out
    assert f" {slow}\n" in said.partition("the first that is slower:")[2][:24]
    assert "gpuperf: cycles +2.00 %: regressed on NVIDIA H200" in said
    assert processes.builds <= 1 + ceil(log2(9)) + 1
    assert git(folder, "worktree", "list").count("\n") == 1
    assert git(folder, "status", "--porcelain") == "?? .gpuperf/\n" or not git(
        folder, "status", "--porcelain"
    )


def losses(count: int = 65) -> list[str]:
    """Three losses, of two tests, and a gain, which cancels one of them; and what cannot be run."""
    factors = []
    for number in range(count):
        one = (1.02 if number >= 10 else 1.0) * (1.03 if number >= 50 else 1.0)
        one /= 1.02 if number >= 30 else 1.0
        factors.append(f"{one} {1.01 if number >= 40 else 1.0}")
    factors[48] = factors[33] = BROKEN
    factors[32] = HANGS
    return factors


@pytest.mark.skipif(EVERY not in os.environ, reason=f"takes half a minute; with {EVERY}=1")
@pytest.mark.parametrize(
    ("good", "bad", "test", "commit"),
    [
        ("c0", "main", "test_one", "50"),
        ("c0", "c29", "test_one", "10"),
        ("c0", "main", "test_two", "40"),
        ("c30", "main", "test_one", "50"),
    ],
)
def test_each_loss_that_is_asked_for_is_named_in_eight_builds(
    folder: Path,
    processes: Processes,
    capsys: pytest.CaptureFixture[str],
    good: str,
    bad: str,
    test: str,
    commit: str,
) -> None:
    history(folder, losses())
    assert bisect(good, bad, "--test", test, "--", "tests") == FAILED
    assert named(capsys) == commit
    skipped = 3
    assert processes.builds <= 8 + skipped


def test_a_metric_that_is_not_slower_is_not_looked_for(
    folder: Path, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    history(folder, of_one(1.0, 1.0, 1.02))
    assert bisect("c0", "c2", "--metric", "instructions", "--", "tests") == BAD_CONFIGURATION
    assert " is not slower than " in capsys.readouterr().err
    assert bisect("c0", "c2", "--metric", "cycles", "--", "tests") == FAILED
    assert named(capsys) == "2"
    assert processes.started


def test_where_those_between_cannot_be_measured_it_says_which_it_may_be(
    folder: Path, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    history(folder, ["1.0 1.0", BROKEN, HANGS, "1.02 1.0", "1.02 1.0"])
    assert bisect("c0", "main", "--", "tests") == FAILED
    said = capsys.readouterr().out.partition("is one of these")[2]
    assert [line.split(" ")[-1] for line in said.splitlines()[1:]] == ["1", "2", "3"]
    assert processes.started


def test_a_good_one_that_cannot_be_measured_ends_it(folder: Path, processes: Processes) -> None:
    history(folder, [BROKEN, "1.0 1.0", "1.02 1.0"])
    assert bisect("c0", "main", "--", "tests") == 2
    assert len(processes.started) == 1


@pytest.mark.parametrize("after", [3, 17])
def test_interrupted_it_goes_on_with_what_it_knows(
    folder: Path, processes: Processes, capsys: pytest.CaptureFixture[str], after: int
) -> None:
    history(folder, of_one(*[1.0] * 5, *[1.02] * 4))
    assert bisect("c0", "main", "--", "tests") == FAILED
    whole = len(processes.started)
    (kept,) = folder.glob(".gpuperf/bisect/*.json")
    kept.unlink()
    processes.started.clear()
    processes.ends = after
    assert bisect("c0", "main", "--", "tests") == INTERRUPTED
    begun, processes.ends = len(processes.started), 999
    capsys.readouterr()
    assert bisect("c0", "main", "--", "tests") == FAILED
    said = capsys.readouterr().out
    assert ("going on: " in said) is (after >= 11)
    assert " 5\n" in said.partition("the first that is slower:")[2][:24]
    assert len(processes.started) <= whole + min(begun, 8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian", "main"], '"mian" is no revision of '),
        (["main", "c0"], " is not before "),
        (["c0", "c0"], " is not before "),
        (["c0", "main", "--metric", "cylces"], "--metric cylces: "),
        (["c0", "main", "--processes", "0"], "--processes 0: give a number from 1 to 9"),
    ],
)
def test_bad_configuration_says_what_to_do(
    folder: Path,
    processes: Processes,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    said: str,
) -> None:
    history(folder, of_one(1.0, 1.02))
    assert bisect(*words, "--", "tests") == BAD_CONFIGURATION
    assert said in capsys.readouterr().err
    assert not processes.started


def test_every_example_works_as_it_is_typed(
    folder: Path, processes: Processes, capsys: pytest.CaptureFixture[str]
) -> None:
    history(folder, ["1.0 1.0", *["1.02 1.02"] * 1])
    git(folder, "tag", "v1.2", "c0")
    for example in EXAMPLES:
        assert bisect(*shlex.split(example.replace("HEAD~20", "HEAD~1"))[2:]) == FAILED
        assert named(capsys) == "1"
    assert processes.started
