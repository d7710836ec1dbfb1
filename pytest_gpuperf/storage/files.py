"""The ways in and out of the files we keep: validated on load, atomic on write, under locks.

A file is read whole and validated against the dataclasses of `model` (by pydantic), so that a bad
one is refused with the path of the offending entry before anything is measured or written. Writes
go to a temporary file in the same folder and are renamed over the old one. Who changes baselines
holds their folder meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import tempfile
import time
import unicodedata
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pytest_gpuperf.errors import BadFile, UsageFailure, printable

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails


T = TypeVar("T")
Problem = tuple[str, str]
"""The path of an entry that cannot be true, and why."""

PATIENCE = 300.0
"""Seconds that who changes baselines waits for another who does; one takes a second or two."""
_TICK = 1.0
"""Seconds between two words of who waits for a lock."""
_POLL = 0.05
"""Seconds between two looks whether it is free."""

MOST_BYTES = 64 * 2**20
"""Of a file that is read, and of what is compressed in it; the largest committed run has 11 MB."""
MOST_VALUES = 4_000_000
"""Values of a file, which take some hundred bytes of memory each; that run has 0.6 million."""
DEEPEST = 200
"""Levels of mappings and lists that pydantic's parser of JSON follows; our files have 9."""
MOST_YAML = 8 * 2**20
"""The largest committed file has 0.7 MB, and a megabyte takes about a second."""
DEEPEST_YAML = 50
"""Levels of mappings and lists; ours have 9."""
_LONGEST_NUMBER = 400
"""Characters of a number, of which Python's longest float has 325. YAML's numbers of base 60 take
the square of their length."""

_YAML_TEXT = "tag:yaml.org,2002:str"
_YAML_INTEGER = re.compile(r"-?[1-9][0-9]{0,17}|0")
_YAML_FLOAT = re.compile(r"-?[0-9]{1,20}\.[0-9]{1,30}(e[-+][0-9]{1,3})?")
"""Nearly all that there is; what else YAML takes for a number is for yaml to read."""
_MOST_LISTED = 10_000
"""Wrong entries of a file, of which the first is named."""
_MEMORY_OF_XZ = 100 * 2**20
"""Bytes for decompressing, which a file asks for; `xz -9` makes files that ask for 65 MiB."""
LONGEST_NAME = 200
"""Bytes of a suite's name: file systems allow 255, with our endings."""

COMPRESSED = ".xz"
"""A file whose name ends so is compressed: campaigns and kernel tables are kept for long."""


def read_json(file: Path, remedy: str) -> object:
    """What the JSON in `file` says; `remedy` ends the message of what cannot be trusted.

    Raises FileNotFoundError, UsageFailure for a file that cannot be read, and BadFile.
    """
    return parse_json(read_bytes(file), file, remedy)


