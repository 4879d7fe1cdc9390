"""Changes through slurmrestd, on a Unix socket with a token: one request changes a job and releases it.

It answers 200 even if it refuses, with `errors` inside. Each Slurm speaks some versions of its interface, of which
the newest that both know is used. v0.0.38 knows no AdminComment: what needs one goes through `scontrol` first, in all
versions alike. From v0.0.39 on nodes are a list, a GPU request is called otherwise, an answer may have a result for
each job, and a number may be `7` or `{"set": true, "infinite": false, "number": 7}`.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth.errors import LiveError
from berth.live.slurm.controller import Change, Controller

OLDEST = "v0.0.38"
_CAME_WITH = {
    (26, 5): "v0.0.45",
    (25, 11): "v0.0.44",
    (25, 5): "v0.0.43",
    (24, 11): "v0.0.42",
    (24, 5): "v0.0.41",
    (23, 11): "v0.0.40",
    (23, 2): "v0.0.39",
}
"""The Slurm that each version of the interface came with."""
VERSIONS = (*_CAME_WITH.values(), OLDEST)
"""Of the interface, the newest first."""
TIMEOUT_S = 30.0
NEW_TOKEN = "export $(scontrol token lifespan=31536000)"
"""The line that makes a token, which Slurm prints with its name: SLURM_JWT=…"""
PROTOCOL_ERRORS = range(1000, 2000)
"""Slurm's numbers for what has gone wrong between its own programs: the job was not looked up. An expired token is
500 and 1000, `Unexpected message received`, in 22.05."""
OWN_ERRORS = range(9000, 10000)
"""slurmrestd's own numbers: it did not ask slurmctld. One that runs since before slurm.conf had `shard` refuses shards
by 9001, `Failure during parsing`, with status 200."""
CONNECTIONS = 4
"""slurmrestd waits for slurmctld at each request, so that some are sent at once."""


class _OnSocket(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(str(self._path))


class RestChannel:
    """Places by slurmrestd; what it cannot say is left to `scontrol`, and all of it where slurmrestd is gone.

    Why it did not answer is passed to `say`, once until it answers again.
    """

    def __init__(self, path: Path, controller: Controller, say: Callable[[str], None]) -> None:
        self._path = path
        self._controller = controller
        self._say = say
        self._version = ""
        self._said = ""

    def apply(self, changes: Iterable[Change]) -> dict[str, str]:
        """Make these changes; what went wrong, by the job's id."""
        changes = tuple(changes)
        # It knows jobs by their number alone: a task that waits has none of its own yet.
        by_rest = [
            change
            for change in changes
            if change.hold is False
            and change.job_id.isdigit()
            and change.node_list
            and not (change.clears or change.requeue or change.per_job or change.per_task)
        ]
        its = {change.job_id for change in by_rest}
        rest = [change for change in changes if change.job_id not in its]
        notes = [
            Change(c.job_id, admin_comment=c.admin_comment) for c in by_rest if c.admin_comment is not None
        ]
        failed = self._controller.apply([*rest, *notes])
        todo = [change for change in by_rest if change.job_id not in failed]
        if not todo:
            return failed
        try:
            self._version = self._version or spoken(self._path)
        except LiveError as error:
            self._report(str(error))
            return failed | self._controller.apply([replace(each, admin_comment=None) for each in todo])
        gone: list[str] = []

        def post(change: Change) -> str | None:
            """What slurmrestd objects to; None if it could not be asked, as those after it are not."""
            try:
                return None if gone else self._post(change)
            except LiveError as error:
                gone.append(str(error))
                return None

        with ThreadPoolExecutor(min(CONNECTIONS, len(todo))) as pool:
            objections = list(pool.map(post, todo))
        self._report("".join(gone[:1]))
        asked = list(zip(todo, objections, strict=True))
        failed |= {change.job_id: why for change, why in asked if why}
        left = [replace(change, admin_comment=None) for change, why in asked if why is None]
        return failed | self._controller.apply(left)

    def _report(self, why: str) -> None:
        if why and why != self._said:
            self._say(f"{why}; until it answers, scontrol places in its stead, more slowly")
        self._said = why

    def _post(self, change: Change) -> str:
        """Change one job and release it; what slurmrestd objects to. LiveError if it does not answer."""
        path = f"/slurm/{self._version}/job/{change.job_id}"
        status, answer = _ask(self._path, "POST", path, body_of(change, self._version))
        if status in (401, 403):
            raise LiveError(f"slurmrestd does not take the token; make a new one: {NEW_TOKEN}")
        if status == 404:
            self._version = ""  # it may have been updated
        numbers = [number_of(each.get("error_number")) or 0 for each in answer.get("errors") or ()]
        if any(number in OWN_ERRORS for number in numbers):
            raise LiveError(
                "slurmrestd does not understand the change; restart it if slurm.conf was changed since it started"
            )
        if any(number in PROTOCOL_ERRORS for number in numbers):
            raise LiveError(
                "slurmctld did not understand slurmrestd, as it does not if the token has expired; make a new one:"
                f" {NEW_TOKEN}"
            )
        errors = errors_in(answer)
        if status >= 400 and not errors:
            raise LiveError(f"slurmrestd answers {status}")
        return "; ".join(errors)


