"""The client's side of `berth submit`: a command, a script with #BERTH lines, or a job a line."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Collection

from berth.counts import counted
from berth.errors import LiveError
from berth.live.local.config import flags_of
from berth.live.local.image import runtime_for
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection, Flags, Message, ask

BATCH = 100
"""Jobs of `submit -` in one message, and so in one commit."""

_SHELL = re.compile(r"[\s;&|<>$()]")
"""What only a shell understands, or separates words: one word with it that is no command is a shell's line."""

Configured = tuple[Flags, dict[str, str]]
"""Flags that `berth.toml` gives, and the file of each."""
_OF_GPUS = {"mem", "mem_max", "mem_shows_max", "core_pct", "exclusive", "gpu", "profile", "interactive"}
Parse = Callable[[list[str]], tuple[Flags, list[str]]]
"""Takes words apart as `berth submit` does: the options that are given, and the command; LiveError at a mistake."""


def submit(
    flags: Flags, command: list[str], as_json: bool, parse: Parse, options: Collection[str] = ()
) -> list[str]:
    """Queue a command or script, or what standard input names; print and return the ids.

    Of `options`, what `berth.toml` says holds where neither command line nor script does. Raises LiveError if the job
    is refused.
    """
    configured = flags_of("submit", options)
    if command[:1] == ["-"]:
        behind, rest = parse(command[1:])
        if rest:
            raise LiveError(
                f"berth submit - '{rest[0]}': each line of standard input is a job, and no command follows"
            )
        as_json = bool(behind.pop("json", False)) or as_json
        return _submit_lines({**flags, **behind}, as_json, parse, configured)
    return _print_ids(_asked(flags, command, parse, configured), as_json)


def queued(flags: Flags, command: list[str], parse: Parse, options: Collection[str]) -> list[str]:
    """Queue a command as `submit` does, and print nothing but what the queue notes; the ids."""
    answer = _asked(flags, command, parse, flags_of("submit", options))
    if answer["note"]:
        print(f"berth: {answer['note']}", file=sys.stderr)
    return [str(each) for each in answer["ids"]]


def _asked(flags: Flags, command: list[str], parse: Parse, configured: Configured) -> Message:
    job, lines = _job_of(flags, command, parse, configured)
    message = {"do": "submit", "cwd": os.getcwd(), "env": dict(os.environ), "jobs": [job]}
    try:
        return ask(find_socket(), message)
    except LiveError as error:
        flag = str(error).partition(" ")[0].rstrip(":")
        where = lines.get(flag)
        raise LiveError(f"{where}: {error}" if where else str(error)) from error


def _print_ids(answer: Message, as_json: bool) -> list[str]:
    ids, count = [str(each) for each in answer["ids"]], answer["count"]
    if as_json:
        print(json.dumps({key: answer[key] for key in ("ids", "count", "note", "hints")}, ensure_ascii=False))
        return ids
    if count == len(ids) == 1:
        print(f"job {ids[0]}")
    elif len(ids) == 1:
        print(f"job {ids[0]}: {counted(count, 'task')}")
    else:
        print(f"{count:,} jobs, {ids[0]} to {ids[-1]}")
    for text in filter(None, [answer["note"], *answer["hints"]]):
        print(f"berth: {text}", file=sys.stderr)
    return ids


def _submit_lines(flags: Flags, as_json: bool, parse: Parse, configured: Configured) -> list[str]:
    """Each line is what could stand behind `berth submit`; options of the command itself hold for all."""
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
        try:
            own, command = parse(words)
            jobs.append(_job_of({**flags, **own}, command, parse, configured)[0])
            places.append(number)
        except LiveError as error:
            raise LiveError(f"{where}: {error}") from error
    if not jobs:
        raise LiveError("standard input names no job; each line holds what could follow `berth submit`")
    ids: list[str] = []
    count, note = 0, ""
    hints: dict[str, None] = {}
    environment = json.dumps(dict(os.environ))
    with Connection(find_socket()) as connection:
        for at in range(0, len(jobs), BATCH):
            part = {"do": "submit", "cwd": os.getcwd(), "env": environment, "jobs": jobs[at : at + BATCH]}
            try:
                answer = connection.ask({**part, "numbered": True})
            except LiveError as error:
                done = "no job is queued"
                if ids:
                    done = f"the first {count:,} jobs are queued, up to {ids[-1]}; the next is refused"
                raise LiveError(f"{done}: {_with_line(str(error), places[at : at + BATCH])}") from error
            hints |= dict.fromkeys(answer["hints"])
            ids += answer["ids"]
            count += answer["count"]
            note = answer["note"]
    return _print_ids({"ids": ids, "count": count, "note": note, "hints": list(hints)}, as_json)


def _with_line(error: str, places: list[int]) -> str:
    """The broker counts the jobs of a message; people count lines."""
    number, _, rest = error.removeprefix("job ").partition(" of the message: ")
    if rest and number.isdigit():
        return f"line {places[int(number) - 1]} of standard input: {rest}"
    return error


