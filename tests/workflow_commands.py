"""Reads workflow commands as the runner of GitHub Actions does."""

from __future__ import annotations

from dataclasses import dataclass

_ESCAPES = (("%0D", "\r"), ("%0A", "\n"), ("%25", "%"))
_ESCAPES_OF_PROPERTIES = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


@dataclass(frozen=True)
class Command:
    """One `::name property=value,...::message`."""

    name: str
    properties: dict[str, str]
    message: str


def commands(output: str) -> list[Command]:
    """The commands in what a step printed: a runner reads lines that end in CR, LF or both."""
    lines = output.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [_command(line.lstrip()) for line in lines if line.lstrip().startswith("::")]


def _command(line: str) -> Command:
    head, ends, message = line[2:].partition("::")
    assert ends, line
    name, _, written = head.partition(" ")
    pairs = (part.partition("=") for part in written.split(",") if part)
    properties = {key.strip(): _read(value, _ESCAPES_OF_PROPERTIES) for key, _, value in pairs}
    return Command(name, properties, _read(message, _ESCAPES))


def _read(text: str, escapes: tuple[tuple[str, str], ...]) -> str:
    for written, meant in escapes:
        text = text.replace(written, meant)
    return text


def harmless(output: str) -> bool:
    """Whether an output has no command of any CI service, and nothing that a terminal obeys."""
    executed = any(mark in output for mark in ("##[", "##vso[", "##teamcity["))
    started = [line for line in output.split("\n") if line.lstrip().startswith("::")]
    return (
        not executed
        and not any("::" in line.lstrip()[2:] for line in started)
        and all(line.isprintable() for line in output.split("\n"))
    )
