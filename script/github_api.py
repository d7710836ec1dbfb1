"""GitHub's API as jobs use it: GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN are in theirs."""

import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

PAGE = 100
"""Entries of a page; GitHub gives no more."""


def asked(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the API answers for this repository. Raises urllib.error.HTTPError."""
    request = urllib.request.Request(
        f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def listed(path: str) -> Iterator[dict[str, Any]]:
    """All entries of a list, page by page."""
    page = 1
    while True:
        separator = "&" if "?" in path else "?"
        entries = asked("GET", f"{path}{separator}per_page={PAGE}&page={page}")
        yield from entries
        if len(entries) < PAGE:
            return
        page += 1
