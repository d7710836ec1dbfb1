"""YAML of plain values: what yaml's own loader reads, and bounds before anything is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.storage import files
from pytest_gpuperf.storage.files import DEEPEST_YAML
from tests import ROOT, strategies

FILE = Path("meddpm.yaml")


def read(text: str) -> object:
    return files.parse_yaml(text, FILE, "Mend it")


def refusal(text: str) -> str:
    with pytest.raises(BadFile) as refused:
        read(text)
    return str(refused.value)


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

values = st.recursive(
    strategies.texts | strategies.numbers | st.integers() | st.booleans() | st.none(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(strategies.texts, inner, max_size=4)
    ),
    max_leaves=8,
)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


@settings(max_examples=50)
@given(value=values)
def test_it_reads_what_yaml_reads(value: object) -> None:
    text = yaml.dump(value, Dumper=_Dumper, allow_unicode=True)
    # yaml folds a key of U+0085 to a blank: its text may have one name twice, and is refused.
    assume(yaml.load(text, Loader=LOADER) == value)
    assert read(text) == yaml.load(text, Loader=LOADER)


def test_scalars_are_read_as_yaml_reads_them() -> None:
    written = """
        1_0 0x1f 012 0 -0 +1 1. 1.5 -1.5e+3 1e3 .inf -.inf ~ yes no On null 2026-01-01 1:30 '1' "1"
    """
    text = "\n".join(f"- {word}" for word in (*written.split(), "\u0661", "a b", ""))
    assert read(text) == yaml.safe_load(text)


def test_committed_files_are_read_the_same() -> None:
    file = ROOT / "baselines" / "cpu" / "portable" / "meddpm.yaml"
    text = file.read_text(encoding="utf-8")
    assert read(text) == yaml.load(text, Loader=LOADER)


@pytest.mark.parametrize(("begin", "end"), [("[", "]"), ("{a: ", "}")])
def test_nesting_is_bounded(begin: str, end: str) -> None:
    """30,000 levels in 60 kB were a segmentation fault."""
    assert read(begin * DEEPEST_YAML + end * DEEPEST_YAML)
    for levels in (DEEPEST_YAML + 1, 30_000):
        assert f"nested deeper than {DEEPEST_YAML} levels" in refusal(begin * levels + end * levels)


def test_there_are_no_aliases() -> None:
    """Nine lines of nine aliases each were 3.5 GB and 100 s."""
    bomb = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)
    )
    assert len(bomb) < 600
    assert refusal(bomb).startswith(f"{FILE}: line 2 column 10: an alias: write what it stands for")


def test_no_object_is_made_of_a_tag() -> None:
    for tag in ("!!python/object/apply:os.system [x]", "!!binary aGk=", "!!set {a}", "!mine x"):
        assert "column 4: the tag " in refusal(f"a: {tag}")


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "a number of 2,998 characters" in refusal("1:" + ":".join(["59"] * 999))
    monkeypatch.setattr(files, "MOST_YAML", 10)
    assert read("a: 4567890") == {"a": 4567890}
    assert "11 characters, and at most 10 are read" in refusal("a: 45678901")
