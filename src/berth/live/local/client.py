"""The commands of the local queue, without Typer, Rich or NumPy: a client process answers within a few milliseconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

from berth.errors import LiveError
from berth.live.local.places import Places, find_socket, queue_folder, state_folder
from berth.live.local.words import COMMANDS, Parsed, parse

__all__ = ["is_ours", "main", "rows", "top_json"]

UP_S = 20.0
MOST_NAMED = 10

Message = dict[str, object]


def is_ours(words: list[str]) -> bool:
    """Whether the local queue is meant, and not the help about it."""
    if not words or words[0] not in (*COMMANDS, "job"):
        return False
    if words[0] == "submit":  # what stands behind the command is the command's
        for word in words[1:]:
            if word in ("-h", "--help"):
                return False
            if word == "--" or not word.startswith("-"):
                break
        return True
    return not {"-h", "--help"} & set(words)


def main(words: list[str]) -> int | None:
    """Run a command; its exit status, or None if another part of berth answers.

    That is the history (`berth job`), or `berth.cli.local`, which prints rows as CSV and Parquet.
    """
    name = words[0]
    if name == "job":
        return _job(words[1:])
    values, operands = parse(COMMANDS[name], words[1:])
    form = values.pop("format", "table")
    if form == "json":
        values["json"] = True
    elif form != "table":
        return None
    return int(_DO[name](values, operands) or 0)


def rows(words: list[str]) -> list[Message]:
    """What `berth queue` or `berth status` lists: jobs, or GPUs."""
    name = words[0]
    values, operands = parse(COMMANDS[name], words[1:])
    if name == "queue":
        return _jobs_of(_listing(values, operands, text=False))
    gpus = _ask({"do": "status"})["gpus"]
    assert isinstance(gpus, list)
    return gpus


def _ask(message: Message) -> Message:
    from berth.live.local.protocol import Connection

    connection = Connection(find_socket())
    try:
        return connection.ask(message)
    finally:
        connection.close()


def _print_json(answer: object) -> None:
    import json

    print(json.dumps(answer, ensure_ascii=False))


def _submit(values: Parsed, operands: list[str]) -> int:
    from berth.live.local.submitting import submit

    return submit(values, operands)


# Looking


def _jobs_of(answer: Message) -> list[Message]:
    """The jobs of a listing, each with its columns."""
    listed, columns = answer["rows"], answer["columns"]
    assert isinstance(listed, list)
    assert isinstance(columns, list)
    return [dict(zip(columns, row, strict=True)) for row in listed]


def _listing(values: Parsed, operands: list[str], *, text: bool) -> Message:
    """The broker's list of jobs, as text or as rows; what keeps all from starting goes to standard error."""
    message: Message = {"do": "queue", "ids": operands, "ended": bool(values.get("ended")), "text": text}
    if "user" in values:
        message["user"] = values["user"]
    if "state" in values:
        message["states"] = str(values["state"]).split(",")
    if "limit" in values:
        message["limit"] = _whole(values, "limit")
    answer = _ask(message)
    if answer["note"] and not values.get("json"):
        print(f"berth: {answer['note']}", file=sys.stderr)
    return answer


def _queue(values: Parsed, operands: list[str]) -> int:
    answer = _listing(values, operands, text=not values.get("json"))
    if values.get("json"):
        _print_json({"jobs": _jobs_of(answer), "note": answer["note"]})
        return 0
    sys.stdout.write(str(answer["text"]))
    return 0


def _status(values: Parsed, operands: list[str]) -> int:
    answer = _ask({"do": "status"})
    if values.get("json"):
        _print_json(answer)
        return 0
    from berth.live.local.tables import status_lines

    print("\n".join(status_lines(answer, time.time() * 1000)))
    return 0


def top_json() -> None:
    """Print what `berth top` shows, once."""
    status, queue = _ask({"do": "status"}), _ask({"do": "queue"})
    told = {name: status[name] for name in ("policy", "deciding", "brain", "trouble", "gpus")}
    _print_json({**told, "jobs": _jobs_of(queue), "note": queue["note"]})


def _job(words: list[str]) -> int | None:
    """A job of the queue; None where there is no queue or it does not know the job, so that the history answers."""
    as_json = "--json" in words
    operands = [word for word in words if word != "--json"]
    if len(operands) != 1 or operands[0].startswith("-"):
        return None  # the history's own options
    try:
        answer = _ask({"do": "job", "id": operands[0]})
    except LiveError as error:
        if not _another_may_know():
            raise LiveError(f"{error}; there is no history either") from error
        # Whoever never had a queue here asks about jobs of other machines.
        if str(error).startswith("no queue is up") and os.path.exists(Places(queue_folder()).store):
            print(f"berth: {error}; until then the history answers for jobs that have ended", file=sys.stderr)
        return None
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    if as_json:
        _print_json(jobs)
        return 0
    from berth.live.local.tables import job_lines

    print("\n\n".join("\n".join(job_lines(job)) for job in jobs))
    return 0


