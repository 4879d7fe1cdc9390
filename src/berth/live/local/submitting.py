"""The client's side of `berth submit`: a command, a script with #BERTH lines, or a job a line."""

from __future__ import annotations

import json
import os
import shlex
import sys

from berth.errors import LiveError
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection
from berth.live.local.words import COMMANDS, SUBMIT, Command, Parsed, parse

__all__ = ["submit"]

BATCH = 100
"""Jobs of `submit -` in one message, and so in one commit."""

Message = dict[str, object]


def submit(values: Parsed, operands: list[str]) -> int:
    """Queue what the words name, and print the ids; LiveError where it is refused."""
    if operands[:1] == ["-"]:
        behind, rest = parse(COMMANDS["submit"], operands[1:])
        if rest:
            raise LiveError(
                f"berth submit - '{rest[0]}': each line of standard input is a job, and no command follows"
            )
        values, operands = {**values, **behind}, ["-"]
    as_json = bool(values.pop("json", False))
    if operands == ["-"]:
        return _submit_lines(values, as_json)
    job, lines = _job_of(values, operands)
    connection = Connection(find_socket())
    try:
        answer = connection.ask({"do": "submit", "cwd": os.getcwd(), "env": dict(os.environ), "jobs": [job]})
    except LiveError as error:
        flag = str(error).partition(" ")[0].rstrip(":")
        where = lines.get(flag)
        raise LiveError(f"{where}: {error}" if where else str(error)) from error
    finally:
        connection.close()
    _told(answer, as_json)
    return 0


def _told(answer: Message, as_json: bool) -> None:
    if as_json:
        print(json.dumps({key: answer[key] for key in ("ids", "count", "note", "hints")}, ensure_ascii=False))
        return
    ids, count = answer["ids"], answer["count"]
    assert isinstance(ids, list)
    assert isinstance(count, int)
    if count == len(ids) == 1:
        print(f"job {ids[0]}")
    elif len(ids) == 1:
        print(f"job {ids[0]}: {count:,} tasks")
    else:
        print(f"{count:,} jobs, {ids[0]} to {ids[-1]}")
    hints = answer["hints"]
    assert isinstance(hints, list)
    for text in filter(None, [answer["note"], *hints]):
        print(f"berth: {text}", file=sys.stderr)


