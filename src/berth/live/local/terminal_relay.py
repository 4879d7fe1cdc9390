"""Runs the command of an interactive job in its own terminal, and relays that terminal to the user of the job.

`python -I -S terminal_relay.py SOCKET COMMAND…` is the job's process, so it stands on the standard library alone. The
user's side listens at SOCKET (`berth.live.local.terminal`). Frames are a letter, a length of 4 bytes and a text: `D`
what is typed or printed, `W` rows and columns of the window, `X` the exit status.

If the connection breaks, the command gets SIGHUP, as if a window had been closed. What it prints also goes to standard
output, the job's file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
import termios

DATA, WINDOW, EXIT = b"D", b"W", b"X"
PART = 1 << 16


def frame(kind: bytes, text: bytes) -> bytes:
    return kind + struct.pack(">I", len(text)) + text


class Frames:
    """Makes messages of what a connection gives part by part."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def add(self, part: bytes) -> list[tuple[bytes, bytes]]:
        """The messages that are complete with this part."""
        self._rest += part
        found = []
        while len(self._rest) >= 5:
            end = 5 + struct.unpack_from(">I", self._rest, 1)[0]
            if len(self._rest) < end:
                break
            found.append((bytes(self._rest[:1]), bytes(self._rest[5:end])))
            del self._rest[:end]
        return found


def main(path: str, command: list[str]) -> int:
    """Run the command; its exit status, or 128 and the signal's number."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asked.connect(path)
    except OSError:
        print("berth: the terminal that asked for this job is gone", file=sys.stderr)
        return 129
    with contextlib.suppress(OSError):  # the user's side may be killed before it does
        os.unlink(path)
        os.rmdir(os.path.dirname(path))
    master, slave = os.openpty()
    frames = Frames()
    early: list[tuple[bytes, bytes]] = []
    while not early and (part := asked.recv(PART)):  # the size of the window comes first
        early = frames.add(part)
    if not early:
        return 129  # the user gave up just now
    typed = bytearray()
    _take(early, slave, typed)
    child = os.fork()
    if child == 0:
        os.close(master)
        asked.close()
        os.login_tty(slave)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
            signal.signal(number, signal.SIG_DFL)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"berth: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)
    os.close(slave)
    os.set_blocking(master, False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: _send(child, master, number))
    status = _relay(asked, frames, typed, master, child)
    code = os.waitstatus_to_exitcode(status)
    code = 128 - code if code < 0 else code
    with contextlib.suppress(OSError):
        asked.sendall(frame(EXIT, str(code).encode()))
    return code


def _relay(asked: socket.socket, frames: Frames, typed: bytearray, master: int, child: int) -> int:
    """Pass on both ways until the command has ended; how it did. `typed` is what the terminal has not taken yet."""
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, _: None)
    gone, status = 0, 0
    read_from = {wake, master, asked.fileno()}
    while True:
        gone, status = os.waitpid(child, os.WNOHANG) if not gone else (gone, status)
        full = {asked.fileno()} if len(typed) >= PART else set()
        ready, writable, _ = select.select(
            read_from - full, [master] if typed and master in read_from else [], [], 0 if gone else None
        )
        if wake in ready:
            os.read(wake, PART)
        if master in ready:
            try:
                printed = os.read(master, PART)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                printed = b""  # no process has the terminal open
            if not printed:
                read_from.discard(master)
            _print(asked, printed)
        elif gone:
            return status
        if writable:
            with contextlib.suppress(OSError):  # it has filled up, or is closed
                del typed[: os.write(master, typed[:PART])]
        if asked.fileno() in ready:
            try:
                part = asked.recv(PART)
            except OSError:
                part = b""
            if not part:
                read_from.discard(asked.fileno())
                _send(child, master, signal.SIGHUP)
            _take(frames.add(part), master, typed)


def _print(asked: socket.socket, text: bytes) -> None:
    with contextlib.suppress(OSError):  # such as a full disk
        os.write(1, text)
    with contextlib.suppress(OSError):
        asked.sendall(frame(DATA, text))


def _take(messages: list[tuple[bytes, bytes]], terminal: int, typed: bytearray) -> None:
    """Change the size of the window, and add what was typed."""
    for kind, text in messages:
        if kind == WINDOW:
            rows, columns = map(int, text.split())
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
        elif kind == DATA:
            typed += text


def _send(child: int, master: int, number: int) -> None:
    """Send a signal to the command and to what runs in the terminal's foreground."""
    groups = {child}
    with contextlib.suppress(OSError):
        groups.add(os.tcgetpgrp(master))
    for group in groups - {0}:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # such as sudo, which runs as root
            os.killpg(group, number)
            os.killpg(group, signal.SIGCONT)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