def _ask(
    path: Path, method: str, url: str, body: Mapping[str, Any] | None = None
) -> tuple[int, dict[str, Any]]:
    """The status and the answer of one request. LiveError if there is none."""
    connection = _OnSocket(path)
    headers = {
        "Content-Type": "application/json",
        "X-SLURM-USER-NAME": os.environ.get("SLURM_JWT_USER", "root"),
        "X-SLURM-USER-TOKEN": os.environ.get("SLURM_JWT", ""),
    }
    try:
        connection.request(method, url, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise LiveError(f"slurmrestd does not answer on {path}: {error}") from error
    finally:
        connection.close()
    try:
        return response.status, dict(json.loads(text or b"{}"))
    except ValueError:
        return response.status, {}


def body_of(change: Change, version: str) -> dict[str, Any]:
    """The request that places a job and releases it."""
    body: dict[str, Any] = {"hold": False}
    if change.node_list:
        body |= (
            {"node_list": change.node_list}  # a string, and no list
            if version == OLDEST
            else {"required_nodes": change.node_list.split(",")}
        )
    if change.gres:
        body["gres" if version == OLDEST else "tres_per_node"] = change.gres
    return body


def errors_in(answer: Mapping[str, Any]) -> list[str]:
    """What slurmrestd objects to, in whatever version. Warnings are none."""
    errors = [
        str(each.get("description") or each.get("error") or f"error {number_of(each.get('error_number'))}")
        for each in answer.get("errors") or ()
    ]
    if errors:
        return errors
    return [
        str(each.get("error") or f"error {number_of(each['error_code'])}")
        for each in answer.get("results") or ()
        if number_of(each.get("error_code"))
    ]


def number_of(value: Any) -> int | None:
    """A number, plain or with the mark of being set; None for none and for no end."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def spoken(path: Path) -> str:
    """The newest version of the interface that slurmrestd and berth speak; LiveError if it does not answer, or
    speaks none of them."""
    for version in VERSIONS:
        status, _ = _ask(path, "GET", f"/slurm/{version}/ping")
        if status != 404:  # 401, say: it knows the version, and not the token
            return version
    raise LiveError(f"slurmrestd on {path} speaks none of {', '.join(reversed(VERSIONS))}")


def started_by(slurm: tuple[int, int] | None) -> str:
    """The words that start slurmrestd of a version of Slurm so that it speaks what berth does."""
    of = slurm or (22, 5)
    version = next((version for since, version in _CAME_WITH.items() if of >= since), OLDEST)
    serve = f"-s openapi/slurmctld -d {version}" if of >= (23, 11) else f"-s openapi/{version}"
    return f"slurmrestd {serve} -a rest_auth/jwt unix:SOCKET"