def read_bytes(file: Path) -> bytes:
    """What `file` holds.

    Raises FileNotFoundError, UsageFailure where it cannot be read, and BadFile where it is larger
    than anything of ours.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be read ({error.strerror})") from None
    if len(content) > MOST_BYTES:
        problem = f"larger than {MOST_BYTES // 2**20} MiB, which is the most that is read"
        raise BadFile(file, "", problem, "Name another file, or record fewer tests into one")
    return content


def parse_json(content: bytes, file: Path, remedy: str) -> object:
    """What `content`, read from `file`, says: JSON, compressed for a name in .xz.

    Raises BadFile; the `remedy` ends its message.
    """
    text = decoded(content, file, remedy)
    check_values(text, file, remedy)
    try:
        return json.loads(text, object_pairs_hook=_without_twins)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BadFile(file, where, f"not JSON: {error.msg}", remedy) from None
    except RecursionError:
        raise BadFile(file, "", _TOO_DEEP, remedy) from None
    except MemoryError:
        raise BadFile(file, "", _TOO_LARGE, remedy) from None
    except ValueError as error:
        raise BadFile(file, "", f"cannot be read: {error}", remedy) from None


def decoded(content: bytes, file: Path, remedy: str) -> str:
    """The text of `content`, read from `file`: compressed for a name in .xz. Raises BadFile."""
    try:
        return (_unpacked(content) if file.suffix == COMPRESSED else content).decode()
    except lzma.LZMAError as error:
        raise BadFile(file, "", f"not compressed by xz: {error}", remedy) from None
    except UnicodeDecodeError as error:
        raise BadFile(file, f"byte {error.start}", "not UTF-8 text", remedy) from None
    except _Oversized as error:
        raise BadFile(file, "", str(error), remedy) from None


class _Oversized(Exception):
    """What is compressed is larger than anything of ours."""


_TOO_LARGE = "takes more memory than there is here"
_TOO_DEEP = f"nested deeper than {DEEPEST} levels"


def _unpacked(content: bytes) -> bytes:
    """What xz compressed, a little more than MOST_BYTES at most. Raises LZMAError, _Oversized."""
    unpacking = lzma.LZMADecompressor(memlimit=_MEMORY_OF_XZ)
    unpacked = unpacking.decompress(content, MOST_BYTES + 1)
    if len(unpacked) > MOST_BYTES:
        raise _Oversized(f"more than {MOST_BYTES // 2**20} MiB are compressed in it")
    if not unpacking.eof:
        raise lzma.LZMAError("it ends too early")
    return unpacked


def check_values(text: str, file: Path, remedy: str) -> None:
    """Raises BadFile for JSON of more text or values than are read, before any is made."""
    if len(text) > MOST_BYTES:
        problem = f"{len(text):,} characters, and at most {MOST_BYTES:,} are read"
        raise BadFile(file, "", problem, remedy)
    values = sum(map(text.count, ",[{"))
    if values > MOST_VALUES:
        problem = f"about {values:,} values, and at most {MOST_VALUES:,} are read"
        raise BadFile(file, "", problem, remedy)


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The mapping of these pairs. Raises ValueError for a key that is there twice."""
    mapping: dict[str, Any] = {}
    for key, value in pairs:
        if key in mapping:
            raise ValueError(f'the key "{key}" is there twice')
        mapping[key] = value
    return mapping


class _Unread(Exception):
    """What YAML has and these files have not."""

    def __init__(self, problem: str, event: Any) -> None:
        self.problem, self.mark = problem, event.start_mark


def parse_yaml(text: str, file: Path, remedy: str) -> object:
    """What the YAML `text`, read from `file`, says. Raises BadFile; `remedy` ends its message.

    Event by event, which takes two thirds of the time of yaml's own composer. That follows nesting
    with the stack of C, which ends the process at some 20,000 levels, and its aliases make
    gigabytes of a few hundred bytes. Refused are aliases, tags, keys that are no text or there
    twice, and what is beyond the bounds.
    """
    import yaml

    if len(text) > MOST_YAML:
        problem = f"{len(text):,} characters, and at most {MOST_YAML:,} are read"
        raise BadFile(file, "", problem, remedy)
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events = loader(text)
    try:
        return _document(events)
    except _Unread as error:
        raise BadFile(file, _marked(error.mark), error.problem, remedy) from None
    except yaml.MarkedYAMLError as error:
        where = _marked(error.problem_mark)
        raise BadFile(file, where, f"not YAML: {error.problem}", remedy) from None
    except (yaml.YAMLError, ValueError) as error:
        # ValueError: a number or a date that Python does not have, such as 2026-13-01.
        raise BadFile(file, "", f"not YAML: {str(error).splitlines()[0]}", remedy) from None
    finally:
        events.dispose()


def _marked(mark: Any) -> str:
    return f"line {mark.line + 1} column {mark.column + 1}" if mark else ""


