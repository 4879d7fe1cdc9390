"""The user's side of an interactive job: waits until it starts, then lends it this terminal."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from berth.errors import LiveError
from berth.live.local.client import cancelled_by_ctrl_c, waiting_reason
from berth.live.local.places import find_socket
from berth.live.local.protocol import Connection, Flags
from berth.live.local.terminal_relay import DATA, EXIT, PART, WINDOW, Frames, frame

REASON_AFTER_S = 1.0
_NOT_WITH = ("array", "param", "rerun", "gang")


def check(flags: Flags) -> None:
    """Refuse what an interactive job cannot have; LiveError."""
    for flag in _NOT_WITH:
        if flag in flags:
            raise LiveError(f"--pty and --{flag} exclude each other: there is one terminal; leave one out")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise LiveError(
            "--pty needs a terminal as its input and output; without it, read the output with: berth logs -f ID"
        )


def run(submit: Callable[[Flags], list[str]], flags: Flags) -> int:
    """Submit an interactive job and be its terminal until it ends; its exit status."""
    with _listener() as listener:
        (job_id,) = submit({"retries": "0", **flags, "terminal": listener.getsockname()})
        with Connection(find_socket()) as broker:
            broker.send({"do": "wait", "ids": [job_id]})
            with cancelled_by_ctrl_c(job_id):
                connection = _started(listener, broker, job_id)
            code = None if connection is None else _lend(connection)
            if code is not None:
                return code
            (ended,) = broker.answer()["jobs"]
    reason = f": {ended['reason']}" if ended["reason"] else ""
    print(f"berth: job {job_id}: {ended['state']}{reason}", file=sys.stderr)
    return int(ended["exit_code"] or 1)


@contextmanager
def _listener() -> Iterator[socket.socket]:
    """A socket in a folder that no other user may enter."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")  # after `su` it may be another user's, or not there
    usable = os.path.isdir(runtime) and os.access(runtime, os.W_OK)
    folder = tempfile.mkdtemp(prefix="berth-", dir=runtime if usable else None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(os.path.join(folder, "terminal"))
            listener.listen(1)
            yield listener
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _started(listener: socket.socket, broker: Connection, job_id: str) -> socket.socket | None:
    """The job's connection, when it starts; None if it ended before that."""
    timeout_s: float | None = REASON_AFTER_S
    while True:
        watched: list[socket.socket | Connection] = [listener, broker]
        ready, _, _ = select.select(watched, [], [], timeout_s)
        if listener in ready:
            return listener.accept()[0]
        if broker in ready:
            return None
        timeout_s = None
        why = waiting_reason(job_id)
        if why:
            print(f"berth: job {job_id} {why}; Ctrl-C cancels it", file=sys.stderr)


def _lend(connection: socket.socket) -> int | None:
    """Type into the job and print what it prints; its exit status, or None if it was ended."""
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    before = termios.tcgetattr(0)
    handlers = {
        signal.SIGWINCH: signal.signal(signal.SIGWINCH, lambda number, _: None),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _: sys.exit(143)),
    }
    former = signal.set_wakeup_fd(wakes)
    try:
        tty.setraw(0, termios.TCSADRAIN)
        with connection, contextlib.suppress(OSError):  # the job was killed, or this terminal hung up
            return _pass_on(connection, wake)
        return None
    finally:
        with contextlib.suppress(termios.error):
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        signal.set_wakeup_fd(former)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(wake)
        os.close(wakes)


def _pass_on(connection: socket.socket, wake: int) -> int | None:
    frames, out = Frames(), bytearray(_window())
    connection.setblocking(False)
    while True:  # what is printed is always read, so that neither side waits for the other
        watched: list[socket.socket | int] = [connection, wake, *([] if out else [0])]
        ready, writable, _ = select.select(watched, [connection] if out else [], [])
        if writable:
            del out[: connection.send(out)]
        if wake in ready:
            os.read(wake, PART)
            out += _window()
        if connection in ready:
            part = connection.recv(PART)
            if not part:
                return None
            for kind, text in frames.add(part):
                if kind == EXIT:
                    return int(text)
                _print(text)
        if 0 in ready:
            typed = os.read(0, PART)
            if not typed:
                return None  # the terminal has hung up
            out += frame(DATA, typed)


def _print(text: bytes) -> None:
    while text:
        text = text[os.write(1, text) :]


def _window() -> bytes:
    size = os.get_terminal_size(0)
    return frame(WINDOW, f"{size.lines} {size.columns}".encode())
