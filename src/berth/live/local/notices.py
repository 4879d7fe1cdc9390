"""Tells users what became of their jobs: `berth submit --notify`.

The broker writes a notice as a file and goes on. Each is sent in a process of its own as the job's user, again after a
pause if that fails, and then removed. What is left when a broker is killed is sent by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from berth.counts import counted
from berth.live.driver.words import span
from berth.live.local.entry import Entry

PAUSES_S = (2.0, 10.0, 60.0, 300.0)
"""How long to wait after each failure; after the last the notice is given up."""
AT_ONCE = 8
SEND_S = 30.0
MOST_SAID = 4096
"""Bytes that are read of a failed sender's output; its last line is logged."""
SENT = "sent"
"""What a sender prints at its end: its exit status may be taken by `Runner.reap`."""

Notice = dict[str, Any]
Unsent = dict[str, dict[str, tuple[float, str]]]
"""Notices that were not sent, by job and channel: when (s since 1970), and why."""
SHOWN_S = 86_400.0
"""The queue's status names jobs with such notices for this long."""
MOST_UNSENT = 100
"""Jobs whose unsent notices are kept, the last ones."""
MOST_NAMED = 5
"""Jobs named in the status."""
_HOW = {"http": "webhook", "https": "webhook", "slack": "Slack"}
_EVENTS = {"fail": "failure", "out-of-memory": "running out of GPU memory"}