def _document(events: Any) -> object:
    """The only document of these events; None where there is none.

    Raises _Unread and what yaml raises.
    """
    import yaml

    events.get_event()  # the stream's begin
    if isinstance(events.get_event(), yaml.StreamEndEvent):
        return None
    value = _value(events, events.get_event(), 1)
    events.get_event()  # the document's end
    if not isinstance(more := events.get_event(), yaml.StreamEndEvent):
        raise _Unread("a second document", more)
    return value


def _value(events: Any, event: Any, depth: int) -> object:
    """What begins with this event, `depth` levels deep."""
    import yaml

    if isinstance(event, yaml.AliasEvent):
        raise _Unread("an alias: write what it stands for", event)
    if event.tag is not None:
        raise _Unread(f"the tag {event.tag}: values are plain here", event)
    if isinstance(event, yaml.ScalarEvent):
        return _scalar(event, events)
    if depth > DEEPEST_YAML:
        raise _Unread(f"nested deeper than {DEEPEST_YAML} levels", event)
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(item := events.get_event(), yaml.SequenceEndEvent):
            items.append(_value(events, item, depth + 1))
        return items
    mapping: dict[str, object] = {}
    while not isinstance(begin := events.get_event(), yaml.MappingEndEvent):
        if not (isinstance(begin, yaml.ScalarEvent) and _is_text(begin, events)):
            raise _Unread("a key that is not text", begin)
        key: str = begin.value
        if key in mapping:
            raise _Unread(f'the key "{key}" is there twice', begin)
        mapping[key] = _value(events, events.get_event(), depth + 1)
    return mapping


def _is_text(event: Any, events: Any) -> bool:
    import yaml

    tag = event.tag or events.resolve(yaml.ScalarNode, event.value, event.implicit)
    return bool(tag == _YAML_TEXT)


def _scalar(event: Any, events: Any) -> object:
    """What a scalar says: text, a number, a truth, a date, or nothing."""
    import yaml

    text: str = event.value
    if not event.implicit[0]:
        return text
    if _YAML_INTEGER.fullmatch(text):
        return int(text)
    if _YAML_FLOAT.fullmatch(text):
        return float(text)
    tag = events.resolve(yaml.ScalarNode, text, event.implicit)
    if tag == _YAML_TEXT:
        return text
    if len(text) > _LONGEST_NUMBER:
        raise _Unread(f"a number of {len(text):,} characters", event)
    return events.construct_object(yaml.ScalarNode(tag, text, event.start_mark, event.end_mark))


def validate(data: object, expected: type[T], file: Path, schema: int, remedy: str) -> T:
    """`data`, as read from `file`, as an instance of the dataclass `expected`.

    `schema` is the version this code writes. Raises BadFile naming the offending entry; the
    `remedy` ends its message.
    """
    from pydantic import ValidationError

    if not isinstance(data, dict):
        raise BadFile(file, "", f"expected a mapping, found {type(data).__name__}", remedy)
    version = data.get("schema")
    if version != schema or isinstance(version, bool):
        problem = (
            f"schema version {version!r} is not {schema}, the one this version of gpuperf reads"
        )
        if isinstance(version, int) and version > schema:
            remedy = "Install the version of pytest-gpuperf that wrote it"
        raise BadFile(file, "schema", problem, remedy)
    try:
        # Through JSON, so that strict validation treats YAML and JSON alike (lists are tuples).
        text = json.dumps(data, default=str)
    except (ValueError, RecursionError):
        raise BadFile(file, "", _TOO_DEEP, remedy) from None
    try:
        return adapter(expected).validate_json(text, strict=True)
    except MemoryError:
        raise BadFile(file, "", _TOO_LARGE, remedy) from None
    except ValidationError as error:
        if error.error_count() > _MOST_LISTED:
            # Each takes a kilobyte as pydantic lists them, and it lists them all.
            problem = f"{error.error_count():,} entries are not what they have to be"
            raise BadFile(file, "", problem, remedy) from None
        entry, problem = _first_problem(error.errors(include_url=False, include_input=False), data)
        if "recursion limit" in problem:
            entry, problem = "", _TOO_DEEP
        raise BadFile(file, entry, problem, remedy) from None


