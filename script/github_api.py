"""GitHub's API as jobs use it: GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN are in theirs."""

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

PAGE = 100
"""Entries of a page; GitHub gives no more."""
BOT = "github-actions[bot]"
"""Who writes what a job writes: anybody may write our marks."""
TRIES = 4
"""A secondary limit, an error of the server and a dropped connection pass."""
_PASSING = (429, 500, 502, 503, 504)
_LONGEST_S = 120.0
"""No single wait is longer: a job has an end."""


class Refused(Exception):
    """GitHub said no, or nothing, as often as it was asked."""


def asked(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """What the API answers for this repository. Raises Refused, with the address and the reason."""
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}"
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Content-Type": "application/json",
            "X-GitHub-Api-Version": "2022-11-28",
        },
    )
    for attempt in range(1, TRIES + 1):
        wait = float(2**attempt)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            asks = error.headers.get("Retry-After", "")
            wait = float(asks) if asks.isdigit() else wait
            why = f"{error.code} {error.reason}"
            # Only a 403 that names a time is a limit; any other stays.
            passes = error.code in _PASSING or (error.code == 403 and asks)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # What was begun may have been done: only a question is asked again.
            why, passes = f"{type(error).__name__}: {error}", method != "POST"
        if not passes or attempt == TRIES:
            raise Refused(f"{method} {url}: {why}")
        time.sleep(min(wait, _LONGEST_S))
    raise AssertionError


def listed(path: str) -> Iterator[dict[str, Any]]:
    """All entries of a list, page by page. Raises Refused."""
    page = 1
    while True:
        separator = "&" if "?" in path else "?"
        entries = asked("GET", f"{path}{separator}per_page={PAGE}&page={page}")
        yield from entries
        if len(entries) < PAGE:
            return
        page += 1