def _another_may_know() -> bool:
    """Whether a history or Slurm's queue can be asked about a job that the queue does not know."""
    own = os.path.join(Places(state_folder()).history, "index.json")
    if os.path.exists("history") or "BERTH_HISTORY" in os.environ or os.path.exists(own):
        return True
    return any(os.path.exists(os.path.join(folder, "squeue")) for folder in os.get_exec_path())


def _why(values: Parsed, operands: list[str]) -> int:
    answer = _ask({"do": "why", "id": _one(operands)})
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    if values.get("json"):
        _print_json(jobs)
        return 0
    from berth.live.local.tables import whys_text

    print(whys_text(jobs))
    return 0


def _logs(values: Parsed, operands: list[str]) -> int:
    """Read the files as this user, so that their modes decide who may."""
    job_id = _one(operands)
    jobs = _ask({"do": "job", "id": job_id})["jobs"]
    assert isinstance(jobs, list)
    job = jobs[0]
    if len(jobs) > 1:
        raise LiveError(f"job {job_id} is an array; name one of its tasks, such as {job['id']}")
    path = str(job["error"] if values.get("error") and job["error"] else job["output"])
    if "attempt" in values and path.endswith(f".{job['attempt']}.out"):
        path = path.removesuffix(f".{job['attempt']}.out") + f".{_whole(values, 'attempt')}.out"
    if values.get("json"):
        _print_json({"id": job["id"], "path": path})
        return 0
    place, follow = 0, bool(values.get("follow"))
    while True:
        try:
            with open(path, "rb") as file:
                if place == 0 and "lines" in values:
                    lines = file.read().splitlines(keepends=True)
                    sys.stdout.buffer.write(b"".join(lines[max(0, len(lines) - _whole(values, "lines")) :]))
                else:
                    file.seek(place)
                    while part := file.read(1 << 16):
                        sys.stdout.buffer.write(part)
                place = file.tell()
                sys.stdout.buffer.flush()
        except FileNotFoundError:
            if not follow:
                waits = job["state"] in ("waiting", "held", "starting")
                why = "it has not started" if waits else f"{path} does not exist"
                raise LiveError(f"job {job['id']} has no output: {why}") from None
        except PermissionError as error:
            raise LiveError(f"you may not read {path}; it belongs to {job['user']}") from error
        if not follow or job["state"] not in ("waiting", "held", "starting", "running"):
            return 0
        time.sleep(0.2)
        answer = _ask({"do": "job", "id": job_id})["jobs"]
        assert isinstance(answer, list)
        job = answer[0]


def _say_what_is_waited_for() -> None:
    """Name the jobs that `wait --all` waits for, and why those that wait do."""
    from berth.live.local.tables import printable

    jobs = _jobs_of(_ask({"do": "queue", "mine": True}))
    if jobs:
        told = [f"{job['id']} ({job['reason'] or job['state']})" for job in jobs[:MOST_NAMED]]
        more = f" and {len(jobs) - MOST_NAMED:,} more" if len(jobs) > MOST_NAMED else ""
        jobs_of = "job" if len(jobs) == 1 else "jobs"
        print(printable(f"berth: waiting for {jobs_of} {', '.join(told)}{more}"), file=sys.stderr)


def _wait(values: Parsed, operands: list[str]) -> int:
    if not operands and not values.get("all"):
        raise LiveError("berth wait: name jobs, or use --all")
    message: Message = {"do": "wait", "ids": operands, "all": bool(values.get("all"))}
    if "timeout" in values:
        message["timeout"] = _seconds(values, "timeout")
    if message["all"] and not values.get("json"):
        _say_what_is_waited_for()
    answer = _ask(message)
    jobs = answer["jobs"]
    assert isinstance(jobs, list)
    if answer["late"]:
        late = answer["late"]
        print(f"berth: {'1 job has' if late == 1 else f'{late:,} jobs have'} not ended yet", file=sys.stderr)
        return 124
    if values.get("json"):
        _print_json(jobs)
    else:
        if not jobs:
            print("you have no waiting or running jobs")
        for job in jobs:
            code = "" if job["exit_code"] is None else f", exit code {job['exit_code']}"
            print(f"job {job['id']}: {job['state']}{code}")
    for job in jobs:
        if job["state"] != "completed":
            return int(job["exit_code"] or 1)
    return 0


# Changing


