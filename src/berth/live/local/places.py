"""Where the queue of this machine keeps its files, and where its socket is."""

from __future__ import annotations

import os
import stat

from berth.errors import LiveError

LONGEST_SOCKET = 107
"""Bytes of a Unix socket's path, without the zero that ends it (unix(7))."""
SYSTEM_STATE = "/var/lib/berth"
SYSTEM_SOCKET = "/run/berth-queue.socket"
FAKE_CARD = "fake-card-5"
"""The file of the fake GPUs; its number is that of its layout (native/tests/fake.h)."""


def state_folder() -> str:
    """`$BERTH_STATE`; else root's is /var/lib/berth, another user's is in their home."""
    if named := os.environ.get("BERTH_STATE"):
        return os.path.abspath(named)
    if os.geteuid() == 0:
        return SYSTEM_STATE
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "berth")


def find_socket() -> str:
    """The socket that a client talks to: `$BERTH_SOCKET`, the user's own queue, else the machine's."""
    if named := os.environ.get("BERTH_SOCKET"):
        _check_socket(named)
        return named
    own = Places(state_folder()).socket
    if "BERTH_STATE" in os.environ or os.path.exists(own) or not os.path.exists(SYSTEM_SOCKET):
        return own
    return SYSTEM_SOCKET


def queue_folder() -> str:
    """The state folder of the queue that a client talks to: its own, or that of the machine."""
    return SYSTEM_STATE if find_socket() == SYSTEM_SOCKET else state_folder()


def check_metrics(where: str) -> None:
    """Refuse a port that is none, and a path at which there is something else than a socket; LiveError."""
    if where.isdigit():
        if not 0 < int(where) < 1 << 16:
            raise LiveError(f"--metrics {where}; a port is from 1 to 65535")
        return
    try:
        kind = os.stat(where).st_mode
    except OSError:
        return  # it is made
    if not stat.S_ISSOCK(kind):
        raise LiveError(
            f"--metrics {where}: this is not a socket and is left alone; name a path that does not exist"
        )


def _check_socket(path: str) -> None:
    size = len(os.fsencode(path))
    if size > LONGEST_SOCKET:
        raise LiveError(
            f"the socket's path {path} has {size} bytes, and a Unix socket's has at most {LONGEST_SOCKET}; name a"
            " shorter one with BERTH_SOCKET"
        )


class Places:
    """The files of one queue."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.store = os.path.join(folder, "queue.db")
        self.copy = os.path.join(folder, "queue.db.copy")
        self.numbers = os.path.join(folder, "numbers")
        self.lock = os.path.join(folder, "lock")
        self.log = os.path.join(folder, "broker.log")
        self.runs = os.path.join(folder, "runs")
        self.output = os.path.join(folder, "output")
        self.allotments = os.path.join(folder, "jobs")
        self.notices = os.path.join(folder, "notices")
        self.samples = os.path.join(folder, "samples")
        self.history = os.environ.get("BERTH_HISTORY") or os.path.join(folder, "history")
        self.fake_card = os.path.join(folder, FAKE_CARD)
        named = os.environ.get("BERTH_SOCKET")
        self.socket = named or (SYSTEM_SOCKET if folder == SYSTEM_STATE else os.path.join(folder, "socket"))

    def check(self) -> None:
        """Refuse a path that no socket can have; LiveError says what to do."""
        _check_socket(self.socket)

    def make(self) -> bool:
        """Make the folders, and return whether the state folder is new; LiveError where that cannot be."""
        new = not os.path.exists(self.folder)
        try:
            os.makedirs(self.folder, mode=0o755, exist_ok=True)
            for folder, mode in (
                (self.runs, 0o711),
                (self.output, 0o711),
                (self.allotments, 0o755),
                (self.samples, 0o755),
            ):
                os.makedirs(folder, mode=mode, exist_ok=True)
        except OSError as error:
            raise LiveError(
                f"{error.filename} cannot be made ({error.strerror}); name another folder with BERTH_STATE"
            ) from error
        return new
