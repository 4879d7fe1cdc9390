"""One `scontrol` that is kept and fed by its standard input: to start one costs more than a change of a job does."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence

from berth.errors import LiveError

PROMPT = "scontrol: "
LOST = "Unable to contact slurm controller"
"""What it prints if slurmctld is away. A new one is started then, which reads slurm.conf again."""


class Scontrol:
    """Prints what a `scontrol` of its own would that reads all these lines."""

    def __init__(self, environment: Mapping[str, str], timeout_s: float) -> None:
        """`timeout_s` is how long it may take for all lines of a call together."""
        self._environment, self._timeout_s = environment, timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, words: Sequence[str], lines: str) -> str:
        """Send it lines, each when the one before is done; returns what it repeats of them and prints. LiveError if
        there is none or it does not answer."""
        until = time.monotonic() + self._timeout_s
        printed = ""
        for line in lines.splitlines(keepends=True):
            answer = self._send(words, line, until)
            printed += answer.removesuffix(PROMPT)
            if not answer.endswith(PROMPT):  # it has ended: the lines behind this one were not sent
                self.close()
                break
        if LOST in printed:
            self.close()
        return printed

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert pipe is not None
                    pipe.close()
            process.wait()

    def _send(self, words: Sequence[str], line: str, until: float) -> str:
        process = self._running(words)
        assert process.stdin is not None
        try:
            process.stdin.write(line.encode())
            process.stdin.flush()
        except OSError:  # it was ended from outside since the last call
            self.close()
            process = self._running(words)
            assert process.stdin is not None
            process.stdin.write(line.encode())
            process.stdin.flush()
        return self._answer(process, until)

    def _running(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=dict(self._environment),
                )
            except OSError as error:
                raise cannot_be_run(words[0], error) from error
        return self._process

    def _answer(self, process: subprocess.Popen[bytes], until: float) -> str:
        """All that is printed until the prompt behind the line that it repeats, or until it ends."""
        assert process.stdout is not None
        found = b""
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                self.close()
                raise LiveError(
                    f"scontrol has not answered for {self._timeout_s:g} s; see whether slurmctld lives: scontrol ping"
                )
            some = os.read(process.stdout.fileno(), 1 << 16)
            found += some
            if not some or found.endswith(b"\n" + PROMPT.encode()):
                text = found.decode(errors="replace")
                return text if text.startswith(PROMPT) else PROMPT + text


def cannot_be_run(program: str, error: OSError) -> LiveError:
    """What to say of a program of Slurm's that could not be started."""
    if isinstance(error, FileNotFoundError):
        return LiveError(f"there is no {program} here; run berth where Slurm's commands are installed")
    return LiveError(f"{program} cannot be run ({error.strerror}); see: ulimit -a")
