"""A worker as the console sees it, with what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from berth.console.what_if.worker import LOG

PAGE = os.sysconf("SC_PAGE_SIZE")
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
"""A replay uses one processor; libraries would reserve memory for a thread on each."""


class Child:
    """A worker that was started, in a process group of its own."""

    def __init__(self, folder: Path, history: Path, mem_mib: int) -> None:
        self._scratch = TemporaryDirectory(
            prefix="berth-"
        )  # it may be killed before it removes its own files
        with (folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    *("-m", "berth.console.what_if.worker"),
                    *(str(folder.absolute()), str(history.absolute()), str(mem_mib)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **THREADS, "TMPDIR": self._scratch.name},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._rest = b""

    def status(self) -> int | None:
        """Its exit status, negative for a signal, or None while it runs."""
        return self._process.poll()

    def news(self) -> list[dict[str, Any]]:
        """What it has said since this was last asked."""
        assert self._process.stdout is not None
        with suppress(BlockingIOError):
            while piece := os.read(self._process.stdout.fileno(), 1 << 16):
                self._rest += piece
        *lines, self._rest = self._rest.split(b"\n")
        found = []
        for line in lines:
            with suppress(ValueError):  # a library that prints
                message = json.loads(line)
                if isinstance(message, dict):
                    found.append(message)
        return found

    def rss_mib(self) -> int:
        """The memory that it has now; 0 if it has ended."""
        try:
            words = Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()
        except OSError:
            return 0
        return int(words[1]) * PAGE >> 20

    def stop(self) -> None:
        """End it and its children at once; nothing if it has ended."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._scratch.cleanup()


Start = Callable[[Path, int], Child]
"""Starts a worker on a question's folder, with a limit of memory in MiB."""


def starter(history: Path) -> Start:
    """What starts workers that replay this history."""
    return lambda folder, mem_mib: Child(folder, history, mem_mib)