def _submit_lines(values: Parsed, as_json: bool) -> int:
    """Each line is what could stand behind `berth submit`; flags of the command itself hold for all."""
    jobs: list[Message] = []
    places: list[int] = []  # the line of each job
    for number, line in enumerate(sys.stdin, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"line {number} of standard input"
        try:
            words = text.split() if not any(mark in text for mark in "'\"\\") else shlex.split(text)
        except ValueError as error:
            raise LiveError(f"{where}: {error}: {text[:80]}") from error
        own, operands = parse(COMMANDS["submit"], words, where=where)
        try:
            jobs.append(_job_of({**values, **own}, operands)[0])
            places.append(number)
        except LiveError as error:
            raise LiveError(f"{where}: {error}") from error
    if not jobs:
        raise LiveError("standard input names no job; each line holds what could follow `berth submit`")
    ids: list[object] = []
    count, note = 0, ""
    hints: list[object] = []
    connection = Connection(find_socket())
    environment = json.dumps(dict(os.environ))
    try:
        for at in range(0, len(jobs), BATCH):
            part = jobs[at : at + BATCH]
            try:
                answer = connection.ask(
                    {"do": "submit", "cwd": os.getcwd(), "env": environment, "jobs": part, "numbered": True}
                )
            except LiveError as error:
                done = (
                    f"the first {count:,} jobs are queued, up to {ids[-1]}; the next is refused"
                    if ids
                    else "no job is queued"
                )
                raise LiveError(f"{done}: {_with_line(str(error), places[at : at + BATCH])}") from error
            told, here, hints_here = answer["ids"], answer["count"], answer["hints"]
            assert isinstance(told, list)
            assert isinstance(hints_here, list)
            hints += [hint for hint in hints_here if hint not in hints]
            assert isinstance(here, int)
            ids += told
            count += here
            note = str(answer["note"])
    finally:
        connection.close()
    _told({"ids": ids, "count": count, "note": note, "hints": hints}, as_json)
    return 0


def _with_line(error: str, places: list[int]) -> str:
    """The broker counts the jobs of a message; people count lines."""
    number, _, rest = error.removeprefix("job ").partition(" of the message: ")
    if rest and number.isdigit():
        return f"line {places[int(number) - 1]} of standard input: {rest}"
    return error


def _job_of(values: Parsed, operands: list[str]) -> tuple[Message, dict[str, str]]:
    """The message about one job, and where its script says which flag: it holds where the command line says nothing."""
    if not operands:
        raise LiveError("no command to run; write it last, as in: berth submit --mem 4G python train.py")
    first = operands[0]
    text = _script(os.path.join(os.getcwd(), first)) if "/" in first or os.path.exists(first) else None
    if text is not None:
        said, lines = _said_in(text, first)
        lines = {flag: where for flag, where in lines.items() if flag[2:].replace("-", "_") not in values}
        values = {**said, **values}
        try:
            _check_folders(values, _folder(values))
        except LiveError as error:
            where = lines.get(str(error).partition(" ")[0])
            raise LiveError(f"{where}: {error}" if where else str(error)) from error
        return {"flags": values, "argv": operands, "script": text}, lines
    folder = _folder(values)
    if _which(first, folder) is None:
        raise LiveError(f"there is no command '{first}' in {folder} or on the PATH")
    _check_folders(values, folder)
    return {"flags": values, "argv": operands}, {}


def _folder(values: Parsed) -> str:
    """The folder that the job runs in; LiveError where it is not there."""
    folder = os.path.join(os.getcwd(), str(values.get("chdir", "")))
    if not os.path.isdir(folder):
        raise LiveError(f"--chdir {values['chdir']}: there is no such folder")
    return folder if values.get("chdir") else os.getcwd()


def _check_folders(values: Parsed, folder: str) -> None:
    """Refuse output files in folders that are not there."""
    for key in ("output", "error"):
        place = os.path.dirname(str(values.get(key, "")))
        if place and "%" not in place and not os.path.isdir(os.path.join(folder, place)):
            raise LiveError(f"--{key} {values[key]}: there is no folder {place}; make it first")


_found: dict[tuple[str, str], str | None] = {}


def _which(name: str, folder: str) -> str | None:
    """Where a command is; looked up once for each name and folder."""
    if (name, folder) not in _found:
        places = [folder] if "/" in name else os.environ.get("PATH", os.defpath).split(":")
        paths = (os.path.join(folder, place, name) for place in places)
        _found[name, folder] = next(
            (path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)), None
        )
    return _found[name, folder]


def _script(path: str) -> str | None:
    """The text of a script, which begins with #!; None where it is none."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return None
            return (b"#!" + file.read()).decode("utf-8", "surrogateescape")
    except OSError:
        return None


_IN_SCRIPTS = Command("submit", "", "", SUBMIT)


def _said_in(text: str, name: str) -> tuple[Parsed, dict[str, str]]:
    """What the #BERTH lines of a script say, up to its first command, and at which line each flag stands."""
    values: Parsed = {}
    lines: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#BERTH "):
            where = f"{name}, line {number}"
            try:
                words = shlex.split(line[7:], comments=True)
            except ValueError as error:
                raise LiveError(f"{where}: {error}") from error
            found, rest = parse(_IN_SCRIPTS, words, where=where)
            if rest:
                raise LiveError(f"{where}: '{rest[0]}' is no option")
            for key, value in found.items():
                before = values.get(key)
                values[key] = (
                    [*before, *value] if isinstance(before, list) and isinstance(value, list) else value
                )
                lines[f"--{key.replace('_', '-')}"] = where
        elif line.strip() and not line.startswith("#"):
            break
    return values, lines
