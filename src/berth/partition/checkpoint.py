"""Moves what a partition's processes hold off its GPUs into the host's memory, and back.

By the driver's checkpoint calls (`cuCheckpointProcessLock` and its like, driver 570 and later), which name a process
by its pid. The driver keeps the state of each process, so each step may be repeated after a kill at any instruction.
Run as a program, so that a driver that hangs or crashes takes no caller along:

    python -m berth.partition.checkpoint suspend|resume|check PARTITION [DRIVER_FOLDER]

It prints one line of JSON, an `Outcome`.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from berth.errors import BerthError, NoRoomError, PartitionError
from berth.partition.gpus import driver_version, gpus
from berth.partition.library import resize_region
from berth.partition.lifecycle import resize
from berth.partition.processes import stat_of
from berth.partition.regions import STOPPED, Limit, Partition, find, locked, root_folder

RUNNING, LOCKED, CHECKPOINTED, FAILED = range(4)
"""What the driver says of a process (CUprocessState)."""
NO_ROOM, NOT_READY, NOT_SUPPORTED = 2, 600, 801
STANDS_STILL = -1
"""No answer of the driver: a signal has stopped the process."""
LOCK_MS = 10_000
"""How long the driver waits for the work that a process has on a GPU."""
TRIES = 3
PAUSE_S = 0.05
MOST_ROUNDS = 100
"""How often processes that came meanwhile are looked for."""
LENT, STRANGERS = "suspended", "strangers"
"""Files of a partition: what limits it had before it was suspended, and what other processes go with its own."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of it."""

    done: bool
    why: str = ""
    """Why it was not done; all processes are as they were then, unless `lost`."""
    no_room: bool = False
    """Whether the GPUs have too little memory free to resume it."""
    lost: bool = False
    """Whether the driver has lost what a process held, so that it can only be ended."""
    again: bool = False
    """Whether it is half done, and is to be done again: a signal has stopped a process, which the driver moves once it
    runs."""


class _LockArgs(ctypes.Structure):
    _fields_ = (("timeout_ms", ctypes.c_uint), ("reserved", ctypes.c_uint), ("more", ctypes.c_uint64 * 7))


class Calls:
    """The driver's checkpoint calls."""

    def __init__(self, driver_folder: Path | None = None) -> None:
        """Raises PartitionError if the driver has none."""
        name = "libcuda.so.1"
        try:
            self._cuda = ctypes.CDLL(str(driver_folder / name) if driver_folder else name)
        except OSError as error:
            raise PartitionError(f"there is no {name} on this machine; install NVIDIA's driver") from error
        if not hasattr(self._cuda, "cuCheckpointProcessLock"):
            version = driver_version(driver_folder)
            raise PartitionError(
                f"the driver{f' {version}' if version else ''} cannot suspend processes; 570 and later can"
            )
        if (answer := self._cuda.cuInit(0)) != 0:
            raise PartitionError(f"the driver does not start (CUDA error {answer}); see what nvidia-smi says")

    def state(self, pid: int) -> int | None:
        """The driver's state of a process; None: it uses no GPU."""
        state = ctypes.c_int()
        return None if self._cuda.cuCheckpointProcessGetState(pid, ctypes.byref(state)) else state.value

    def lock(self, pid: int) -> int:
        """Have its calls wait, when its work on the GPUs is done. Returns the driver's answer, as do all below."""
        return int(self._cuda.cuCheckpointProcessLock(pid, ctypes.byref(_LockArgs(LOCK_MS))))

    def checkpoint(self, pid: int) -> int:
        """Move what it holds to the host's memory."""
        return int(self._cuda.cuCheckpointProcessCheckpoint(pid, None))

    def restore(self, pid: int) -> int:
        """Move it back."""
        return int(self._cuda.cuCheckpointProcessRestore(pid, None))

    def unlock(self, pid: int) -> int:
        """Let its calls go on."""
        return int(self._cuda.cuCheckpointProcessUnlock(pid, None))


def suspend(name: str, calls: Calls, root: Path | None = None) -> Outcome:
    """Suspend all processes of a partition or none, and let others have what it was promised."""
    with _alone(name, root):
        found = _suspend(name, calls, root)
        if found.done:
            _lend(name, root)
        return found


