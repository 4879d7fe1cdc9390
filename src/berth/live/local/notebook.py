"""JupyterLab as a job: its token goes by the environment, its address is read where Jupyter keeps it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from berth.errors import LiveError
from berth.live.local.client import cancelled_by_ctrl_c, print_logs, waiting_reason
from berth.live.local.entry import ENDED
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection, Flags

PROGRAMS = ("jupyter-lab", "jupyter-notebook")
LOOK_S = 0.1
REASON_AFTER_S = 1.0
LAST_LINES = 5
"""What is shown of the output of a server that ended too soon."""


@dataclass(frozen=True, slots=True)
class Server:
    job_id: str
    port: int
    address: str
    """With the token if the server asks for one, for a browser on this machine."""


def start(submit: Callable[[Flags, list[str]], list[str]], flags: Flags) -> Server:
    """Queue a server and wait until it answers; LiveError if there is none to start, or it ends before.

    Ctrl-C before that cancels the job.
    """
    program = next(filter(shutil.which, PROGRAMS), None)
    if program is None:
        raise LiveError(
            f"there is no {' and no '.join(PROGRAMS)} on the PATH; install it where your notebooks run:"
            " pip install jupyterlab"
        )
    token = secrets.token_urlsafe(24)
    folder = _runtime_folder()
    os.environ |= {
        "JUPYTER_TOKEN": token,
        "JUPYTER_RUNTIME_DIR": folder,
    }  # a submission takes this environment
    # Jupyter looks for a free port itself. Of port 0, those up to 2.17 never learn the port.
    words = [program, "--no-browser", "--ServerApp.ip=127.0.0.1"]
    if os.geteuid() == 0:
        words.append("--allow-root")  # only this machine reaches it, with the token
    (job_id,) = submit({"name": "jupyter", "retries": "0", **flags}, words)
    with cancelled_by_ctrl_c(job_id):
        return _started(job_id, token, folder)


def tunnel(server: Server) -> str:
    """The command for a user who came by ssh; empty for one who sits here."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    port = server.port
    return f"ssh -N -L {port}:127.0.0.1:{port} {os.environ.get('USER', 'USER')}@{words[2]}" if words else ""


def _runtime_folder() -> str:
    if named := os.environ.get("JUPYTER_RUNTIME_DIR"):
        return named
    shared = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(os.environ.get("JUPYTER_DATA_DIR") or os.path.join(shared, "jupyter"), "runtime")


def _started(job_id: str, token: str, folder: str) -> Server:
    begun_s, said_to_wait = time.monotonic(), None
    with Connection(find_socket()) as connection:
        while True:
            (job,) = connection.ask({"do": "job", "id": job_id})["jobs"]
            if job["state"] in ENDED:
                reason = f": {job['reason']}" if job["reason"] else ""
                with contextlib.suppress(LiveError), contextlib.redirect_stdout(sys.stderr):  # why it ended
                    print_logs(
                        job_id, follow=False, error=True, lines=LAST_LINES, attempt=None, as_json=False
                    )
                raise LiveError(
                    f"job {job_id} {job['state']} before Jupyter answered{reason}; see: berth logs {job_id}"
                )
            if (found := _written_down(token, folder)) is not None and _listens(int(found["port"])):
                path, asked = str(found["url"]).rstrip("/"), found["token"]
                if not (asked or found["password"]):
                    print(
                        "berth: your Jupyter configuration asks for no token and no password: every user of this"
                        " machine can open the server",
                        file=sys.stderr,
                    )
                return Server(job_id, int(found["port"]), f"{path}/?token={asked}" if asked else f"{path}/")
            waits = job["state"] in ("waiting", "held")
            if time.monotonic() - begun_s >= REASON_AFTER_S and waits != said_to_wait:
                why = waiting_reason(job_id)
                if bool(why) != said_to_wait:  # it may have started since it was asked for
                    said_to_wait = bool(why)
                    why = why or f"starts Jupyter; its output: berth logs {job_id}"
                    print(f"berth: job {job_id} {why}; Ctrl-C cancels it", file=sys.stderr)
            time.sleep(LOOK_S)


def _listens(port: int) -> bool:
    """Whether the server takes connections: Jupyter writes its address down before."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _written_down(token: str, folder: str) -> dict[str, str | int] | None:
    """What Jupyter has written down of the server that was started with this token; None: nothing yet.

    A configuration may set another token or none, so the server is known by its environment.
    """
    names = os.listdir(folder) if os.path.isdir(folder) else []
    for name in names:
        if name.startswith("jpserver-") and name.endswith(".json"):
            with contextlib.suppress(OSError, ValueError, KeyError), open(os.path.join(folder, name)) as file:
                found: dict[str, str | int] = json.load(file)
                with open(f"/proc/{found['pid']}/environ", "rb") as environment:
                    if f"JUPYTER_TOKEN={token}".encode() in environment.read().split(b"\0"):
                        return found
    return None
