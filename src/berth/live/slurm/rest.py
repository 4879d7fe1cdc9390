"""Changes through slurmrestd, on a Unix socket with a token: one request changes a job and releases it.

It answers 200 also where it refuses, with `errors` inside. Its v0.0.38 knows no AdminComment: what needs one goes
through `scontrol` first.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth.errors import LiveError
from berth.live.slurm.controller import Change, Controller

__all__ = ["RestChannel"]

VERSION = "v0.0.38"
TIMEOUT_S = 30.0
CONNECTIONS = 4
"""slurmrestd works on one request of a connection at a time, and waits for slurmctld meanwhile."""


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
    """Places by slurmrestd; what it cannot say is left to `scontrol`, and all of it where slurmrestd is gone."""

    def __init__(self, path: Path, controller: Controller) -> None:
        self._path = path
        self._controller = controller

    def apply(self, changes: Iterable[Change]) -> dict[str, str]:
        """Make these changes; what went wrong, by the job's id."""
        changes = tuple(changes)
        # It knows jobs by their number alone: a task that waits has none of its own yet.
        by_rest = [
            change for change in changes
            if change.hold is False and change.job_id.isdigit() and change.node_list and not (
                change.clears or change.instead or change.requeue or change.per_job or change.per_task
            )
        ]  # fmt: skip
        its = {change.job_id for change in by_rest}
        rest = [change for change in changes if change.job_id not in its]
        notes = [
            Change(c.job_id, admin_comment=c.admin_comment) for c in by_rest if c.admin_comment is not None
        ]
        failed = self._controller.apply([*rest, *notes])
        todo = [change for change in by_rest if change.job_id not in failed]
        if not todo:
            return failed
        parts = [todo[at::CONNECTIONS] for at in range(min(CONNECTIONS, len(todo)))]
        with ThreadPoolExecutor(len(parts)) as pool:
            results = list(pool.map(self._post_all, parts))
        left = []
        for errors, untold in results:
            failed |= errors
            left += [replace(each, admin_comment=None) for each in untold]
        return failed | self._controller.apply(left)

    def _post_all(self, changes: Sequence[Change]) -> tuple[dict[str, str], Sequence[Change]]:
        """Change and release these on one connection that is kept; what was objected to, and what slurmrestd could not
        be told because it is gone or its token has expired."""
        connection = _OnSocket(self._path)
        failed: dict[str, str] = {}
        try:
            for at, change in enumerate(changes):
                try:
                    errors = self._post(connection, change)
                except LiveError:
                    return failed, changes[at:]
                if errors:
                    failed[change.job_id] = errors
        finally:
            connection.close()
        return failed, ()

    def _post(self, connection: _OnSocket, change: Change) -> str:
        """Change one job and release it; what slurmrestd objects to. LiveError where it does not answer."""
        body: dict[str, Any] = {"hold": False}
        if change.node_list:
            body["node_list"] = change.node_list
        if change.gres:
            body["gres"] = change.gres
        status, answer = self._ask(connection, "POST", f"/slurm/{VERSION}/job/{change.job_id}", body)
        if status in (401, 403):
            raise LiveError("slurmrestd does not take the token; make a new one: SLURM_JWT=$(scontrol token)")
        errors = [str(each.get("description") or each.get("error")) for each in answer.get("errors", [])]
        if status >= 400 and not errors:
            raise LiveError(f"slurmrestd answers {status}")
        return "; ".join(errors)

    def _ask(
        self, connection: _OnSocket, method: str, path: str, body: dict[str, Any]
    ) -> tuple[int, dict[str, Any]]:
        headers = _headers()
        for attempt in (1, 2):  # a kept connection may have been closed meanwhile
            try:
                connection.request(method, path, json.dumps(body), headers)
                response = connection.getresponse()
                text = response.read()
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()  # the next request opens it again
                if attempt == 2:
                    raise LiveError(f"slurmrestd does not answer on {self._path}: {error}") from error
        try:
            return response.status, dict(json.loads(text or b"{}"))
        except ValueError:
            return response.status, {}


def ping(path: Path) -> int:
    """The status that slurmrestd answers with; LiveError where it does not."""
    connection = _OnSocket(path)
    try:
        connection.request("GET", f"/slurm/{VERSION}/ping", headers=_headers())
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise LiveError(f"slurmrestd does not answer on {path} ({error})") from error
    finally:
        connection.close()


def _headers() -> dict[str, str]:
    return {
        "Content-Type": "application/json",
        "X-SLURM-USER-NAME": os.environ.get("SLURM_JWT_USER", "root"),
        "X-SLURM-USER-TOKEN": os.environ.get("SLURM_JWT", ""),
    }