def resume(name: str, calls: Calls, root: Path | None = None, driver_folder: Path | None = None) -> Outcome:
    """Take back what the partition was promised, and let all of its processes run on."""
    with _alone(name, root):
        try:
            _take_back(name, root, driver_folder)
        except NoRoomError as error:
            return Outcome(False, str(error), no_room=True)
        found = _resume(name, calls, root)
        if found.no_room:
            _lend(name, root)
        elif found.done:
            _lent_file(name, root).unlink(missing_ok=True)
        return found


def why_not(name: str, root: Path | None = None) -> str:
    """Why the processes of a partition cannot be suspended, as far as that is seen before; empty if they may be."""
    ours = os.stat("/proc/self/ns/pid").st_ino
    for part in find(name, root):
        if part.hardware is not None:
            return f"it runs in {part.hardware.text}"
        for process in part.processes:
            if process.pid_namespace != ours and not process.outer_pid:
                return f"process {process.pid} is in a container, and its pid outside is not known"
            with suppress(OSError):
                words = Path(f"/proc/{process.outer_pid or process.pid}/environ").read_bytes()
                if b"\0CUDA_MPS_PIPE_DIRECTORY=" in b"\0" + words:
                    return "it uses MPS, whose clients no driver suspends"
    return ""


def _suspend(name: str, calls: Calls, root: Path | None) -> Outcome:
    if why := why_not(name, root):
        return Outcome(False, why)
    for _ in range(MOST_ROUNDS):  # until no process has come that was not locked
        running = [pid for pid in _pids(name, root) if calls.state(pid) == RUNNING]
        if not running:
            break
        for pid in running:
            answer = calls.lock(pid)
            if answer != 0 and calls.state(pid) is not None:
                return _undone(name, calls, root, f"process {pid} cannot be stopped ({_words(answer)})")
    _count_stop(name, root)
    for pid in _pids(name, root):
        answer = calls.checkpoint(pid) if calls.state(pid) == LOCKED else 0
        if answer != 0 and calls.state(pid) is not None:
            return _undone(name, calls, root, f"process {pid} cannot be moved ({_words(answer)})")
    states = [calls.state(pid) for pid in _pids(name, root)]
    if FAILED in states:
        return Outcome(False, "the driver has lost what a process held on its GPU", lost=True)
    if RUNNING in states or LOCKED in states:
        return _undone(name, calls, root, "new processes kept coming")
    return Outcome(True)


def _undone(name: str, calls: Calls, root: Path | None, why: str) -> Outcome:
    """Let everything run on."""
    _count_stop(name, root)
    back = _resume(name, calls, root)
    if back.again:
        return back
    return Outcome(False, why) if back.done else Outcome(False, f"{why}; then {back.why}", lost=True)


def _resume(name: str, calls: Calls, root: Path | None) -> Outcome:
    pids = _pids(name, root)
    for pid in pids:
        if calls.state(pid) != CHECKPOINTED:
            continue
        answer = _tried(calls.restore, pid)
        if answer == NO_ROOM:
            for other in pids:
                if calls.state(other) == LOCKED:
                    calls.checkpoint(other)
            return Outcome(False, "the GPU has too little memory free", no_room=True)
        if answer == STANDS_STILL:
            return Outcome(False, f"process {pid} was stopped by a signal", again=True)
        if answer != 0 and calls.state(pid) is not None:
            why = f"process {pid} could not be moved back to its GPU ({_words(answer)})"
            return Outcome(False, why, lost=True)
    if FAILED in map(calls.state, pids):
        return Outcome(False, "the driver has lost what a process held on its GPU", lost=True)
    for pid in pids:
        answer = _tried(calls.unlock, pid) if calls.state(pid) == LOCKED else 0
        if answer == STANDS_STILL:
            return Outcome(False, f"process {pid} was stopped by a signal", again=True)
        if answer != 0 and calls.state(pid) == LOCKED:
            return Outcome(False, f"process {pid} does not go on ({_words(answer)})", lost=True)
    return Outcome(True)


def _tried(call: Callable[[int], int], pid: int) -> int:
    """The answer of a call, which is made again if it fails; too little memory does not change so soon.

    STANDS_STILL if the process was stopped at one of the tries, since that may be why they failed.
    """
    stopped = False
    for left in reversed(range(TRIES)):
        stopped = stopped or is_stopped(pid)
        answer = call(pid)
        if answer in (0, NO_ROOM):
            return answer
        stopped = stopped or is_stopped(pid)
        if left:
            time.sleep(PAUSE_S)
    return STANDS_STILL if stopped else answer