def check(problems: Iterator[Problem], file: Path, remedy: str) -> None:
    """Raises BadFile for the first of these problems of `file`, which its types cannot say."""
    for entry, problem in problems:
        raise BadFile(file, entry, problem, remedy)


def _first_problem(errors: list[ErrorDetails], data: object) -> tuple[str, str]:
    """The first offending entry of `data`, and what is wrong with it, of pydantic's findings."""
    said: dict[str, list[str]] = {}
    for error in errors:
        said.setdefault(_entry(error, data), []).append(error["msg"])
    (entry, first), more = next(iter(said.items())), len(said) - 1
    # Where several types are allowed, each of them complains.
    others = [text.removeprefix("Input should be ") for text in first[1:]]
    problem = " or ".join([first[0], *others])
    return entry, f"{problem} ({more} more)" if more else problem


def _entry(error: ErrorDetails, data: Any) -> str:
    """The path of an offending entry; pydantic's names of types at its end are left out."""
    path = []
    for part in error["loc"]:
        try:
            data = data[part]
        except (LookupError, TypeError):
            if error["type"] != "missing":
                break
        path.append(str(part))
    return "/".join(path)


def adapter(expected: type[T]) -> TypeAdapter[T]:
    """Pydantic's validator for a dataclass, built once."""
    from pydantic import TypeAdapter

    if expected not in _ADAPTERS:
        _ADAPTERS[expected] = TypeAdapter(expected)
    return cast("TypeAdapter[T]", _ADAPTERS[expected])


_ADAPTERS: dict[type, TypeAdapter[Any]] = {}


def to_plain(value: object) -> Any:
    """A dataclass as mappings, lists and scalars."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True)


def to_json(value: object) -> str:
    """A dataclass as one line of JSON."""
    return adapter(type(value)).dump_json(value, by_alias=True).decode()


def put_away(value: object) -> bytes:
    """A dataclass that may not be asked for again, as bytes; `taken_out` makes it one again.

    A thousand measurements of a session would be looked through by every collection of garbage, of
    which each measurement makes two. As objects, three committed runs take 4.6 to 8.9 times as many
    bytes (h200-meddpm, h200-optimizations, h200-tf32-broken).
    """
    return zlib.compress(to_json(value).encode(), level=1)


def taken_out(kind: type[T], put: bytes) -> T:
    """The dataclass of this kind that was put away."""
    return adapter(kind).validate_json(zlib.decompress(put))


def writable(text: str) -> str:
    """`text` as a file can hold it: half of a surrogate pair, which UTF-8 has not, is escaped.

    Python's own text may have one, from an escape or a file's name that is not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def packed(content: bytes, file: Path, *, quickly: bool = False) -> bytes:
    """What `file` holds: compressed for a name in .xz, `quickly` at the cost of size."""
    if file.suffix != COMPRESSED:
        return content
    return lzma.compress(content, preset=0 if quickly else lzma.PRESET_DEFAULT)


def check_writable(file: Path) -> None:
    """Raises UsageFailure where `file` could not be written: better before an hour of work."""
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if file.is_dir():
        raise UsageFailure(f"{file}: cannot be written (it is a folder). Name a file")
    if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
        what = "is no folder" if not folder.is_dir() else "may not be written to"
        raise UsageFailure(f"{file}: cannot be written ({folder} {what}). Name another place")


