"""A stand-in of GitHub's API, with what our commands ask of it, and with its faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pytest_gpuperf.__main__ import main

HEAD = "0123456789abcdef0123456789abcdef01234567"
BOT = "github-actions[bot]"
DROPPED, HTML = -1, -2
"""Faults that are no status: the connection ends, or the answer is a web page."""


@dataclass
class GitHub:
    """Pull request 7 and its comments, issues, and pull requests that were opened."""

    head: str = HEAD
    comments: list[dict[str, Any]] = field(default_factory=list)
    issues: list[dict[str, Any]] = field(default_factory=list)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """What the address /hook was told."""
    requests: list[str] = field(default_factory=list)
    url: str = ""
    refuses: int = 0
    """The status of every answer, if not 0."""
    faults: list[tuple[str, int]] = field(default_factory=list)
    """Method and status of answers to come, each once: see DROPPED and HTML."""
    waits: str | None = "0"
    """Retry-After of a fault; None for none."""

    def comment(self, body: str, login: str = BOT) -> None:
        """Somebody has said this."""
        number = 100 + len(self.comments)
        self.comments.append({"id": number, "body": body, "user": {"login": login}})

    def issue(self, body: str, login: str = BOT, **fields: Any) -> dict[str, Any]:
        """An issue that somebody has opened."""
        made = {"number": 1 + len(self.issues), "title": "x", "state": "open", "body": body}
        made |= {"comments": [], "user": {"login": login}, "labels": [{"name": "gpuperf"}]}
        self.issues.append(made | fields)
        return self.issues[-1]


class Handler(BaseHTTPRequestHandler):
    github: GitHub

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path.endswith("/pulls/7"):
            self.answer({"head": {"sha": self.github.head}})
        elif path.endswith("/issues/7/comments"):
            page, size = int(query["page"][0]), int(query["per_page"][0])
            self.answer(self.github.comments[(page - 1) * size : page * size])
        elif path.endswith("/issues"):
            page, size = int(query["page"][0]), int(query["per_page"][0])
            issues = [
                one
                for one in self.github.issues
                if query["state"][0] in ("all", one["state"])
                and query["labels"][0] in {label["name"] for label in one["labels"]}
            ]
            self.answer(issues[(page - 1) * size : page * size])
        elif path.endswith("/pulls"):
            branch = query["head"][0].partition(":")[2]
            self.answer([one for one in self.github.pulls if one["head"] == branch])
        elif "/compare/" in path:
            commits = [{"author": {"login": "ada"}}, {"author": {"login": "bo"}}]
            self.answer({"total_commits": 2, "commits": commits})
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        said = self.body()
        if self.faulty():
            return
        if self.path == "/hook":
            self.github.messages.append(said)
        elif self.path.endswith("/issues"):
            labels = [{"name": name} for name in said.pop("labels")]
            self.github.issue(**said, labels=labels)
        elif self.path.endswith("/pulls"):
            self.github.pulls.append(said)
        elif self.path.endswith("/issues/7/comments"):
            self.github.comment(said["body"])
        else:
            self.issue(self.path.split("/")[-2])["comments"].append(said["body"])
        self.answer({})

    def do_PATCH(self) -> None:
        said = self.body()
        if self.faulty():
            return
        *_, kind, number = self.path.split("/")
        if kind == "comments":
            (comment,) = (one for one in self.github.comments if one["id"] == int(number))
            comment.update(said)
        else:
            if "labels" in said:
                said["labels"] = [{"name": name} for name in said["labels"]]
            self.issue(number).update(said)
        self.answer({})

    def issue(self, number: str) -> dict[str, Any]:
        (issue,) = (one for one in self.github.issues if one["number"] == int(number))
        return issue

    def body(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return said

    def faulty(self) -> bool:
        """Whether this answer was a fault; nothing was done then."""
        github = self.github
        next_one = next((one for one in github.faults if one[0] == self.command), None)
        if next_one:
            github.faults.remove(next_one)
        status = next_one[1] if next_one else github.refuses
        if status == HTML:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>maintenance</html>")
        elif status == DROPPED:
            self.close_connection = True
        elif status:
            self.send_response(status)
            if next_one and github.waits is not None:
                self.send_header("Retry-After", github.waits)
            self.end_headers()
        return bool(status)

    def answer(self, what: object) -> None:
        self.github.requests.append(f"{self.command} {self.headers['Authorization']}")
        if self.command == "GET" and self.faulty():
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())

    def log_message(self, *_: object) -> None:
        """Quiet."""


def ran(name: str, *arguments: str) -> int:
    """A command, in this process; its exit code."""
    return main([name, *arguments])


@pytest.fixture
def github_job(github: GitHub, monkeypatch: pytest.MonkeyPatch) -> GitHub:
    """The stand-in, and the environment of a job by which `ran` finds it."""
    monkeypatch.setenv("GITHUB_API_URL", github.url)
    monkeypatch.setenv("GITHUB_REPOSITORY", "somebody/project")
    monkeypatch.setenv("GITHUB_TOKEN", "secret")
    monkeypatch.setenv("NIGHT", "https://example.org/night")
    return github


@pytest.fixture
def github() -> Iterator[GitHub]:
    made = GitHub()
    handler = type("Of", (Handler,), {"github": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    made.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    server.shutdown()
    server.server_close()
    thread.join()
