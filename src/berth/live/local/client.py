"""What the commands of the local queue do: ask the broker and print its answer (`berth.cli.local` has the options)."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, suppress

from berth.counts import counted
from berth.errors import LiveError
from berth.live.local.places import Places, find_socket, queue_folder, state_folder
from berth.live.local.protocol import Flags, Message, ask

DOWN_WITHIN_S = 20.0
MOST_NAMED = 10

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from berth.live.driver.snapshot import Snapshot


def _ask(message: Message) -> Message:
    return ask(find_socket(), message)


def _print_json(answer: object) -> None:
    import json

    print(json.dumps(answer, ensure_ascii=False))


# Looking


def _listing(ids: list[str], user: str | None, states: str | None, ended: bool, limit: int | None) -> Message:
    message: Message = {"do": "queue", "ids": ids, "ended": ended}
    if user is not None:
        message["user"] = user
    if states is not None:
        message["states"] = states.split(",")
    if limit is not None:
        message["limit"] = limit
    return _ask(message)


def print_queue(ids: list[str], user: str | None, states: str | None, ended: bool, limit: int | None) -> None:
    from berth.live.local.snapshot import jobs_of
    from berth.live.local.tables import HEAD, queue_cells, queue_lines

    answer, now_ms = _listing(ids, user, states, ended, limit), time.time() * 1000
    if answer["note"]:
        print(f"berth: {answer['note']}", file=sys.stderr)
    jobs = jobs_of(answer)
    if not jobs and limit != 0:
        print(
            "no job matches; `berth queue` lists all"
            if user or states
            else "the queue has had no job yet"
            if ended
            else "no job waits or runs; `berth queue --ended` lists those that have ended"
        )
        return
    sys.stdout.write(queue_lines([HEAD, *(queue_cells(job, now_ms) for job in jobs)]))


def print_status() -> None:
    from berth.live.local.tables import status_lines

    print("\n".join(status_lines(_ask({"do": "status"}), time.time() * 1000)))


def snapshot(
    ids: list[str], user: str | None, states: str | None, ended: bool, limit: int | None
) -> tuple[Snapshot, Message]:
    from berth.live.local.snapshot import snapshot_of

    status, queue = _ask({"do": "status"}), _listing(ids, user, states, ended, limit)
    return snapshot_of(status, queue), {
        name: value for name, value in status.items() if name not in ("gpus", "policy", "trouble")
    }


def print_job(job_id: str, as_json: bool) -> bool:
    """Print a job of the queue; False where no queue knows it, so that the history answers."""
    try:
        answer = _ask({"do": "job", "id": job_id})
    except LiveError as error:
        if not _history_may_know():
            raise LiveError(f"{error}; there is no history either") from error
        # A user without a queue here asks about jobs of other machines.
        if str(error).startswith("no queue is up") and os.path.exists(Places(queue_folder()).store):
            print(f"berth: {error}; until then the history answers for jobs that have ended", file=sys.stderr)
        return False
    jobs = answer["jobs"]
    if as_json:
        _print_json(jobs)
        return True
    from berth.live.local.tables import job_lines

    print("\n\n".join("\n".join(job_lines(job)) for job in jobs))
    return True


def _history_may_know() -> bool:
    """Whether a history can be asked about a job that the queue does not know."""
    named = os.environ.get("BERTH_HISTORY", "")
    of_queues = [Places(folder).history for folder in (state_folder(), queue_folder())]
    if os.path.exists("history") or (named and named not in of_queues):
        return True
    return os.path.exists(os.path.join(of_queues[0], "index.json"))


def print_why(job_id: str, as_json: bool) -> None:
    jobs = _ask({"do": "why", "id": job_id})["jobs"]
    if as_json:
        _print_json(jobs)
        return
    from berth.live.local.tables import whys_text

    print(whys_text(jobs))


def print_logs(
    job_id: str, *, follow: bool, error: bool, lines: int | None, attempt: int | None, as_json: bool
) -> None:
    """Print a job's output, read as this user, so that the modes of its files decide who may."""
    jobs = _ask({"do": "job", "id": job_id})["jobs"]
    job = jobs[0]
    if len(jobs) > 1:
        raise LiveError(f"job {job_id} is an array; name one of its tasks, such as {job['id']}")
    path = str(job["error"] if error and job["error"] else job["output"])
    if attempt is not None and path.endswith(f".{job['attempt']}.out"):
        path = path.removesuffix(f".{job['attempt']}.out") + f".{attempt}.out"
    if as_json:
        _print_json({"id": job["id"], "path": path})
        return
    place = 0
    while True:
        try:
            with open(path, "rb") as file:
                if place == 0 and lines is not None:
                    found = file.read().splitlines(keepends=True)
                    sys.stdout.buffer.write(b"".join(found[max(0, len(found) - lines) :]))
                else:
                    file.seek(place)
                    while part := file.read(1 << 16):
                        sys.stdout.buffer.write(part)
                place = file.tell()
                sys.stdout.buffer.flush()
        except FileNotFoundError:
            if not follow:
                waits = job["state"] in ("waiting", "held", "starting")
                reason = "it has not started" if waits else f"{path} does not exist"
                raise LiveError(f"job {job['id']} has no output: {reason}") from None
        except PermissionError as denied:
            raise LiveError(f"you may not read {path}; it belongs to {job['user']}") from denied
        if not follow or job["state"] not in ("waiting", "held", "starting", "running"):
            return
        time.sleep(0.2)
        job = _ask({"do": "job", "id": job_id})["jobs"][0]


