"""Tells users what became of their jobs: `berth submit --notify`.

The broker writes a notice as a file and goes on. A helper, `python -m berth.live.local.notices FOLDER LOG`, sends each
in a process of its own as the job's user, tries again after a pause, and ends when there are none. What is left when a
broker is killed is sent by the next one's helper.
"""

from __future__ import annotations

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
from collections.abc import Callable, Mapping
from typing import IO, Any, NamedTuple

from berth.live.local.entry import Entry
from berth.live.local.log import Log

PAUSES_S = (2.0, 10.0, 60.0, 300.0)
"""How long the helper waits after each failure; after the last it gives up."""
AT_ONCE = 8
SEND_S = 30.0
LINGER_S = 2.0
"""The helper ends when it has had nothing to do for so long."""
LOOK_S = 0.1
MOST_SAID = 4096
"""Bytes of what a failed sending said, of which the last line is logged."""

Notice = dict[str, Any]


class Notices:
    """The broker's side."""

    def __init__(self, folder: str, log_path: str, log: Log) -> None:
        self._folder, self._log_path, self._log = folder, log_path, log
        self._helper = 0
        self._count = 0
        self._some = True  # what an earlier broker may have left

    def post(self, entry: Entry, event: str, output: str) -> None:
        """Have a job's user told of an event, if the job asks for it."""
        request = entry.request
        if not request.notify or event not in request.notify_on:
            return
        notice = {
            "event": event, "job": entry.id, "name": request.name, "user": entry.user, "uid": entry.uid,
            "state": entry.state, "exit_code": entry.exit_code, "reason": entry.reason, "attempt": entry.attempt,
            "start_ms": entry.start_ms, "end_ms": entry.end_ms, "machine": socket.gethostname(), "output": output,
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
            self._log("notice-lost", job=entry.id, why=error.strerror or str(error))
            return
        self._some = True
        self.look()

    def look(self) -> None:
        """Start a helper if there are notices and none is at work; called now and then."""
        if not self._some or (self._helper and _lives(self._helper)):
            return
        self._some = _any_in(self._folder)
        if self._some:
            words = [sys.executable, "-m", "berth.live.local.notices", self._folder, self._log_path]
            try:
                self._helper = os.posix_spawn(
                    sys.executable, words, dict(os.environ), setsigmask=[], setsigdef=[signal.SIGCHLD]
                )
            except OSError as error:
                self._log("notices-not-sent", why=error.strerror or str(error))

    def close(self) -> None:
        """Leave what is not sent to the next broker."""
        if self._helper and _lives(self._helper):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._helper, signal.SIGTERM)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _any_in(folder: str) -> bool:
    try:
        with os.scandir(folder) as files:
            return any(not file.name.startswith(".") for file in files)
    except OSError:
        return False


class _Sending(NamedTuple):
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    """What it says of its errors."""
    notice: Notice
    until_s: float


class Helper:
    """Sends the notices of a folder, several at once."""

    def __init__(self, folder: str, log: Callable[..., None]) -> None:
        self._folder, self._log = folder, log
        self.sending: dict[str, _Sending] = {}
        self.failed: dict[str, tuple[int, float]] = {}
        """How often a notice has failed, and when it is tried again."""

    def step(self) -> bool:
        """Begin what is due and take the results of what is done; False if there is nothing to do."""
        for name in list(self.sending):
            self._take(name)
        names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        for gone in self.failed.keys() - set(names):
            del self.failed[gone]
        for name in names:
            _, at_s = self.failed.get(name, (0, 0.0))
            if name not in self.sending and len(self.sending) < AT_ONCE and time.monotonic() >= at_s:
                self._begin(name)
        return bool(names or self.sending)

    def _begin(self, name: str) -> None:
        try:
            with open(os.path.join(self._folder, name), encoding="utf-8") as file:
                notice = json.load(file)
            words = [sys.executable, "-m", "berth.live.local.notices", "send"]
            # What a command leaves behind keeps it open; of a pipe the end would never come.
            said = tempfile.TemporaryFile()  # noqa: SIM115
        except (OSError, ValueError) as error:
            self._fail(name, {"job": name}, str(error))
            return
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                cwd="/",
                **_as_user(notice["uid"]),
            )
        except (OSError, ValueError, KeyError) as error:
            said.close()
            self._fail(name, {"job": name}, str(error))
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps(notice).encode())
        self.sending[name] = _Sending(process, said, notice, time.monotonic() + SEND_S)

    def _take(self, name: str) -> None:
        process, output, notice, until_s = self.sending[name]
        if process.poll() is None:
            if time.monotonic() < until_s:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        del self.sending[name]
        with output:
            output.seek(-min(output.seek(0, os.SEEK_END), MOST_SAID), os.SEEK_END)
            said = output.read().decode(errors="replace").strip().splitlines()
        if process.returncode == 0:
            self._log("notified", job=notice["job"], of=notice["event"], how=_kind(notice["where"]))
            self._remove(name)
        else:
            self._fail(name, notice, said[-1] if said else f"it took more than {SEND_S:g} s")

    def _fail(self, name: str, notice: Notice, why: str) -> None:
        times, _ = self.failed.get(name, (0, 0.0))
        last = times >= len(PAUSES_S)
        self._log(
            "not-notified", job=notice["job"], how=_kind(notice.get("where", "")), why=why, gives_up=last
        )
        if last:
            self._remove(name)
        else:
            self.failed[name] = times + 1, time.monotonic() + PAUSES_S[times]

    def _remove(self, name: str) -> None:
        self.failed.pop(name, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._folder, name))

    def close(self) -> None:
        """End what is being sent; it stays in the folder."""
        for process, output, _, _ in self.sending.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            output.close()
        self.sending.clear()


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
    """A notice as one sentence."""
    name = f" ({notice['name']})" if notice["name"] else ""
    what = f"job {notice['job']}{name} on {notice['machine']}"
    if notice["event"] == "start":
        return f"{what} has started"
    code = "" if notice["exit_code"] is None else f", exit code {notice['exit_code']}"
    ran = ""
    if notice["start_ms"] and notice["end_ms"]:
        seconds = max(0, notice["end_ms"] - notice["start_ms"]) // 1000
        ran = f", after {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
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
        told = {f"BERTH_{key.upper()}": "" if value is None else str(value) for key, value in notice.items()}
        subprocess.run(
            ["/bin/sh", "-c", where.removeprefix("command:")],
            check=True,
            input=json.dumps(notice).encode(),
            env={**os.environ, **told, "BERTH_TEXT": text},
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

    told = [
        each.value
        for each in settings({"up": (), "submit": ()})
        if (each.table, each.key) == ("notify", "smtp")
    ]
    return str(told[-1]) if told else ""


def main() -> None:
    """Be the helper of FOLDER, or with `send` send the notice on standard input."""
    if sys.argv[1:] == ["send"]:
        try:
            send(json.load(sys.stdin))
        except Exception as error:  # noqa: BLE001  whatever it is, the helper logs it and tries again
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            sys.exit(1)
        return
    folder, log_path = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    helper = Helper(folder, Log(log_path))
    idle_s = time.monotonic()
    try:
        while time.monotonic() < idle_s + LINGER_S:
            if helper.step():
                idle_s = time.monotonic()
            time.sleep(LOOK_S)
    except FileNotFoundError:
        pass  # the queue's folder was removed
    finally:
        helper.close()


if __name__ == "__main__":
    main()
