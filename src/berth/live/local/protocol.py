"""What client and broker say to each other: lines of JSON over a Unix socket, one answer a request.

A request is `{"do": NAME, …}`; an answer `{"ok": true, …}` or `{"ok": false, "error": TEXT}`. Who asks is told by the
kernel (SO_PEERCRED), never by the request.
"""

from __future__ import annotations

import json
import socket

from berth.errors import LiveError

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Message = dict[str, Any]
    Flags = dict[str, str | bool | list[str]]
else:
    Message = Flags = dict

VERSION = 1
LONGEST = 256 << 20
"""Bytes of one line that a client takes; a listing of 100,000 jobs has 20 MB."""


class Caller:
    """The caller, as the kernel knows it."""

    __slots__ = ("gone", "uid")

    def __init__(self, uid: int, gone: Callable[[], bool]) -> None:
        self.uid, self.gone = uid, gone


def encoded(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decoded(line: bytes) -> Message:
    """The message of a line; LiveError where it is none."""
    try:
        message = json.loads(line)
    except ValueError as error:
        raise LiveError(f"a message that is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise LiveError(f"a message that is a {type(message).__name__}; expected an object")
    return message


class Connection:
    """A client's side of one connection."""

    def __init__(self, path: str, timeout_s: float | None = None) -> None:
        """LiveError where no broker listens there; with `timeout_s`, also where one does not answer in time."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(timeout_s)
        try:
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
                raise LiveError(f"no queue is up at {path}; start one with: berth up") from error
            why = error.strerror or str(error)
            raise LiveError(f"the queue at {path} cannot be reached: {why}") from error
        self._rest = bytearray()

    def ask(self, message: Message) -> Message:
        """The answer to one request; LiveError where the broker refuses or goes away."""
        self.send(message)
        return self.answer()

    def send(self, message: Message) -> None:
        """Send a request whose answer is read later."""
        try:
            self._socket.sendall(encoded(message))
        except OSError as error:
            raise _closed(error) from error

    def answer(self) -> Message:
        """The answer to the request that was sent first of those without one."""
        try:
            answer = decoded(self._line())
        except OSError as error:
            raise _closed(error) from error
        if not answer.get("ok"):
            raise LiveError(str(answer.get("error", "the queue gave no reason")))
        return answer

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """What `select` waits with."""
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _line(self) -> bytes:
        while (end := self._rest.find(b"\n")) < 0:
            part = self._socket.recv(1 << 18)
            if not part:
                raise ConnectionResetError(0, "it closed the connection")
            if len(self._rest) + len(part) > LONGEST:
                raise LiveError(f"an answer of more than {LONGEST >> 20} MiB; ask for less")
            self._rest += part
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line


def ask(path: str, message: Message, timeout_s: float | None = None) -> Message:
    """The answer to one request, over a connection of its own; LiveError as of `Connection`."""
    with Connection(path, timeout_s) as connection:
        return connection.ask(message)


def _closed(error: OSError) -> LiveError:
    return LiveError(f"the queue closed the connection: {error.strerror or error}; see: berth status")
