"""Interactive jobs: a terminal of this test's, attached to a real job of a real queue."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.live.local.world import BERTH, World, berth

WITHIN_S = 120.0
LOGIN = "import os, sys; os.login_tty(0); os.execv(sys.argv[1], sys.argv[1:])"


class Typist:
    """A terminal with `berth submit --pty` in it, or with another command."""

    def __init__(self, world: World, *words: str, command: tuple[str, ...] = ("submit", "--pty")) -> None:
        self.master, slave = pty.openpty()
        self.resize(33, 101)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOGIN, BERTH, *command, *words],
            env={**world.environment, "TERM": "xterm"},
            cwd=world.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.text = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def until(self, wanted: str) -> None:
        """Read until this was printed after what was waited for before."""
        end = time.monotonic() + WITHIN_S
        while wanted.encode() not in self.text:
            ready, _, _ = select.select([self.master], [], [], max(0.0, end - time.monotonic()))
            assert ready, (wanted, self.text)
            self.text += os.read(self.master, 1 << 16)
        self.text = self.text.partition(wanted.encode())[2]

    def ended(self) -> int:
        """The exit status, when it has ended; what it prints last is in `text`."""
        end = time.monotonic() + WITHIN_S
        while self.process.poll() is None or select.select([self.master], [], [], 0)[0]:
            assert time.monotonic() < end, self.text
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.text += os.read(self.master, 1 << 16)
                except OSError:  # no process has the terminal open
                    break
        return self.process.wait(WITHIN_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)


@contextmanager
def typist(world: World, *words: str, command: tuple[str, ...] = ("submit", "--pty")) -> Iterator[Typist]:
    made = Typist(world, *words, command=command)
    try:
        yield made
    finally:
        made.close()


def test_a_shell_has_the_terminal_its_size_its_keys_and_the_exit_status(shared: World) -> None:
    with typist(shared, "--gpus", "0", "sh", "-c", "echo ready; exec sh") as shell:
        shell.until("ready")
        shell.type("stty size; test -t 0 && test -t 2 && echo a-$((40 + 2))\n")
        shell.until("33 101")
        shell.until("a-42")
        shell.resize(20, 70)
        shell.type('until [ "$(stty size)" = "20 70" ]; do sleep 0.05; done; echo resized-$((1 + 1))\n')
        shell.until("resized-2")
        # One that says so when it has the terminal: an earlier Ctrl-C may be lost between the shell and it.
        shell.type("sh -c \"echo slee''ps; exec sleep 1000\"\n")
        shell.until("sleeps")
        shell.type("\x03")
        shell.type("echo after-$((2 + 2)); exit 7\n")
        shell.until("after-4")
        assert shell.ended() == 7


def test_run_interactive_is_a_job_of_the_queue_with_this_terminal(shared: World) -> None:
    command = ("run", "--interactive", "--mem", "2G", "--core-pct", "30", "--")
    with typist(
        shared, "sh", "-c", "echo $BERTH_JOB_ID > id; echo ready; read line; exit 7", command=command
    ) as shell:
        shell.until("ready")
        job = shared.job((shared.folder / "id").read_text().strip())
        assert (job["mem_mib"], job["core_pct"]) == (2048, 30)
        shell.type("\n")
        assert shell.ended() == 7


def test_run_interactive_refuses_what_the_queue_has_not(shared: World) -> None:
    done = berth(shared, "run", "--interactive", "--burst", "--json", "--", "true")
    assert (done.returncode, done.stderr) == (
        2,
        "berth: --interactive runs the command in the queue; leave out --burst, --json\n",
    )


def test_without_a_runtime_folder_there_is_a_terminal_too(
    shared: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(shared.environment, "XDG_RUNTIME_DIR", str(shared.folder / "none"))
    with typist(shared, "--gpus", "0", "sh", "-c", "echo said") as job:
        job.until("said")
        assert job.ended() == 0


def test_what_was_printed_is_kept_as_the_output_of_any_job(shared: World) -> None:
    with typist(shared, "--gpus", "0", "--name", "kept", "sh", "-c", "echo said; exit 3") as shell:
        shell.until("said")
        assert shell.ended() == 3
    (job,) = shared.ask("job", id="kept")["jobs"]
    assert (job["state"], job["exit_code"]) == ("failed", 3)
    assert shared.output(job["id"]) == "said\n"


def test_much_is_pasted_and_printed_at_once(shared: World) -> None:
    lines = 20_000
    with typist(
        shared, "--gpus", "0", "sh", "-c", f"stty -echo; echo ready; head -n {lines} | tee /dev/tty | wc -l"
    ) as job:
        job.until("ready")
        left = b"a line of forty characters, or so, here\n" * lines
        counted = b""
        end = time.monotonic() + WITHIN_S
        while f"{lines}\r\n".encode() not in counted:
            assert time.monotonic() < end
            reads, writes, _ = select.select([job.master], [job.master] if left else [], [], 1)
            if reads:
                counted = counted[-100:] + os.read(job.master, 1 << 16)
            if writes:
                left = left[os.write(job.master, left[:1000]) :]
        assert job.ended() == 0


def test_a_broken_connection_hangs_up_the_job(shared: World) -> None:
    with typist(shared, "--gpus", "0", "--name", "left", "sh", "-c", "echo runs; sleep 1000") as job:
        job.until("runs")
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
    assert list(shared.wait("left").values()) == [("failed", 129)]


def test_a_job_that_ignores_the_hang_up_runs_on(shared: World) -> None:
    script = "trap '' HUP; echo runs; while [ ! -e done ]; do sleep 0.05; done; echo ended"
    with typist(shared, "--gpus", "0", "--name", "stays", "sh", "-c", script) as job:
        job.until("runs")
        job.process.send_signal(signal.SIGKILL)
        job.process.wait()
    (shared.folder / "done").touch()
    assert [state for state, _ in shared.wait("stays").values()] == ["completed"]
    assert shared.output(shared.ask("job", id="stays")["jobs"][0]["id"]).endswith("ended\n")


def test_a_job_that_waits_says_why_and_ctrl_c_cancels_it(shared: World) -> None:
    with typist(shared, "--gpus", "0", "--name", "later", "--begin", "now+1h", "sh") as job:
        job.until("Ctrl-C cancels it")
        job.type("\x03")
        assert job.ended() == 130
        assert b"cancelled" in job.text
    assert shared.state_of("later") == "cancelled"


def test_a_cancelled_job_gives_the_terminal_back(shared: World) -> None:
    with typist(shared, "--gpus", "0", "--name", "ends", "sh", "-c", "echo runs; sleep 1000") as job:
        before = termios.tcgetattr(job.master)
        job.until("runs")
        shared.ask("cancel", ids=["ends"])
        assert job.ended() == 143
        assert termios.tcgetattr(job.master)[3] & termios.ICANON == before[3] & termios.ICANON


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pty", "sh"], "--pty needs a terminal as its input and output"),
        (["--pty", "--array", "1-2", "sh"], "--pty and --array exclude each other"),
        (["--pty", "--json", "sh"], "leave --json and - out"),
        (["--pty", "-"], "leave --json and - out"),
    ],
)
def test_what_cannot_have_a_terminal_is_refused(shared: World, words: list[str], said: str) -> None:
    done = berth(shared, "submit", *words)
    assert done.returncode == 2
    assert said in done.stderr