def write_atomically(file: Path, content: str | bytes) -> None:
    """Replaces `file` by `content` in one step: a reader sees the old content or the new, whole.

    Raises UsageFailure where the file cannot be written; the old one is then as it was.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        sweep(file.parent)
        with staging(file.parent) as folder:
            temporary = folder / "content"
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(file)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be written ({error.strerror})") from error


def ignored_by_git(folder: Path) -> None:
    """Has git leave a folder of ours alone, which may be there or not. Where it can be written."""
    file = folder / ".gitignore"
    if not file.exists():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text("*\n", encoding="utf-8")


def git(
    folder: Path,
    *arguments: str,
    given: str = "",
    ends: Collection[int] = (0,),
    patience: float | None = None,
) -> bytes:
    """What git prints, in English, of what it is `given`; `ends` are the codes of success.

    Raises UsageFailure where it fails, is not there, or takes longer than `patience` seconds.
    """
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            input=given.encode(),
            check=False,
            env={**os.environ, "LC_ALL": "C"},
            timeout=patience,
        )
    except OSError as error:
        raise UsageFailure(f"git cannot be started ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise UsageFailure(f"git does not answer within {patience} s") from None
    if done.returncode not in ends:
        command = next(word for word in arguments if not word.startswith("-") and "=" not in word)
        said = (done.stderr or done.stdout).decode(errors="replace").strip()
        remedy = ". Run it in a git checkout" if "not a git repository" in said else ""
        raise UsageFailure(f"git {command}: {said}{remedy}")
    return done.stdout


_REMOTE = re.compile(
    r"(?:https?://|ssh://|git://)?(?:[^@/]*@)?(?P<host>[\w.-]+\.[\w-]+)(?::\d+)?[:/]"
    r"(?P<path>[\w.~-]+(?:/[\w.~-]+)+)/?"
)
"""Where a repository comes from, by either protocol; who logs in is left out."""


def web_address(folder: Path) -> str:
    """Where the repository of this folder is read in a browser; "" where that is not known.

    By the remote `origin`. GitHub, GitLab and Gitea have revisions there: compare/A...B.
    """
    try:
        remote = git(folder, "remote", "get-url", "origin").decode().strip()
    except UsageFailure:
        return ""
    known = _REMOTE.fullmatch(remote)
    return f"https://{known['host']}/{known['path'].removesuffix('.git')}" if known else ""


_STAGING = ".gpuperf-writing-"


@contextmanager
def staging(parent: Path, prefix: str = _STAGING) -> Iterator[Path]:
    """A folder for what is being written beside its place, which git never adds.

    It is held until its process ends, however that ends.
    """
    while True:
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
        with held(folder) as free:
            if not (free and folder.exists()):
                continue  # another writer swept it away before it was held
            try:
                (folder / ".gitignore").write_text("*\n", encoding="utf-8")
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Holds a folder against other processes; whether that was possible, and it is there."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            free = _flocked(handle)
        except OSError:
            free = True  # some file systems lock nothing; then nobody sweeps there either
        yield free
    finally:
        os.close(handle)


def sweep(parent: Path, prefix: str = _STAGING) -> None:
    """Removes what writers left in `parent` that were killed: nobody holds it any more."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError), held(left) as free:
            if free:
                shutil.rmtree(left, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def name_problem(name: str) -> str:
    """Why `name`, of a suite, a device or an architecture, names no file of ours; "" if it does.

    These come out of files, and paths are made of them. Letters are those of any language.
    """
    if not name or name.startswith((".", " ")) or name.endswith(" "):
        return f'"{printable(name)}" does not begin with a letter or a digit'
    odd = [c for c in name if unicodedata.category(c)[0] not in "LMN" and c not in "._-+ "]
    if odd:
        listed = printable("".join(dict.fromkeys(odd)))
        return (
            f'"{printable(name)}" has "{listed}", and only letters, digits and " ._-+" make a name'
        )
    if len(name.encode()) > LONGEST_NAME:
        return f"{len(name.encode())} bytes long, and a name has {LONGEST_NAME} at most"
    return ""


def target(file: Path) -> Path:
    """What `file` leads to where it is a symbolic link, there yet or not; else itself."""
    return Path(os.path.realpath(file)) if file.is_symlink() else file


def check_inside(file: Path, folder: Path) -> None:
    """Raises UsageFailure where `file`, made of names in `folder`, would be written outside of it.

    That is where a symbolic link on the way leads out; `folder` itself may be one.
    """
    real, inside = Path(os.path.realpath(file)), folder.resolve()
    if not real.is_relative_to(inside):
        raise UsageFailure(
            f"{file}: would be written into {real.parent}, outside of {inside}: a symbolic "
            "link leads there. Remove it, or name the folder it leads to with --baselines"
        )


def remove(file: Path) -> None:
    """Removes `file` if it is there. Raises UsageFailure where it cannot be removed."""
    try:
        file.unlink(missing_ok=True)
    except OSError as error:
        raise UsageFailure(f"{file}: cannot be removed ({error.strerror})") from error


class Locked(UsageFailure):
    """Somebody else holds what was to be held, and has not let go in time."""

    def __init__(self, place: Path, holder: str, waited: float) -> None:
        self.holder = holder
        seconds = f" after {waited:.0f} s" if waited else ""
        super().__init__(
            f"{place}: held by {holder}{seconds}. Wait until that has ended, or end it"
        )


@contextmanager
def locked(
    place: Path, *, patience: float = PATIENCE, tick: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Holds a folder, or a device's node, against everybody else on this machine.

    The place itself is held (flock): whoever may read it can do so, under any path and TMPDIR; no
    file is made for it, and what a killed process held is free. A second time in one process it is
    held by another, too. `tick` is called about every second of waiting.

    Raises Locked after `patience` seconds, FileNotFoundError where there is no such place, and
    UsageFailure where it cannot be opened or held.
    """
    with ExitStack() as opened:
        try:
            handle = os.open(place, os.O_RDONLY)
            opened.callback(os.close, handle)
            _wait(handle, place, patience, tick)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise UsageFailure(f"{place}: cannot be held ({error.strerror})") from error
        # Closed alone, it would stay with processes that were forked meanwhile.
        opened.callback(fcntl.flock, handle, fcntl.LOCK_UN)
        yield


def _wait(handle: int, place: Path, patience: float, tick: Callable[[], object]) -> None:
    begun = ticked = time.monotonic()
    while not _flocked(handle):
        now = time.monotonic()
        if now - begun >= patience:
            raise Locked(place, holder(handle), patience)
        if now - ticked >= _TICK:
            ticked = now
            tick()
        time.sleep(_POLL)


def _flocked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def holder(handle: int) -> str:
    """Who holds what is open here, as far as this process may know: "process 4711"."""
    status = os.fstat(handle)
    # As fs/locks.c of Linux writes it; some file systems have another number there than here.
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    wanted = f"{device}:{status.st_ino}"
    with suppress(OSError):
        for line in Path("/proc/locks").read_text(encoding="utf-8").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5] == wanted:
                return f"process {fields[4]}"
    return "another process"


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Holds a folder, which is made where there is none, while files in it are read and replaced.

    Raises as `locked`, and UsageFailure where it cannot be made.
    """
    _made(folder)
    with locked(folder):
        yield


@contextmanager
def reserved(file: Path) -> Iterator[None]:
    """Keeps everybody else from reserving `file`, for hours, whether it is there yet or not.

    By a folder beside it, as that of what is being written: it goes with who reserved it, or with
    the next writer. Raises Locked after a second, and UsageFailure where nothing can be written.
    """
    place = Path(os.path.realpath(file))
    digest = hashlib.sha256(place.name.encode(errors="surrogateescape")).hexdigest()[:16]
    folder = place.parent / f"{_STAGING}{digest}"
    while True:
        _made(folder)
        # A writer that sweeps here holds for a moment what a killed process left, and removes it.
        with ExitStack() as held:
            try:
                held.enter_context(locked(folder, patience=_TICK))
                (folder / ".gitignore").write_text("*\n", encoding="utf-8")
            except FileNotFoundError:
                continue
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            yield
            return


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageFailure(f"{folder}: cannot be made ({error.strerror})") from error


def utc_now() -> str:
    """The present moment: UTC, ISO 8601 to the second, "2026-03-01T12:00:00Z"."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def short(path: Path, root: Path) -> str:
    """`path` relative to `root` where it lies below it."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
