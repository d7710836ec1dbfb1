"""README, docs and help texts: the worst patterns that CONTRIBUTING.md's style names."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

import pytest

from pytest_gpuperf import __main__
from pytest_gpuperf.plugin import options
from tests import ROOT
from tests.repository.test_docs import PAGES

LONGEST = 35
"""Words that a sentence may have; 25 are meant."""
MEAN = 18
_BAD_WORDS = re.compile(r"\b(nobody|somebody|whoever)\b", re.IGNORECASE)
_BAD_BEGINNINGS = re.compile(r"(Of what|What is|Who)\b")
_NOT_PROSE = re.compile(r"```.*?```|<!-- generated: .*?<!-- end -->", re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?])[*\")]*\s+(?=[A-Z0-9`\"(*\[])")


def plain(text: str) -> str:
    """Text in which code is one word, a link its title, and a quotation nothing."""
    text = re.sub(r"`[^`]*`", "Code", text)
    text = re.sub(r"\]\([^)]*\)", "", text).replace("[", "")
    return re.sub(r'"[^"]*"', "", text)


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph, an item of a list, a cell of a table or a help text."""
    return [one for one in _SENTENCE_END.split(plain(" ".join(text.split()))) if one.strip("*_ |")]


def blocks(page: str) -> tuple[list[str], list[str]]:
    """The paragraphs and items of a page, and the cells of its tables."""
    lines = _NOT_PROSE.sub("\n", page)
    prose, cells = [""], list[str]()
    for line in lines.splitlines():
        if line.startswith("|"):
            cells += re.split(r"(?<!\\)\|", re.sub(r"`[^`]*`", "code", line))
        elif not line.strip() or line.startswith("#"):
            prose.append("")
        elif re.match(r" *([-*]|\d+\.) ", line):
            prose.append(line.lstrip(" -*0123456789."))
        else:
            prose[-1] += f" {line}"
    return [text for text in prose if text.strip()], cells


def faults(texts: list[str]) -> list[str]:
    """The sentences that have a pattern, each with its reason."""
    found = []
    for one in (sentence for text in texts for sentence in sentences(text)):
        if len(one.split()) > LONGEST:
            found.append(f"{len(one.split())} words: {one}")
        if (bad := _BAD_WORDS.search(one)) or (bad := _BAD_BEGINNINGS.match(one)):
            found.append(f"{bad[0]}: {one}")
    return found


def helps(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, str]]:
    """The help of each argument, of the parser's own commands too."""
    for action in parser._actions:
        if action.help and action.help != argparse.SUPPRESS:
            yield f"{name} {action.dest}", action.help
        if isinstance(action, argparse._SubParsersAction):
            for word, below in action.choices.items():
                yield from helps(below, f"{name} {word}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page: Path) -> None:
    prose, cells = blocks(page.read_text(encoding="utf-8"))
    assert faults([*prose, *cells]) == []
    lengths = [len(one.split()) for text in prose for one in sentences(text)]
    assert mean(lengths) <= MEAN


def test_help_is_plain_english() -> None:
    texts = dict(__main__.COMMANDS)
    for command in __main__.COMMANDS:
        texts.update(helps(__main__.parser([command]), "gpuperf"))
    texts.update({flag.name: flag.text for _, flag in options.flags()})
    assert len(texts) > 60
    assert {name: bad for name, text in texts.items() if (bad := faults([text]))} == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It waits. Nobody got on for 1800 s.", "Nobody"),
        ("Of what is gated, one is shown.", "Of what"),
        ("It ends. What is measured is the step.", "What is"),
        ("Who raises a number says why.", "Who"),
        ("- item\n- " + "word " * (LONGEST + 1), f"{LONGEST + 1} words"),
        ("| a | " + "word " * (LONGEST + 1) + "|", f"{LONGEST + 1} words"),
    ],
)
def test_each_pattern_is_found(text: str, reason: str) -> None:
    prose, cells = blocks(text)
    (fault,) = faults([*prose, *cells])
    assert fault.startswith(f"{reason}: ")


@pytest.mark.parametrize(
    "text",
    [
        "```\nNobody types this.\n```",
        "<!-- generated: flags -->\nWho is it?\n<!-- end -->",
        'Not "nobody got on", but `somebody`.',
        "A table:\n| What | whoever_it_is |",
    ],
)
def test_code_generated_parts_and_quotations_are_not_prose(text: str) -> None:
    prose, cells = blocks(text)
    assert faults([*prose, *cells]) == []