def _pids(name: str, root: Path | None) -> list[int]:
    """The processes of all its GPUs, each once, as this process sees them, and its living strangers."""
    found = [process.outer_pid or process.pid for part in find(name, root) for process in part.processes]
    with suppress(FileNotFoundError):
        noted = json.loads(((root or root_folder()) / name / STRANGERS).read_text())
        found += [pid for pid, since in noted if start_of(pid) == since]
    return list(dict.fromkeys(found))


def note_strangers(name: str, pids: Collection[int]) -> None:
    """Have processes move with a partition that do not count in it, such as those that run without libberth."""
    file = root_folder() / name / STRANGERS
    draft = file.with_suffix(".draft")
    with suppress(FileNotFoundError):  # it ends now
        draft.write_text(json.dumps([(pid, start_of(pid)) for pid in sorted(pids)]))
        os.replace(draft, file)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process."""
    return stat_of(pid)[:1] == ["T"]


def start_of(pid: int) -> str:
    """When a process began, in ticks since the machine started; empty if it has ended."""
    return "".join(stat_of(pid)[19:20])


# What it was promised


def _lend(name: str, root: Path | None) -> None:
    """Release what a suspended partition was promised."""
    parts, file = find(name, root), _lent_file(name, root)
    if not file.exists():
        had = {
            part.uuid: (part.limit_bytes >> 20, part.core_pct, part.burst, part.priority) for part in parts
        }
        draft = file.with_suffix(".draft")
        draft.write_text(json.dumps(had))
        os.replace(draft, file)
    for part in parts:
        resize_region(part.folder, part.uuid, 0, 0, _flags_of(part))


def _count_stop(name: str, root: Path | None) -> None:
    """Have what processes measure across this moment not count."""
    for part in find(name, root):
        flags = _flags_of(part) | STOPPED
        resize_region(part.folder, part.uuid, part.limit_bytes, part.core_pct, flags)


def _flags_of(part: Partition) -> int:
    return Limit(1, 0, part.burst, part.priority).flags


def _take_back(name: str, root: Path | None, driver_folder: Path | None) -> None:
    """Give the partition its limits again. Raises NoRoomError if others were promised too much meanwhile."""
    file = _lent_file(name, root)
    if not file.exists():
        return
    cards = gpus(driver_folder)
    for mem_mib, core_pct, burst, priority in json.loads(file.read_text()).values():
        resize(
            name, mem_mib=mem_mib, core_pct=core_pct, burst=burst, priority=priority, gpus=cards, root=root
        )


def _lent_file(name: str, root: Path | None) -> Path:
    return (root or root_folder()) / name / LENT


def _alone(name: str, root: Path | None) -> AbstractContextManager[None]:
    """Wait for another process that suspends or resumes the same partition, as one that outlived its caller."""
    find(name, root)
    return locked((root or root_folder()) / name / "suspending", os.O_RDWR | os.O_CREAT)


def _words(answer: int) -> str:
    """What the driver's answer means here."""
    messages = {
        NO_ROOM: "too little memory",
        NOT_READY: f"its work on the GPU took longer than {LOCK_MS // 1000} s",
        NOT_SUPPORTED: "it shares memory with other processes, or has managed memory",
    }
    return messages.get(answer, f"CUDA error {answer}")


def main(words: Sequence[str]) -> None:
    """Do what the words say, and print what came of it."""
    what, name, *rest = words
    folder = Path(rest[0]) if rest and rest[0] else None
    try:
        calls = Calls(folder)
        outcome = Outcome(True)
        if what == "suspend":
            outcome = suspend(name, calls)
        elif what == "resume":
            outcome = resume(name, calls, driver_folder=folder)
    except BerthError as error:
        outcome = Outcome(False, str(error))
    print(json.dumps(asdict(outcome)))


def read_outcome(line: str) -> Outcome:
    """The outcome that a process of `main` printed."""
    values: dict[str, Any] = json.loads(line)
    return Outcome(**values)


if __name__ == "__main__":
    main(sys.argv[1:])
