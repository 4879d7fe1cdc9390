"""Ports for programs that must be told theirs, and listen on it only later."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

RANGE = range(10_000, 32_768)
"""Below the range from which Linux itself picks ports (`ip_local_port_range`), for connections too."""

_kept: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports of this machine on which nothing listens, and which no other process gets from here while this one lives.

    A name in the kernel, which ends with this process, keeps each: a socket that listened would be in the way.
    """
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().choice(RANGE)
        keeper = socket.socket(socket.AF_UNIX)
        with suppress(OSError), socket.socket() as tried:
            keeper.bind(f"\0berth-test-port-{port}")
            tried.bind(("", port))
            _kept.append(keeper)
            found.append(port)
            continue
        keeper.close()
    return found
