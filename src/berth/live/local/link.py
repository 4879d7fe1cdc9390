"""The broker's side of the brain: starts it, asks it, and starts it again when it is gone or hangs.

After three crashes in a row `fifo+best-fit` decides, which needs nothing, until another policy is chosen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from berth.errors import LiveError

BRAIN = "berth.live.local.brain"
SAFE_POLICY = "fifo+best-fit"
MOST_CRASHES = 3
START_S = 180.0
"""Loading and compiling for the first time takes 14 s of processor time; on a busy machine many times that."""
DECIDE_S = 15.0
CALM_S = 30.0
TRIAL = -1
"""The serial of the decision that a policy is tried with."""
RESTART_S = 0.2
LONGEST_LINE = 1 << 22

Message = dict[str, Any]


class Link:
    """One brain at a time."""

    def __init__(
        self,
        begin: Callable[[str, bool], Message],
        on_message: Callable[[Message], None],
        log: Callable[..., None],
        *,
        brain: str = BRAIN,
        decide_s: float = DECIDE_S,
    ) -> None:
        """`begin` gives the first message to a brain with this policy, which is only tried or is to decide; `hear` is
        called with all that it says.
        `brain` is the module that is run; it has `decide_s` seconds for each answer."""
        self._begin = begin
        self._on_message = on_message
        self._log = log
        self._module = brain
        self._decide_s = decide_s
        self.policy = SAFE_POLICY
        """The policy that was chosen."""
        self.deciding = ""
        """The policy that decides."""
        self.state = "down"
        """`down`, `loading`, `making`, `compiling`, `trying`, `ready`."""
        self.crashes = 0
        self.restarts = 0
        self.trouble = ""
        """Why the last brain ended, or another policy decides than the chosen."""
        self.pid = 0
        self._socket: socket.socket | None = None
        self._rest = bytearray()
        self._out = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self._good = 0
        self._not_spawned = 0
        """How often in a row no process could be started."""
        self._now_ms = 0
        self._trial: asyncio.Future[None] | None = None
        self._candidate: Link | None = None

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def progress(self) -> str:
        """The state to show; while no policy decides, that of the one that is being tried."""
        state = self.state if self.state != "down" or self._candidate is None else self._candidate.state
        return {"making": "loading", "trying": "compiling"}.get(state, state)

    def start(self, policy: str | None = None) -> None:
        """Start a brain; with another policy, that is what decides from now on. Where no process can be started,
        `trouble` says so and it is done again later; LiveError where the policy is only tried."""
        if policy is not None:
            self.policy, self.crashes, self.trouble = policy, 0, ""
        self._end()
        deciding = self.policy if self.crashes < MOST_CRASHES else SAFE_POLICY
        try:
            self._spawn()
        except OSError as error:
            why = f"no process can be started for it ({error.strerror or error})"
            if self._trial is not None:
                raise LiveError(why) from error
            self._not_spawned += 1
            self.trouble = f"'{deciding}' does not decide: {why}; trying again in a few seconds"
            self._log("brain-not-started", why=why)
            self._start_later(self._not_spawned)
            return
        self._not_spawned = 0
        self._begin_with(deciding)

    def _spawn(self) -> None:
        environment = dict(os.environ)
        environment.setdefault("OMP_NUM_THREADS", "1")
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        if "NUMBA_CACHE_DIR" not in environment and not _writable_package():
            base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
            environment["NUMBA_CACHE_DIR"] = os.path.join(base, "berth", "numba")
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            actions = [(os.POSIX_SPAWN_DUP2, fd, 0), (os.POSIX_SPAWN_DUP2, fd, 1)]
            try:
                self.pid = os.posix_spawn(
                    sys.executable,
                    [sys.executable, "-m", self._module, str(os.getpid())],
                    environment,
                    file_actions=actions,
                    setsigmask=[],
                    setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD],
                )
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours

    async def first(self, policy: str) -> None:
        """Start a brain with a policy that is not known to work; LiveError where it cannot decide."""
        self._trial = asyncio.get_running_loop().create_future()
        self.start(policy)
        await self._trial

    async def change(self, policy: str, accepted: Callable[[], None] = lambda: None) -> None:
        """Decide by another policy from now on; LiveError where it cannot, and then nothing has changed. `accepted`
        is called when it can, before it is told what there is.

        The policy is tried in a process of its own while the old one decides on, on the jobs that there are.
        """
        if self._candidate is not None:
            raise LiveError("another policy is being tried; ask again when that is done")
        candidate = Link(
            self._begin, lambda message: None, self._log, brain=self._module, decide_s=self._decide_s
        )
        candidate._closing = self._closing
        self._candidate = candidate
        try:
            await candidate.first(policy)
        except LiveError as error:
            candidate.close()
            before = f"; '{self.policy}' goes on" if self._socket is not None else ""
            raise LiveError(f"'{policy}' cannot decide: {error}{before}") from error
        finally:
            self._candidate = None
        if self._closing:
            candidate.close()
            raise LiveError("the queue is going down; ask again when it is up")
        self.policy, self.crashes, self.trouble = policy, 0, ""
        accepted()
        self._take_over(candidate)

    def _take_over(self, other: Link) -> None:
        """Go on with the process of another link, which is told all anew."""
        self._end()
        loop = asyncio.get_running_loop()
        assert other._socket is not None
        loop.remove_reader(other._socket)
        loop.remove_writer(other._socket)
        if other._timer is not None:
            other._timer.cancel()
        self._socket, self.pid, other._socket, other.pid = other._socket, other.pid, None, 0
        other._closing = True
        self._begin_with(self.policy)

    def _begin_with(self, policy: str) -> None:
        assert self._socket is not None
        self.deciding, self.state = policy, "loading"
        self._rest, self._out, self._good = bytearray(), bytearray(), 0
        asyncio.get_running_loop().add_reader(self._socket, self._read)
        message = self._begin(policy, self._trial is not None)
        self._now_ms = int(message["now_ms"])
        self._send(message)
        self._limit_start()

    def ask(self, message: Message, *, limited: bool = True) -> None:
        self._send(message)
        if limited:
            self._limit(self._decide_s, "it has not decided")

    def answered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._good += 1
        if self._good >= 20:
            self.crashes = 0 if self.deciding == self.policy else self.crashes

    def close(self) -> None:
        self._closing = True
        if self._candidate is not None:
            self._candidate.close()
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0
        self.state = "down"

    def _limit(self, seconds: float, what: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._gone, f"{what} within {seconds:g} s")

    def _limit_start(self) -> None:
        """A user's own policy has as long for each step of its start as for a decision. berth's own may have to be
        compiled first."""
        words = {"making": "it was not loaded", "trying": "it has not decided on jobs made up to try it"}
        own = ":" in self.deciding and self.state in words
        self._limit(self._decide_s if own else START_S, words[self.state] if own else "it has not begun")

    def _gone(self, why: str) -> None:
        """The brain is dead, or is to be: start another."""
        if self._closing:
            return
        if self._trial is not None:
            trial, self._trial = self._trial, None
            self._end()
            if not trial.done():
                trial.set_exception(LiveError(why))
            return
        self.crashes += 1
        self.restarts += 1
        self._good = 0
        self._log("brain-gone", why=why, policy=self.deciding, crashes=self.crashes)
        self.trouble = f"'{self.deciding}' ended: {why}"
        if self.crashes == MOST_CRASHES and self.policy != SAFE_POLICY:
            self.trouble = (
                f"'{self.policy}' ended {MOST_CRASHES} times ({why});"
                f" {SAFE_POLICY} decides until another is chosen"
            )
        self._end()
        self._start_later(self.crashes)

    def _start_later(self, times: int) -> None:
        """Start a brain again after a pause, which is longer the more often that was needed."""
        pause_s = min(RESTART_S * 2 ** min(times - 1, 5), 5.0)
        asyncio.get_running_loop().call_later(pause_s, self._again)

    def _again(self) -> None:
        if not self._closing and self._socket is None:
            self.start()

    def _calm(self, pid: int) -> None:
        """What happened to an earlier brain is no trouble any more once the policy has decided on for a while."""
        if pid == self.pid and self.ready and self.deciding == self.policy:
            self.trouble = ""

    def _send(self, message: Message) -> None:
        if self._socket is None:
            return
        self._out += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        try:
            while self._out:
                del self._out[: self._socket.send(memoryview(self._out)[: 1 << 18].tobytes())]
        except BlockingIOError:
            loop.add_writer(self._socket, self._write)
            return
        except OSError:
            return  # its end is read, too
        loop.remove_writer(self._socket)

    def _read(self) -> None:
        assert self._socket is not None
        try:
            part = self._socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part or len(self._rest) > LONGEST_LINE:
            self._gone("it crashed, or was killed" if not part else "its message was too long")
            return
        self._rest += part
        lines = self._rest.split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            try:
                message = json.loads(line)
                self._take(message)
            except (ValueError, KeyError, TypeError) as error:
                self._gone(f"it sent what cannot be read: {error!r}")
                return

    def _take(self, message: Message) -> None:
        if message["say"] == "progress":
            self.state = message["what"]
            self._limit_start()
        elif message["say"] == "ready":
            self.state = "ready" if self._trial is None else "trying"
            self.answered()
            if self._trial is not None:
                # berth's own may have more to compile for these jobs.
                seconds = self._decide_s if ":" in self.deciding else START_S
                self._limit(seconds, "it has not decided on the jobs that there are")
                self._send({"do": "decide", "now_ms": self._now_ms, "serial": TRIAL, "events": []})
                return
            asyncio.get_running_loop().call_later(CALM_S, self._calm, self.pid)
        elif self._trial is not None and message["say"] == "error":
            self._gone(message["why"])
            return
        elif self._trial is not None and message["say"] == "decided":
            self.answered()
            trial, self._trial = self._trial, None
            if not trial.done():
                trial.set_result(None)
            return
        elif message["say"] == "error" and message.get("fatal"):
            self._gone(message["why"])
            return
        self._on_message(message)


def _writable_package() -> bool:
    return os.access(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), os.W_OK)
