"""`gpuperf bisect`: the commit is named, whatever cannot be measured in between.

What a process measures is what the file `factor` of its checkout says.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from pathlib import Path

import pytest

from pytest_gpuperf import __main__
from pytest_gpuperf.commands.bisect import EXAMPLES, PREFIX
from pytest_gpuperf.errors import BAD_CONFIGURATION, FAILED
from pytest_gpuperf.measure.fresh_process import Finished
from tests import examples
from tests.commands.revisions import CYCLES, ONE, TWO, Processes, Started, checkout, git
from tests.plugin.test_conditions import AT_NIGHT
from tests.releases import Index, index, packages_of, small_environment

__all__ = ["checkout"]
BROKEN, HANGS = "broken", "hangs"


@dataclass
class Written(Processes):
    """Of which some do not import and some hang: what the file `factor` of their checkout says."""

    asked: list[str] = field(default_factory=list)
    """What each of them has measured."""

    def finished(self, one: Started, before: Sequence[Started]) -> Finished:
        """Two tests, as slow as it says."""
        self.asked.append(self.what(one))
        written = self.factor(one).read_text("utf-8").strip()
        if written in (BROKEN, HANGS):
            return Finished(None, 2, written, one.time_limit, timed_out=written == HANGS)
        factors = dict(zip((ONE, TWO), map(float, written.split()), strict=True))
        made = [
            examples.measurement(
                {"cycles": [CYCLES * factor], "instructions": [1e9]},
                test=test,
                process=f"p{len(before)}",
            )
            for test, factor in factors.items()
            if test not in one.deselected
        ]
        return Finished(examples.run(made), 0, "", 1.0)

    def what(self, one: Started) -> str:
        """What is measured: the commit."""
        assert one.python == sys.executable
        return one.folder.name

    def factor(self, one: Started) -> Path:
        """The file that says how slow it is."""
        return one.folder / "factor"

    @property
    def builds(self) -> int:
        """Of how many commits there were processes, the good one not counted."""
        return len({*self.asked}) - 1


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Written:
    """In the place of fresh processes."""
    scripted = Written()
    scripted.stand_in(monkeypatch)
    return scripted


def history(checkout: Path, factors: Sequence[str]) -> None:
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
    subprocess.run(
        ["git", "fast-import", "--quiet"], cwd=checkout, input=text, text=True, check=True
    )
    git(checkout, "reset", "-q", "--hard", "main")


def bisect(*words: str) -> int:
    return __main__.main(["bisect", *words])


def of_one(*factors: float) -> list[str]:
    return [f"{factor} 1.0" for factor in factors]


@pytest.mark.parametrize("slow", [1, 6, 9])
def test_the_commit_is_named_wherever_it_is(
    checkout: Path, processes: Written, capsys: pytest.CaptureFixture[str], slow: int
) -> None:
    history(checkout, of_one(*[1.0] * slow, *[1.02] * (10 - slow)))
    git(checkout, "tag", "v1.2", "c0")
    assert bisect(*shlex.split(EXAMPLES[0])[2:]) == FAILED
    said = capsys.readouterr().out
    assert f" {slow}\n" in said.partition("first slower one:")[2][:24]
    assert "gpuperf: cycles +2.00 % on NVIDIA H200" in said
    assert processes.builds <= 1 + ceil(log2(9)) + 1
    assert git(checkout, "worktree", "list").count("\n") == 1
    assert not git(checkout, "status", "--porcelain")


@pytest.mark.parametrize(("factor", "said"), [("1.0 1.0", "not slower"), (BROKEN, "skipped")])
def test_a_bad_one_that_is_not_slower_is_refused(
    checkout: Path, processes: Written, capsys: pytest.CaptureFixture[str], factor: str, said: str
) -> None:
    history(checkout, ["1.0 1.0", "1.02 1.0", factor])
    assert bisect("c0", "c2", "--", "tests") == BAD_CONFIGURATION
    shown = capsys.readouterr().err
    good = git(checkout, "rev-parse", "--short", "c0").strip()
    assert f"is not measurably slower than GOOD, {good}" in shown
    assert f" ({said}). Name another pair" in shown
    assert processes.started


def test_where_those_between_cannot_be_measured_it_says_which_it_may_be(
    checkout: Path, processes: Written, capsys: pytest.CaptureFixture[str]
) -> None:
    history(checkout, ["1.0 1.0", BROKEN, HANGS, "1.02 1.0", "1.02 1.0"])
    assert bisect("c0", "main", "--", "tests") == FAILED
    shown = capsys.readouterr()
    said = shown.out.partition("one of these is")[2]
    assert "time ran out. A longer --time-limit allows more pairs" in shown.err
    assert {line.split(" ")[-1] for line in said.splitlines()[1:]} == {"1", "2", "3"}
    assert processes.started


def test_a_good_one_that_cannot_be_measured_ends_it(checkout: Path, processes: Written) -> None:
    history(checkout, [BROKEN, "1.0 1.0", "1.02 1.0"])
    assert bisect("c0", "main", "--", "tests") == 2
    assert len(processes.started) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mian", "main"], '"mian" is not a revision of '),
        (["main", "c0"], "Maybe you mistook good and bad revs?"),
        (["c0", "c0"], "was both good and bad"),
        (["c0", "main", "--processes", "0"], "--processes 0 must be from 1 to 9"),
        ([], "name two revisions, GOOD and BAD, or pass --package NAME=OLD..NEW"),
        (["c0"], "name two revisions, GOOD and BAD"),
        (["c0", "--package=net=1..2"], "replaces GOOD, BAD and --install"),
        (["--package=net=1..2", "--install=x"], "replaces GOOD, BAD and --install"),
        (["--package=net"], "is not valid. Write NAME=OLD..NEW"),
        (["--package=net=1.0"], "is not valid. Write NAME=OLD..NEW"),
        (["--package=-e=1..2"], "is not valid. Write NAME=OLD..NEW"),
    ],
)
def test_bad_configuration_says_what_to_do(
    checkout: Path,
    processes: Written,
    capsys: pytest.CaptureFixture[str],
    words: Sequence[str],
    said: str,
) -> None:
    history(checkout, of_one(1.0, 1.02))
    assert bisect(*words, "--", "tests") == BAD_CONFIGURATION
    assert said in capsys.readouterr().err
    assert not processes.started


# Releases


@dataclass
class InEnvironments(Written):
    """In environments, which say how slow their packages are."""

    linked: set[Path] = field(default_factory=set)
    """Files of this one that are theirs too."""

    def what(self, one: Started) -> str:
        """The packages and releases."""
        assert one.folder == Path.cwd()
        place = packages_of(Path(one.python))
        own = packages_of(Path(sys.prefix, "bin", "python")).glob("*.py")
        self.linked |= {file for file in own if file.samefile(place / file.name)}
        known = place.glob("*.dist-*")
        return " ".join(sorted(info.stem.split(".dist")[0] for info in known))

    def factor(self, one: Started) -> Path:
        """As slow as the slowest."""
        modules = packages_of(Path(one.python)).glob("*.py")
        return max(modules, key=lambda module: module.read_text("utf-8"))


@pytest.fixture
def offered(tmp_path: Path, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index, in the place of any other, and a small environment in the place of this one."""
    small_environment(tmp_path, monkeypatch)
    assert checkout == Path.cwd()
    return index(tmp_path, monkeypatch)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> InEnvironments:
    """In the place of fresh processes."""
    scripted = InEnvironments()
    scripted.stand_in(monkeypatch)
    return scripted