def _job_of(
    flags: Flags, command: list[str], parse: Parse, configured: Configured
) -> tuple[Message, dict[str, str]]:
    """The message about one job, and where its script or `berth.toml` says which flag.

    A script's flag holds where the command line says nothing, that of `berth.toml` where the script does not either.
    """
    if not command:
        raise LiveError("no command to run; write it last, as in: berth submit --mem 4G python train.py")
    first = command[0]
    text = _script(os.path.join(os.getcwd(), first)) if "/" in first or os.path.exists(first) else None
    if text is not None:
        in_script, lines = _flags_of_script(text, first, parse)
        lines = {flag: where for flag, where in lines.items() if flag[2:].replace("-", "_") not in flags}
        flags, lines = _with_configured({**in_script, **flags}, lines, configured)
        try:
            _check_folders(flags, _folder(flags))
        except LiveError as error:
            where = lines.get(str(error).partition(" ")[0])
            raise LiveError(f"{where}: {error}" if where else str(error)) from error
        return {"flags": flags, "argv": command, "script": text}, lines
    folder = _folder(flags)
    if image := {**configured[0], **flags}.get("image"):
        runtime_for(str(image), os.environ.get("PATH"))
        if len(command) == 1 and _SHELL.search(first):
            command = ["sh", "-c", first]
    elif len(command) == 1 and _which(first, folder) is None and _SHELL.search(first):
        command = [_which("bash", folder) or "/bin/sh", "-c", first]
    elif _which(first, folder) is None:
        raise LiveError(_no_command(first, folder))
    flags, lines = _with_configured(flags, {}, configured)
    _check_folders(flags, folder)
    return {"flags": flags, "argv": command}, lines


def _with_configured(
    flags: Flags, lines: dict[str, str], configured: Configured
) -> tuple[Flags, dict[str, str]]:
    """The flags, with those of `berth.toml` that nothing else says.

    A job without GPUs leaves out those of GPUs. How far memory grows is taken from one place alone.
    """
    defaults, files = configured
    without = flags.keys() | (_OF_GPUS if flags.get("gpus") == "0" else set())
    if ".." in str(flags.get("mem", "")):
        without |= {"mem_max"}
    added = {key: value for key, value in defaults.items() if key not in without}
    if "mem_max" in flags and "mem" in added:
        added["mem"] = str(added["mem"]).partition("..")[0]
    where = {flag: file for flag, file in files.items() if flag[2:].replace("-", "_") in added}
    return {**added, **flags}, {**where, **lines}


def _folder(flags: Flags) -> str:
    """The folder that the job runs in; LiveError where it is not there."""
    folder = os.path.join(os.getcwd(), str(flags.get("chdir", "")))
    if not os.path.isdir(folder):
        raise LiveError(f"--chdir {flags['chdir']}: there is no such folder")
    return folder if flags.get("chdir") else os.getcwd()


def _check_folders(flags: Flags, folder: str) -> None:
    """Refuse output files in folders that are not there."""
    for key in ("output", "error"):
        place = os.path.dirname(str(flags.get(key, "")))
        if place and "%" not in place and not os.path.isdir(os.path.join(folder, place)):
            raise LiveError(f"--{key} {flags[key]}: there is no folder {place}; make it first")


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


def _no_command(name: str, folder: str) -> str:
    """Why a name is no command, and what to write if it is that of a file."""
    path = os.path.join(folder, name)
    if os.path.isdir(path):
        return (
            f"'{name}' in {folder} is a folder; write a command, as in: berth submit python {name}/train.py"
        )
    if not os.path.exists(path):
        return f"there is no command '{name}' in {folder} or on the PATH"
    if os.access(path, os.X_OK):
        return f"the program '{name}' in {folder} is not on the PATH; write ./{name}"
    by = {".py": "python", ".sh": "bash", ".jl": "julia", ".R": "Rscript"}.get(os.path.splitext(name)[1])
    return (
        f"the file '{name}' in {folder} is not executable; make it so with chmod +x {name}, or name the program that "
        f"runs it, as in: berth submit {by or 'bash'} {name}"
    )


def _script(path: str) -> str | None:
    """The text of a script, which begins with #!; None where it is none."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return None
            return (b"#!" + file.read()).decode("utf-8", "surrogateescape")
    except OSError:
        return None


def _flags_of_script(text: str, name: str, parse: Parse) -> tuple[Flags, dict[str, str]]:
    """The options in the #BERTH lines of a script, up to its first command, and the line of each."""
    flags: Flags = {}
    lines: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#BERTH "):
            where = f"{name}, line {number}"
            try:
                found, rest = parse(shlex.split(line[7:], comments=True))
            except (ValueError, LiveError) as error:
                raise LiveError(f"{where}: {error}") from error
            if rest or "json" in found:
                raise LiveError(f"{where}: '{rest[0] if rest else '--json'}' is no option of a job")
            for key, value in found.items():
                before = flags.get(key)
                if isinstance(before, list) and isinstance(value, list):
                    value = [*before, *value]
                flags[key] = value
                lines[f"--{key.replace('_', '-')}"] = where
        elif line.strip() and not line.startswith("#"):
            break
    return flags, lines
