"""GitHub's REST API as a job uses it, by GITHUB_API_URL, GITHUB_REPOSITORY and GITHUB_TOKEN.

https://docs.github.com/en/rest
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_gpuperf.errors import FAILED, GpuperfError, UsageFailure

BOT = "github-actions[bot]"
"""The account that jobs write as. It is checked, since anybody can copy our marks."""
TEXT_LIMIT = 60_000
"""Characters of a report inside a comment or a pull request; GitHub takes 65,536 in all."""
_PAGE = 100
"""Entries of a page; GitHub gives no more."""
_TRIES = 4
"""A secondary limit, an error of the server and a dropped connection pass."""
_PASSING = (429, 500, 502, 503, 504)
_LONGEST_S = 120.0
"""No single wait is longer: a job has an end."""


class RequestRefused(GpuperfError):
    """GitHub said no, or nothing, as often as it was asked. Exit code 1."""

    code = FAILED


def setting(name: str) -> str:
    """A variable of the job's environment. Raises UsageFailure if it is missing."""
    try:
        return os.environ[name]
    except KeyError:
        raise UsageFailure(f"the environment has no {name}. Set it, as GitHub's jobs do") from None


def asked(method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The API's answer for this repository. Raises RequestRefused with address and reason."""
    url = f"{setting('GITHUB_API_URL')}/repos/{setting('GITHUB_REPOSITORY')}/{path}"
    headers = {
        "Accept": "application/vnd.github+json",
        "Authorization": f"Bearer {setting('GITHUB_TOKEN')}",
        "X-GitHub-Api-Version": "2022-11-28",
    }
    try:
        return sent(url, body, method, headers, json.loads)
    except RequestRefused as error:
        raise RequestRefused(f"{method} {url}: {error}") from None


def sent(
    url: str,
    body: object,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    read: Callable[[bytes], Any] = bytes,
) -> Any:
    """What a server answers to JSON, as `read` takes it; that raises ValueError for no answer.

    Raises RequestRefused with the reason, without the address.
    """
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", **(headers or {})},
    )
    for attempt in range(1, _TRIES + 1):
        wait = float(2**attempt)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return read(answer.read())
        except urllib.error.HTTPError as error:
            asks = error.headers.get("Retry-After", "")
            wait = float(asks) if asks.isdigit() else wait
            why = f"{error.code} {error.reason}"
            # Only a 403 that names a time is a limit; any other stays.
            passes = error.code in _PASSING or (error.code == 403 and asks)
        except (OSError, http.client.HTTPException, ValueError) as error:
            # What was begun may have been done: only a question is asked again.
            why, passes = f"{type(error).__name__}: {error}", method != "POST"
        if not passes or attempt == _TRIES:
            raise RequestRefused(why)
        time.sleep(min(wait, _LONGEST_S))
    raise AssertionError


def listed(path: str) -> Iterator[dict[str, Any]]:
    """All entries of a list, page by page. Raises RequestRefused."""
    separator = "&" if "?" in path else "?"
    for page in itertools.count(1):
        entries = asked("GET", f"{path}{separator}per_page={_PAGE}&page={page}")
        yield from entries
        if len(entries) < _PAGE:
            return