def _control(name: str, values: Parsed, operands: list[str]) -> int:
    if not operands and not values.get("all"):
        raise LiveError(f"berth {name}: name jobs by their ids, as `berth queue` shows them")
    as_json = bool(values.pop("json", False))
    message: Message = {"do": name, "ids": operands, "all": bool(values.pop("all", False))}
    if name == "edit":
        if not values:
            raise LiveError("berth edit: name at least one option to change, such as --mem 8G")
        message["flags"] = values
    answer = _ask(message)
    jobs, refused = answer["jobs"], answer["refused"]
    assert isinstance(jobs, list)
    assert isinstance(refused, list)
    if answer.get("note"):
        print(f"berth: {answer['note']}", file=sys.stderr)
    if as_json:
        _print_json([*jobs, *refused])
        return 0
    ending = {
        "cancelled": "SIGTERM was sent; it ends",
        "timeout": "it has reached its time limit and ends",
        "requeue": "SIGTERM was sent; it is queued again",
    }
    for job in jobs:
        now = ending.get(job["stopping"])
        print(f"job {job['id']}: {job['state']}{f' ({now})' if now else ''}")
    for job in refused:
        print(f"berth: not changed: {job['why']}", file=sys.stderr)
    return 0


def _policy(values: Parsed, operands: list[str]) -> int:
    message: Message = {"do": "policy", "cwd": os.getcwd()}
    if operands:
        message["name"] = _one(operands)
    if "knowledge" in values:
        message["knowledge"] = values["knowledge"]
    answer = _ask(message)
    if values.get("json"):
        _print_json({key: answer[key] for key in ("policy", "deciding", "knowledge", "brain", "trouble")})
        return 0
    chosen = f"{answer['policy']} is chosen, and " if answer["deciding"] not in ("", answer["policy"]) else ""
    print(f"{chosen}{answer['deciding'] or answer['policy']} decides (knowledge: {answer['knowledge']})")
    if answer["trouble"]:
        print(f"berth: {answer['trouble']}", file=sys.stderr)
    return 0


def _drain(on: bool, values: Parsed, operands: list[str]) -> int:
    if not on and not operands:
        raise LiveError("berth undrain: name GPUs by their numbers, as `berth status` shows them")
    for word in operands:
        if not word.isdigit():
            raise LiveError(f"GPU '{word}'; expected its number, as `berth status` shows it")
    answer = _ask({"do": "drain", "gpus": [int(word) for word in operands], "on": on})
    if values.get("json"):
        _print_json({key: answer[key] for key in ("drained", "busy")})
        return 0
    drained, busy = answer["drained"], answer["busy"]
    assert isinstance(drained, list)
    assert isinstance(busy, list)
    if not drained:
        print("no GPU is drained")
    for index in drained:
        print(f"GPU {index}: drained{', its jobs run until they end' if index in busy else ''}")
    return 0


# Up and down


def _up(values: Parsed, operands: list[str]) -> int:
    from berth.live.local.starting import up

    return up(values)


def _down(values: Parsed, operands: list[str]) -> int:
    answer = _ask({"do": "down", "cancel": bool(values.get("cancel"))})
    socket_path, until = find_socket(), time.monotonic() + UP_S
    while (os.path.exists(socket_path) or _lives(answer["pid"])) and time.monotonic() < until:
        time.sleep(0.02)
    if values.get("json"):
        _print_json({key: answer[key] for key in ("running", "waiting")})
    else:
        print(
            f"the queue is down; jobs that keep running: {answer['running']}; jobs that wait for the next `berth up`:"
            f" {answer['waiting']}"
        )
    return 0


def _lives(pid: object) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _one(operands: list[str]) -> str:
    if len(operands) != 1:
        raise LiveError(f"expected one job or name; got {' '.join(operands) or 'none'}")
    return operands[0]


def _whole(values: Parsed, key: str) -> int:
    text = str(values[key])
    if not text.isdigit():
        raise LiveError(f"--{key} '{text}'; expected a whole number")
    return int(text)


def _seconds(values: Parsed, key: str) -> float:
    try:
        return float(str(values[key]))
    except ValueError as error:
        raise LiveError(f"--{key} '{values[key]}'; expected a number of seconds") from error


_DO: dict[str, Callable[[Parsed, list[str]], int]] = {
    "submit": _submit,
    "queue": _queue,
    "logs": _logs,
    "wait": _wait,
    "why": _why,
    "policy": _policy,
    "drain": partial(_drain, True),
    "undrain": partial(_drain, False),
    "up": _up,
    "down": _down,
    "status": _status,
    **{name: partial(_control, name) for name in ("cancel", "hold", "release", "edit", "requeue")},
}
