"""What of the suites runs: what their folder's name asks for, and what is asked for by name.

A test with the marker `beyond` is left out of `pytest suites/meddpm`. It runs under --everything,
and where its file, its id, -k, -m or --lf names it. What only leaves tests out (`-k "not compile"`)
names none.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from suites.claim import Claim, together

BEYOND = "beyond"
_ONLY_EXCLUDES = re.compile(r"not\s+[^\s()]+(\s+and\s+not\s+[^\s()]+)*|not\s*\([^()]*\)")
"""An expression of -k or -m that names no test which is to run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Registers the flag."""
    parser.getgroup("suites").addoption(
        "--everything",
        action="store_true",
        help="run all tests of a suite: more configurations, sampling, loading and quality gates. "
        "Med-DDPM on an H200 takes five minutes, and half a minute without this flag",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the markers."""
    config.addinivalue_line("markers", "xdist_group(name): run in one worker of pytest-xdist")
    config.addinivalue_line(
        "markers",
        f"{BEYOND}(last=False): run only with --everything, or if named by file, id, -k or -m; "
        "with `last`, after all other tests of the suite",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what nobody asked for; what was asked for by the folder comes first."""
    items.sort(key=_place)
    _keep_together(items)
    if config.getoption("everything", False) or _selects(config):
        return
    named = _named(config)
    left_out = [
        item
        for item in items
        if item.get_closest_marker(BEYOND) and item.path.resolve() not in named
    ]
    if left_out:
        config.stash[_LEFT_OUT] = len(left_out)
        config.hook.pytest_deselected(items=left_out)
        unwanted = set(left_out)
        items[:] = [item for item in items if item not in unwanted]


def pytest_report_collectionfinish(config: pytest.Config) -> str | None:
    """Says how to get the rest."""
    left_out = config.stash.get(_LEFT_OUT, 0)
    if not left_out:
        return None
    return f"{left_out} more tests with --everything, or by file, id or -k"


def _keep_together(items: Sequence[pytest.Item]) -> None:
    """Has workers of pytest-xdist run the tests of a claim in one of them, suite by suite.

    Those that measure its configurations are beside it, or in another file where none is beside it:
    others, of quality say, use a configuration that is measured there.
    """
    claims: dict[Path, dict[pytest.Item, Claim]] = {}
    for item in items:
        callspec = getattr(item, "callspec", None)  # not every test has parameters
        claim = callspec and callspec.params.get("claim")
        if isinstance(claim, Claim):
            claims.setdefault(item.path, {})[item] = claim
    for file, of_file in claims.items():
        groups = together(of_file.values())
        beside = {_configuration(item) for item in items if item.path == file}
        for item in items:
            of = of_file[item].numerator if item in of_file else _configuration(item)
            measured = item.path == file or of not in beside
            if item.path.parent == file.parent and of in groups and measured:
                item.add_marker(pytest.mark.xdist_group(f"{file.parent.name}: {groups[of]}"))


def _configuration(item: pytest.Item) -> str:
    marker = item.get_closest_marker("optimization")
    return str(marker.args[0]) if marker else ""


_LEFT_OUT = pytest.StashKey[int]()


def _place(item: pytest.Item) -> int:
    marker = item.get_closest_marker(BEYOND)
    if marker is None:
        return 0
    return 2 if marker.kwargs.get("last") else 1


def _selects(config: pytest.Config) -> bool:
    """Whether tests are chosen by what they are called, or by how they ended."""
    expressions = [config.getoption("keyword"), config.getoption("markexpr")]
    asked = [one for one in expressions if one and not _ONLY_EXCLUDES.fullmatch(one.strip())]
    return bool(asked or config.getoption("lf", False))


def _named(config: pytest.Config) -> set[Path]:
    """The files that the command line names, by themselves or in a test's id."""
    folder = config.invocation_params.dir
    paths = (folder / argument.partition("::")[0] for argument in config.args)
    return {path.resolve() for path in paths if path.is_file()}
