"""Suspends running jobs and lets them run on: in processes of their own, one after a kill like one before it.

What is to become of a job is kept before it begins (`Tenant.suspension`). What has become of its processes is the
driver's to say (`berth.partition.checkpoint`). So a host that is killed at any step leaves all that its successor
needs, which does the step again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Generic

from berth.errors import BerthError
from berth.partition import fake_driver_folder, find
from berth.partition.checkpoint import Outcome, read_outcome, why_not
from berth.partition.gpus import driver_version
from berth.tenants import RESUMING, SUSPENDED, SUSPENDING, MovingHost, T

MODULE = "berth.partition.checkpoint"
OLDEST_DRIVER = 570
MOVE_S = 300.0
"""How long the driver may take to move what a job holds, one way."""
START_S = 0.5
"""How long it takes at least: a process is started for it, and the driver stops and starts contexts."""
AGAIN_S = 1.0
"""The pause before a job is moved again for which the driver gave no answer, or which could not come back."""
MIB_PER_S = {SUSPENDING: 2_000e6 / 2**20, RESUMING: 7_000e6 / 2**20}
"""How fast the driver is believed to move what a job holds, until it has: the MB/s of `engine.Suspension`, in MiB."""
LEAST_MIB = 1024
"""A job that holds less tells nothing of that."""
MOST_SILENT, SILENT_S = 10, 2 * MOVE_S
"""How often in a row, and for how long, the driver may give no answer. A process that is killed gives none either."""


class Suspending(Generic[T]):
    """What is done about the jobs that are to leave their GPUs or to come back."""

    def __init__(
        self, host: MovingHost[T], *, leaves: Callable[[T], bool], runs_on: Callable[[T], None]
    ) -> None:
        """`leaves` is called with a job before it is suspended, which tells whether it still is to be, and `runs_on`
        with one that runs on."""
        self._host, self._leaves, self._runs_on = host, leaves, runs_on
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._deferred: dict[str, T] = {}
        self._children: set[subprocess.Popen[str]] = set()
        self._begun: set[str] = set()
        """Jobs that a host before this one may have begun to move."""
        self.trouble = _trouble(fake=host.fake)
        """Why no job can be suspended; empty if jobs can be."""
        self.refusals: dict[str, str] = {}
        """Why jobs could not be suspended when that was tried last."""
        self.mib_per_s = dict(MIB_PER_S)
        """How fast the driver moved the last job that was large enough to tell, away and back."""

    def why_not(self, entry: T) -> str:
        """Why a running job cannot be suspended, as far as that is known before; empty if it may be."""
        if self.trouble:
            return self.trouble
        try:
            held_mib, room_mib = self._held_mib(entry), self._free_mib()
            if held_mib > room_mib:
                return f"it holds {held_mib} MiB of GPU memory, and the machine has {room_mib} MiB free to take it"
            left_mib = self._host.left_mib(entry)
            if left_mib is not None and held_mib > left_mib:
                return (
                    f"it holds {held_mib} MiB of GPU memory, and its limit of host memory leaves {left_mib} MiB to"
                    " take it"
                )
            return why_not(self._host.partition_of(entry))
        except (BerthError, OSError) as error:
            return str(error)

    def go_on(self) -> None:
        """After a start of the host: keep the processes of suspended jobs stopped, and end what was begun."""
        for entry in self._host.tenants():
            self.take_over(entry)

    def take_over(self, entry: T) -> None:
        if entry.suspension == SUSPENDED:
            self.stand_still(entry)
        elif entry.suspension in (SUSPENDING, RESUMING):
            self._begun.add(entry.id)

    def stand_still(self, entry: T) -> None:
        """Stop the processes of a suspended job; one that was idle goes on with all but CUDA."""
        if entry.going and not entry.idle:
            self._host.signal(entry, signal.SIGSTOP)

    def move(self, entry: T) -> None:
        """Do what is written of a job."""
        if entry.id not in self._moves:
            self._host.moves(entry)
            task = asyncio.get_running_loop().create_task(self._move(entry, entry.start))
            self._moves[entry.id] = task
            task.add_done_callback(lambda done: self._ended(entry, done))

    def retry(self) -> None:
        """Let jobs come back whose GPUs others had not left yet."""
        deferred, self._deferred = self._deferred, {}
        for entry in deferred.values():
            if entry.suspension == RESUMING and self._is_there(entry):
                self.move(entry)

    def close(self) -> None:
        """Leave what is under way to the next broker."""
        for task in self._moves.values():
            task.cancel()
        for child in [*self._children]:
            child.kill()

    def leaving(self, entry: T) -> bool:
        """Whether another job is still about to leave one of its GPUs."""
        return any(
            not {*entry.slots}.isdisjoint(other.slots)
            for other in self._host.tenants()
            if other is not entry and other.makes_way
        )

    def _ended(self, entry: T, task: asyncio.Task[None]) -> None:
        self._moves.pop(entry.id, None)
        if task.cancelled():
            return
        if not self._is_there(entry):  # it has ended meanwhile, and its name may be another's
            self._begun.discard(entry.id)
            self._host.moved()
            return
        if (error := task.exception()) is not None:
            self._host.log("move-failed", job=entry.id, why=repr(error))
            asyncio.get_running_loop().call_later(AGAIN_S, self.move, entry)
            return
        self._begun.discard(entry.id)
        self._host.moved()
        if entry.suspension in (SUSPENDING, RESUMING) and entry.id not in self._deferred:
            self.move(entry)  # it was told anew meanwhile

    async def _move(self, entry: T, start: int) -> None:
        """One way of one job."""
        silent, since_s, first = 0, time.monotonic(), True
        while entry.suspension in (SUSPENDING, RESUMING) and entry.start == start:
            what = entry.suspension
            leaves = what == SUSPENDING
            if not leaves and self.leaving(entry):
                self._deferred[entry.id] = entry
                return
            if leaves and self._deferred.pop(entry.id, None) is not None:
                self._host.left_gpus(entry, entry.parked_mib)  # it has not begun to come back
                return
            held_mib = 0
            why = ""
            if leaves:
                # What the driver may have moved already is moved to the end: a job that stays is not half suspended.
                begun = silent > 0 or entry.id in self._begun
                why = "" if begun else self.why_not(entry)
                if not why:
                    held_mib = self._held_mib(entry) // max(1, len(entry.slots))
                    if not self._leaves(entry) and not begun:
                        why = "it calls CUDA again"
            else:
                self._host.signal(entry, signal.SIGCONT)
            outcome: Outcome | None = Outcome(False, why)
            if not why:
                began_s = time.monotonic()
                outcome = await self._run(what, self._host.partition_of(entry))
                moved_mib = held_mib if leaves else entry.parked_mib
                # What is done again on the way back may have been done in part before.
                whole = leaves or (first and entry.id not in self._begun)
                first = False
                if outcome is not None and outcome.done and whole and moved_mib > LEAST_MIB:
                    self.mib_per_s[what] = moved_mib * len(entry.slots) / (time.monotonic() - began_s)
            if entry.start != start or not self._is_there(entry):
                return  # it has ended meanwhile
            if outcome is None:
                silent += 1
                if silent < MOST_SILENT and time.monotonic() - since_s < SILENT_S:
                    await asyncio.sleep(AGAIN_S)
                    continue
                outcome = Outcome(False, "the driver gives no answer", lost=True)
            silent = 0
            if outcome.again:
                self._host.log("move-again", job=entry.id, why=outcome.why)
                if leaves:
                    self._begun.add(entry.id)
                await asyncio.sleep(AGAIN_S)
                if leaves:
                    self._host.moves(entry)
                    self._host.signal(entry, signal.SIGCONT)
                continue
            self._begun.discard(entry.id)
            self._settle(entry, what, outcome, held_mib)
            if what == RESUMING and not outcome.done and not outcome.lost:
                await asyncio.sleep(AGAIN_S)
                self._host.kept_off(entry)

    def _is_there(self, entry: T) -> bool:
        return any(each is entry for each in self._host.tenants())

    def _settle(self, entry: T, what: str, outcome: Outcome, held_mib: int) -> None:
        """Note what came of it; one that was to leave again while it came back does that next."""
        host = self._host
        self._host.log(what, job=entry.id, done=outcome.done, why=outcome.why)
        self.refusals.pop(entry.id, None)
        if not outcome.done:
            self.refusals[entry.id] = outcome.why
        if outcome.lost:
            host.lost(entry)
        elif what == RESUMING and not outcome.done:
            host.left_gpus(entry, entry.parked_mib)  # if it was to leave again
            self.stand_still(entry)
        elif entry.suspension != what:
            return
        elif what == RESUMING:
            host.came_back(entry)
            self._runs_on(entry)
        elif outcome.done:
            host.left_gpus(entry, held_mib)
            self.stand_still(entry)
        else:
            host.stayed(entry)
            self._runs_on(entry)

    def moves_s(self, entry: T) -> float:
        """How long it takes to move what a job holds, away and back."""
        held_mib = self._held_mib(entry)
        return sum(START_S + held_mib / mib_per_s for mib_per_s in self.mib_per_s.values())

    def _held_mib(self, entry: T) -> int:
        counted = sum(-(-part.used_bytes >> 20) for part in find(self._host.partition_of(entry)))
        return counted + self._host.uncounted_mib(entry)

    def _free_mib(self) -> int:
        """Memory of the machine that is free; a fake GPU's takes none."""
        if self._host.fake:
            return int(os.environ.get("BERTH_FAKE_HOST_MIB") or 1 << 30)
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) >> 10 for line in file if line.startswith("MemAvailable"))

    async def _run(self, what: str, partition: str) -> Outcome | None:
        """Have a process do it; None: it gave no answer."""
        verb = {SUSPENDING: "suspend", RESUMING: "resume"}.get(what, what)
        words = [sys.executable, "-m", MODULE, verb, partition]
        words.append(str(fake_driver_folder()) if self._host.fake else "")
        try:
            if lines := (await asyncio.to_thread(self._output_of, words)).splitlines():
                return read_outcome(lines[-1])
            why = "its process ended without one"
        except (OSError, ValueError, TypeError, BerthError, subprocess.SubprocessError) as error:
            why = repr(error)
        self._host.log("no-answer", what=what, partition=partition, why=why)
        return None

    def _output_of(self, words: list[str]) -> str:
        """What a process printed; its exit code may have been taken by `Runner.reap`."""
        environment = dict(os.environ)
        if self._host.fake:
            environment["BERTH_FAKE_CARD"] = self._host.fake_card
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(
            words, stdin=null, stdout=pipe, stderr=null, text=True, env=environment
        ) as child:
            self._children.add(child)
            try:
                return child.communicate(timeout=MOVE_S)[0]
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            finally:
                self._children.discard(child)


def _trouble(*, fake: bool) -> str:
    """Why this machine's driver suspends no process; empty if it may."""
    try:
        version = driver_version(fake_driver_folder() if fake else None)
    except BerthError as error:
        return str(error)
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < OLDEST_DRIVER:
        return f"the driver {version} cannot suspend processes; {OLDEST_DRIVER} and later can"
    return ""