class Notices:
    """The notices that are to be sent, a file each."""

    def __init__(
        self,
        folder: str,
        log: Callable[..., None],
        unsent: Unsent | None = None,
        keep: Callable[[Unsent], Awaitable[None]] | None = None,
    ) -> None:
        """`unsent` is what the last broker could not send; `keep` is called with it when it has changed for good."""
        self._folder, self._log, self._keep = folder, log, keep
        self.unsent: Unsent = unsent or {}
        self._count = 0
        self._due = asyncio.Event()
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="notices")
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._processes: set[subprocess.Popen[bytes]] = set()
        self._closed = False

    def post(self, entry: Entry, event: str, output: str) -> None:
        """Have a job's user told of an event, if the job asks for it."""
        request = entry.request
        if not request.notify or event not in request.notify_on:
            return
        notice = {
            "event": event, "job": entry.id, "name": request.name, "user": entry.user, "uid": entry.uid,
            "state": entry.state, "exit_code": entry.exit_code, "reason": entry.reason, "attempt": entry.attempt,
            "start_ms": entry.start_ms, "end_ms": entry.end_ms, "machine": socket.gethostname(), "output": output,
            "folder": request.cwd,
        }  # fmt: skip
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            for where in request.notify:
                self._count += 1
                name = f"{time.time_ns():020d}-{os.getpid()}-{self._count}"
                with open(os.path.join(self._folder, f".{name}"), "w", encoding="utf-8") as file:
                    json.dump({**notice, "where": where}, file)
                os.rename(os.path.join(self._folder, f".{name}"), os.path.join(self._folder, name))
        except OSError as error:
            why = error.strerror or str(error)
            self._log("notice-lost", job=entry.id, why=why)
            self._note(entry.id, "disk", f"the notice of its {_EVENTS.get(event, event)} was lost: {why}")
            return
        self._due.set()

    async def run(self) -> None:
        while True:
            names = os.listdir(self._folder) if os.path.isdir(self._folder) else []
            for name in sorted(names):
                if not name.startswith(".") and name not in self._sending:
                    self._sending[name] = asyncio.create_task(self._keep_sending(name))
            await self._due.wait()
            self._due.clear()

    async def _keep_sending(self, name: str) -> None:
        """Send one until that succeeds, or has failed too often."""
        path, loop = os.path.join(self._folder, name), asyncio.get_running_loop()
        notice: Notice = {"job": name, "where": ""}
        for pause_s in (*PAUSES_S, None):
            try:
                with open(path, encoding="utf-8") as file:
                    notice = json.load(file)
                why = await loop.run_in_executor(self._threads, self._deliver, notice)
            except (OSError, ValueError, KeyError) as error:
                why = str(error)
            how = _kind(str(notice["where"]))
            if not why:
                self._log("notified", job=notice["job"], of=notice["event"], how=how)
                self.unsent.get(notice["job"], {}).pop(how, None)
                break
            self._log("not-notified", job=notice["job"], how=how, why=why, gives_up=pause_s is None)
            event = notice.get("event", "")
            what = (
                f"the notice of its {_EVENTS.get(event, event)} by {_HOW.get(how, how)} was not sent: {why}"
            )
            then = f"gave up after {len(PAUSES_S) + 1} attempts" if pause_s is None else "tries again"
            self._note(notice["job"], how, f"{what}; berth {then}")
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        if self._keep is not None and notice["job"] in self.unsent:
            await self._keep(self.unsent)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        del self._sending[name]

    def _note(self, job_id: str, how: str, text: str) -> None:
        self.unsent[job_id] = {**self.unsent.pop(job_id, {}), how: (time.time(), text)}
        while len(self.unsent) > MOST_UNSENT:
            del self.unsent[next(iter(self.unsent))]

    def unsent_of(self, job_id: str) -> list[str]:
        return [text for _, text in self.unsent.get(job_id, {}).values()]

    def unsent_text(self) -> str:
        """Which jobs have notices that were not sent lately; empty if none has."""
        since = time.time() - SHOWN_S
        jobs = [
            job_id for job_id, found in self.unsent.items() if any(at > since for at, _ in found.values())
        ]
        if not jobs:
            return ""
        more = f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else ""
        named = ", ".join(jobs[: -MOST_NAMED - 1 : -1])
        had = f"{counted(len(jobs), 'job')} had notices that were not sent"
        return f"{had}: {named}{more}; berth job {jobs[-1]} says why"

    def _deliver(self, notice: Notice) -> str:
        """Send a notice in a process of its own; why that failed, empty if it was sent."""
        words = [sys.executable, "-m", "berth.live.local.notices"]
        # What a command leaves behind keeps its output open; of a pipe the end would never come.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=output,
                start_new_session=True,
                cwd=folder if os.path.isdir(folder := notice.get("folder", "/")) else "/",
                **_as_user(notice["uid"]),
            )
            self._processes.add(process)
            if self._closed:  # meanwhile, so that the next broker sends it
                _kill(process)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(notice).encode())
            try:
                process.wait(SEND_S)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
                return f"it took more than {SEND_S:g} s"
            finally:
                self._processes.discard(process)
            output.seek(-min(output.seek(0, os.SEEK_END), MOST_SAID), os.SEEK_END)
            lines = output.read().decode(errors="replace").strip().splitlines()
        return "" if SENT in lines else lines[-1] if lines else "it was killed"

    def close(self) -> None:
        """Leave what is not sent to the next broker."""
        self._closed = True
        for task in self._sending.values():
            task.cancel()
        for process in list(self._processes):
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _as_user(uid: int) -> Mapping[str, Any]:
    """What makes a process the user's: a command must not run as root because root's queue sends it."""
    if os.geteuid() != 0 or uid == 0:
        return {}
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return {"user": uid, "group": uid, "extra_groups": []}
    return {
        "user": uid,
        "group": user.pw_gid,
        "extra_groups": os.getgrouplist(user.pw_name, user.pw_gid),
        "env": {"HOME": user.pw_dir, "USER": user.pw_name, "PATH": os.environ.get("PATH", os.defpath)},
    }


def _kind(where: str) -> str:
    """The kind of an address without what may be secret in it."""
    if "@" in where.removeprefix("mailto:") and "://" not in where and not where.startswith("command:"):
        return "mail"
    return where.partition(":")[0]


