"""Whether a Ray cluster answers at an address, found out within seconds; Ray itself tries for minutes."""

from __future__ import annotations

import socket

from berth.errors import SettingError

ANSWERS_WITHIN_S = 5
_HERE = ("local", "auto")
"""Addresses that name no other machine: a Ray of one's own, and the one that runs here."""

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""How a client of gRPC, which Ray speaks, begins: HTTP/2's preface and an empty SETTINGS frame (RFC 9113, 3.4)."""
_SETTINGS = b"\x04"
"""The kind, the fourth byte, of the frame that a server begins with."""


def check_address(address: str) -> None:
    """Raise SettingError where the address is none, or what answers there does not speak as Ray does."""
    if address in _HERE:
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise SettingError(
            f"'{address}' is no address of a Ray cluster; expected HOST:PORT, ray://HOST:PORT or local"
        )
    try:
        with socket.create_connection((host, int(port)), timeout=ANSWERS_WITHIN_S) as connection:
            connection.settimeout(ANSWERS_WITHIN_S - 1)
            connection.sendall(_GREETING)
            answer = connection.recv(64)
    except (OSError, OverflowError) as error:
        raise SettingError(
            f"no Ray cluster answers at '{address}' ({error}); start one with: ray start --head --port {port}"
        ) from error
    if answer[3:4] != _SETTINGS:
        raise SettingError(
            f"no Ray cluster answers at '{address}': what listens there says {answer[:20]!r}, which is not gRPC"
        )