def waiting_reason(job_id: str) -> str:
    """Why a job waits, such as "waits for room", or that it is held; empty if it does neither."""
    from berth.live.local.snapshot import jobs_of
    from berth.live.local.tables import printable

    (job,) = jobs_of(_ask({"do": "queue", "ids": [job_id]}))
    return printable(job.why or job.state) if job.state in ("waiting", "held") else ""


@contextmanager
def cancelled_by_ctrl_c(job_id: str) -> Iterator[None]:
    """Have Ctrl-C cancel a job that is waited for."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(LiveError):  # it may have ended just now
            control("cancel", [job_id], False)
        raise


def _print_what_is_waited_for() -> None:
    """Name the jobs that `wait --all` waits for, and why those that wait do."""
    from berth.live.local.snapshot import jobs_of
    from berth.live.local.tables import printable

    jobs = jobs_of(_ask({"do": "queue", "mine": True}))
    if jobs:
        named = [f"{job.id} ({job.why or job.state})" for job in jobs[:MOST_NAMED]]
        more = f" and {len(jobs) - MOST_NAMED:,} more" if len(jobs) > MOST_NAMED else ""
        noun = "job" if len(jobs) == 1 else "jobs"
        print(printable(f"berth: waiting for {noun} {', '.join(named)}{more}"), file=sys.stderr)


def wait(ids: list[str], *, every: bool, timeout_s: float | None, as_json: bool) -> int:
    """Wait until jobs have ended; returns the first exit status that is not 0, or 124 after `timeout_s`."""
    if not ids and not every:
        raise LiveError("name jobs, or use --all")
    message: Message = {"do": "wait", "ids": ids, "all": every}
    if timeout_s is not None:
        message["timeout"] = timeout_s
    if every and not as_json:
        _print_what_is_waited_for()
    answer = _ask(message)
    jobs = answer["jobs"]
    if answer["late"]:
        late = answer["late"]
        assert isinstance(late, int)
        print(f"berth: {counted(late, 'job has', 'jobs have')} not ended yet", file=sys.stderr)
        return 124
    if as_json:
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


def control(
    name: str, ids: list[str], as_json: bool, *, every: bool = False, flags: Flags | None = None
) -> None:
    if not ids and not every:
        raise LiveError("name jobs by their ids, as `berth queue` shows them")
    message: Message = {"do": name, "ids": ids, "all": every}
    if flags is not None:
        message["flags"] = flags
    answer = _ask(message)
    jobs, refused = answer["jobs"], answer["refused"]
    if answer.get("note"):
        print(f"berth: {answer['note']}", file=sys.stderr)
    if as_json:
        _print_json([*jobs, *refused])
        return
    ending = {
        "cancelled": "SIGTERM was sent; it ends",
        "timeout": "it has reached its time limit and ends",
        "requeue": "SIGTERM was sent; it is queued again",
        "resume": "it runs on as soon as its GPUs have room",
    }
    for job in jobs:
        now = ending.get(job["stopping"])
        print(f"job {job['id']}: {job['state']}{f' ({now})' if now else ''}")
    for job in refused:
        print(f"berth: not changed: {job['why']}", file=sys.stderr)


def switch_policy(name: str | None, knowledge: str | None, as_json: bool) -> None:
    message: Message = {"do": "policy", "cwd": os.getcwd()}
    if name is not None:
        message["name"] = name
    if knowledge is not None:
        message["knowledge"] = knowledge
    answer = _ask(message)
    if as_json:
        _print_json({key: answer[key] for key in ("policy", "deciding", "knowledge", "brain", "trouble")})
        return
    chosen = f"{answer['policy']} is chosen, and " if answer["deciding"] not in ("", answer["policy"]) else ""
    print(f"{chosen}{answer['deciding'] or answer['policy']} decides (knowledge: {answer['knowledge']})")
    if answer["trouble"]:
        print(f"berth: {answer['trouble']}", file=sys.stderr)


def drain(gpus: list[str], on: bool, as_json: bool) -> None:
    for word in gpus:
        if not word.isdigit():
            raise LiveError(f"GPU '{word}'; expected its number, as `berth status` shows it")
    answer = _ask({"do": "drain", "gpus": [int(word) for word in gpus], "on": on})
    if as_json:
        _print_json({key: answer[key] for key in ("drained", "busy")})
        return
    drained, busy = answer["drained"], answer["busy"]
    if not drained:
        print("no GPU is drained")
    for index in drained:
        print(f"GPU {index}: drained{', its jobs run until they end' if index in busy else ''}")


def shut_down(cancel: bool, as_json: bool) -> None:
    from berth.partition.processes import lives

    answer = _ask({"do": "down", "cancel": cancel})
    socket_path, until = find_socket(), time.monotonic() + DOWN_WITHIN_S
    while (os.path.exists(socket_path) or lives(answer["pid"])) and time.monotonic() < until:
        time.sleep(0.02)
    if as_json:
        _print_json({key: answer[key] for key in ("running", "waiting")})
    else:
        print(
            f"the queue is down; jobs that keep running: {answer['running']}; jobs that wait for the next `berth up`:"
            f" {answer['waiting']}"
        )