def left(offered: Index) -> list[Path]:
    """What is left of environments."""
    return [*offered.folder.parent.rglob(f"{PREFIX}*")]


def slow_from(slow: int, count: int) -> dict[str, str]:
    """So many releases, 1.0 and so on, and what is in the module of each."""
    return {f"1.{n}": "1.02 1.0" if n >= slow else "1.0 1.0" for n in range(count)}


@pytest.mark.parametrize(
    ("guilty", "named_as"),
    [
        ("second", "second==1.1 first==1.2"),
        pytest.param("first", "first==1.1 second==1.0", marks=AT_NIGHT),
    ],
)
def test_of_two_packages_the_guilty_one_is_named_first_and_then_its_release(
    offered: Index,
    measured: InEnvironments,
    capsys: pytest.CaptureFixture[str],
    guilty: str,
    named_as: str,
) -> None:
    for name in ("first", "second"):
        offered.release(name, slow_from(1 if name == guilty else 9, 3))
    spans = ("--package=first=1.0..1.2", "--package=second=1.0..1.2")
    assert bisect(*spans, "--", "tests") == FAILED
    assert f"first slower one: {named_as}\n" in capsys.readouterr().out
    asked = [*dict.fromkeys(measured.asked)]
    assert asked[:3] == [f"first-1.{a} second-1.{b}" for a, b in ((0, 0), (2, 2), (2, 0))]
    assert measured.builds <= 3
    assert not left(offered)