# One notice, in a process of its own


def text_of(notice: Notice) -> str:
    name = f" ({notice['name']})" if notice["name"] else ""
    what = f"job {notice['job']}{name} on {notice['machine']}"
    if notice["event"] == "start":
        return f"{what} has started"
    code = "" if notice["exit_code"] is None else f", exit code {notice['exit_code']}"
    ran = ""
    if notice["start_ms"] and notice["end_ms"]:
        ran = f", after {span(notice['end_ms'] - notice['start_ms'])}"
    if notice["event"] == "out-of-memory":
        return f"{what} ran out of GPU memory in attempt {notice['attempt']}{ran}"
    return f"{what}: {notice['state']}{code}{ran}"


def send(notice: Notice) -> None:
    """Send one notice; raises OSError, ValueError or subprocess.SubprocessError if it cannot be."""
    where, text = str(notice["where"]), text_of(notice)
    if where == "desktop":
        bus = f"unix:path=/run/user/{os.getuid()}/bus"
        environment = {"DBUS_SESSION_BUS_ADDRESS": bus, **os.environ}
        subprocess.run(["notify-send", "--app-name=berth", "berth", text], check=True, env=environment)
    elif where.startswith("command:"):
        variables = {
            f"BERTH_{key.upper()}": "" if value is None else str(value)
            for key, value in notice.items()
            if key != "state"  # BERTH_STATE is the queue's folder, for a command that calls berth
        }
        subprocess.run(
            ["/bin/sh", "-c", where.removeprefix("command:")],
            check=True,
            input=json.dumps(notice).encode(),
            env={**os.environ, **variables, "BERTH_JOB_STATE": str(notice["state"]), "BERTH_TEXT": text},
            stdout=subprocess.DEVNULL,
        )
    elif _kind(where) == "mail":
        _mail(where.removeprefix("mailto:"), notice, text)
    else:
        _post(where, notice, text)


def _post(where: str, notice: Notice, text: str) -> None:
    from urllib.request import Request, urlopen

    slack = where.startswith("slack:")
    address = where.removeprefix("slack:")
    shown = {key: value for key, value in notice.items() if key not in ("where", "uid")}
    body = {"text": text} if slack or "://hooks.slack.com/" in address else {**shown, "text": text}
    request = Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=SEND_S / 2):
        pass


def _mail(address: str, notice: Notice, text: str) -> None:
    """By the server that `[notify] smtp` of the site or user names, HOST or HOST:PORT; else by sendmail."""
    from email.message import EmailMessage

    message = EmailMessage()
    message["To"], message["Subject"] = address, text
    message["From"] = f"berth <{notice['user']}@{notice['machine']}>"
    message.set_content(f"{text}\n\n{notice['reason'] or ''}\noutput: {notice['output']}\n")
    server = smtp_server()
    if server:
        import smtplib

        host, _, port = server.partition(":")
        with smtplib.SMTP(host, int(port or 25), timeout=SEND_S / 2) as connection:
            connection.send_message(message)
    else:
        subprocess.run(["/usr/sbin/sendmail", "-t", "-oi"], check=True, input=message.as_bytes())


def smtp_server() -> str:
    """What `[notify] smtp` says; empty if nothing."""
    from berth.live.local.config import settings

    servers = [
        each.value
        for each in settings({"up": (), "submit": ()})
        if (each.table, each.key) == ("notify", "smtp")
    ]
    return str(servers[-1]) if servers else ""


def main() -> None:
    try:
        send(json.load(sys.stdin))
    except subprocess.CalledProcessError as error:  # its words may hold what is secret
        sys.exit(f"it ended with exit status {error.returncode}")
    except Exception as error:  # noqa: BLE001  whatever it is, the broker logs it and tries again
        sys.exit(f"{type(error).__name__}: {error}")
    print(SENT, file=sys.stderr)


if __name__ == "__main__":
    main()