def test_a_copy_has_the_release_and_what_it_requires_and_all_else_is_the_same_file(
    offered: Index, measured: InEnvironments
) -> None:
    """What a killed command left goes before it; yanked ones and pre-releases are not asked."""
    here = packages_of(Path(sys.prefix, "bin", "python"))
    (here / "other.py").write_text("1.0 1.0", encoding="utf-8")
    (killed := offered.folder.parent / "temporary" / f"{PREFIX}killed").mkdir(parents=True)
    offered.release("base", {"0.1": "1.0 1.0"})
    factors = {"1.0": "1.0 1.0", "1.1": "1.02 1.0", "1.2rc1": "1.0 1.0", "1.2": "1.02 1.0"}
    offered.release("net", factors, requires=["base"], yanked=["1.1"])
    assert bisect("--package=Net=1.0..1.2", "--", "tests") == FAILED
    assert {*measured.asked} == {"base-0.1 net-1.0", "base-0.1 net-1.2"}
    assert measured.linked == {here / "other.py"}
    assert not killed.exists()
    assert not left(offered)
    assert [file.name for file in here.glob("*.py")] == ["other.py"]


@pytest.mark.parametrize(
    ("has_uv", "said"), [(True, "uv cannot list the releases of net"), (False, "pip install uv")]
)
def test_without_uv_or_its_index_it_says_what_to_do(
    offered: Index,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    has_uv: bool,
    said: str,
) -> None:
    offered.release("net", slow_from(1, 2))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    if not has_uv:
        monkeypatch.setattr(sys, "executable", f"{sys.prefix}/bin/python")
    assert bisect("--package=net=1.0..1.1", "--", "tests") == BAD_CONFIGURATION
    assert said in capsys.readouterr().err
    assert not left(offered)


def test_only_a_virtual_environment_is_copied(
    checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    history(checkout, of_one(1.0))
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    assert bisect("--package=net=1.0..1.1", "--", "tests") == BAD_CONFIGURATION
    assert "from an environment that venv or uv made" in capsys.readouterr().err


@AT_NIGHT
def test_a_release_that_cannot_be_installed_is_passed_over(
    offered: Index, measured: InEnvironments, capsys: pytest.CaptureFixture[str]
) -> None:
    factors = slow_from(3, 5)
    offered.release("net", {"1.2": factors.pop("1.2")}, requires=["none-such"])
    offered.release("net", factors)
    assert bisect("--package=net=1.0..1.4", "--", "tests") == FAILED
    said = capsys.readouterr()
    assert "uv cannot install net==1.2" in said.err
    assert "one of these is the first slower one (the others could not be compared):\n" in said.out
    assert {*said.out.splitlines()[-2:]} == {"  net==1.2", "  net==1.3"}
    assert measured.started
