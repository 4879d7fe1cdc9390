"""Questions wait for a processor and are answered one after the other, fairly between their users."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from berth.console.what_if.question import Question
from berth.console.what_if.store import Entry, Place, State, Store
from berth.console.what_if.worker import ANSWER, LOG, too_little_memory
from berth.errors import LiveError

_log = logging.getLogger(__name__)
LOOK_S = 0.2
MOST_ATTEMPTS = 3
"""Starts of one question, if the console ends each time while it is answered."""


class Queue:
    """Starts a worker for each question whose turn it is, and sees to its end; safe to call from any thread."""

    def __init__(
        self,
        folder: Path,
        start: Start,
        processes: int,
        mem_mib: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._start = start
        self._processes = processes
        self._mem_mib = mem_mib
        self._clock = clock
        self._lock = threading.RLock()
        self._running: dict[str, Child] = {}
        self._news = threading.Condition(self._lock)
        self._ends = False
        self._thread: threading.Thread | None = None
        self._owned = _own(folder)
        self._store = Store(folder)
        if self._owned is not None:
            self._begin_again()

    def begin(self) -> None:
        """Answer questions in a thread, until `end`."""
        if self._owned is not None and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="what-if", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Stop what runs: a console that begins in this folder starts it again."""
        with self._lock:
            self._ends = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for child in self._running.values():
            child.stop()
        self._running.clear()
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None

    def all(self) -> list[Entry]:
        """Every question, the latest first."""
        with self._lock:
            return self._store.all()

    def get(self, question_id: str) -> Entry | None:
        """The question of this id, or None."""
        with self._lock:
            return self._store.get(question_id)

    def place_of(self, question_id: str) -> Path:
        """The folder of a question."""
        return self._store.place_of(question_id)

    def turns(self) -> dict[str, int]:
        """Each waiting question, and how many are answered before it if no other is asked."""
        with self._lock:
            return {entry.id: at for at, entry in enumerate(self._turns())}

    def ask(self, user: str, question: Question) -> Entry:
        """Keep a question and answer it when it is its turn. Raises BerthError."""
        with self._lock:
            self._check_owned()
            entry = self._store.add(user, question, self._clock())
            self._news.notify_all()
            return entry

    def stop(self, question_id: str) -> None:
        """End a question that waits or is being answered; nothing where it is over."""
        with self._lock:
            self._check_owned()
            entry = self._store.get(question_id)
            if entry is not None and not entry.state.place.over:
                self._over(question_id, Place.STOPPED)

    def again(self, question_id: str) -> None:
        """Ask a question once more that failed or was stopped."""
        with self._lock:
            self._check_owned()
            entry = self._store.get(question_id)
            if entry is not None and entry.state.place in (Place.FAILED, Place.STOPPED):
                self._store.change(question_id, State())
                self._news.notify_all()

    def remove(self, question_id: str) -> None:
        """Forget a question, and stop it first."""
        with self._lock:
            self._check_owned()
            self.stop(question_id)
            self._store.remove(question_id)

    def look(self) -> bool:
        """See what became of the workers and start those whose turn it is; whether there is more to do."""
        with self._lock:
            for question_id, child in list(self._running.items()):
                with self._failing(question_id):
                    self._look_at(question_id, child)
            for entry in self._turns()[: max(0, self._processes - len(self._running))]:
                with self._failing(entry.id):
                    self._begin(entry)
            self._store.write_again()
            return bool(self._running or self._turns())

    def _look_at(self, question_id: str, child: Child) -> None:
        status = child.status()  # before its last words are read
        failed = ""
        for message in child.news():
            self._store.advanced(question_id, float(message.get("done", 0.0)))
            failed = str(message.get("failed", failed))
        if failed:
            self._over(question_id, Place.FAILED, failed)
        elif status is None:
            if child.rss_mib() > self._mem_mib:
                self._over(question_id, Place.FAILED, too_little_memory(self._mem_mib))
        elif status == 0 and (self.place_of(question_id) / ANSWER).exists():
            self._over(question_id, Place.DONE)
        elif status < 0:
            self._over(
                question_id,
                Place.FAILED,
                f"the replay was ended by signal {-status}"
                + (", as the kernel does when memory runs out" if status == -9 else "")
                + "; ask again, for a shorter period if it happens once more",
            )
        else:
            log = self.place_of(question_id) / LOG
            self._over(
                question_id,
                Place.FAILED,
                f"the replay ended with status {status}; the operator finds why in {log}",
            )

    def _begin(self, entry: Entry) -> None:
        state = State(Place.RUNNING, "", self._clock(), None, entry.state.attempts + 1)
        self._store.change(entry.id, state)
        self._running[entry.id] = self._start(self.place_of(entry.id), self._mem_mib)

    @contextmanager
    def _failing(self, question_id: str) -> Iterator[None]:
        """End a question whose worker cannot be started or followed, so that the others are answered."""
        try:
            yield
        except OSError as error:
            self._over(question_id, Place.FAILED, f"the replay cannot be run: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001  one question must not stop the others
            _log.exception("the worker of question %s", question_id)
            self._over(
                question_id,
                Place.FAILED,
                f"the replay cannot be followed ({error!r}); ask again, or see the console's log",
            )

    def _over(self, question_id: str, place: Place, detail: str = "") -> None:
        if (child := self._running.pop(question_id, None)) is not None:
            with suppress(OSError):  # it cannot be signalled, or has gone
                child.stop()
        entry = self._store.get(question_id)
        assert entry is not None
        self._store.change(
            question_id, replace(entry.state, place=place, detail=detail, ended_s=self._clock())
        )

    def _turns(self) -> list[Entry]:
        """Those that wait, the next first: in turn between users, each user's oldest first."""
        entries = self._store.all()[::-1]
        served: dict[str, int] = dict.fromkeys({entry.user for entry in entries}, 0)
        last_s = dict.fromkeys(served, 0.0)
        for entry in entries:
            served[entry.user] += entry.id in self._running
            last_s[entry.user] = max(last_s[entry.user], entry.state.started_s or 0.0)
        places = []
        for entry in entries:
            if entry.state.place is Place.WAITING:
                places.append(((served[entry.user], last_s[entry.user], entry.asked_s), entry))
                served[entry.user] += 1
        return [entry for _, entry in sorted(places, key=lambda each: each[0])]

    def _begin_again(self) -> None:
        """What was being answered when the console ended waits once more."""
        for entry in self._store.all():
            if entry.state.place is not Place.RUNNING:
                continue
            if (self.place_of(entry.id) / ANSWER).exists():
                state = replace(entry.state, place=Place.DONE, ended_s=self._clock())
            elif entry.state.attempts >= MOST_ATTEMPTS:
                detail = (
                    f"interrupted: the console ended {MOST_ATTEMPTS} times while this was answered; ask again"
                )
                state = replace(entry.state, place=Place.FAILED, detail=detail, ended_s=self._clock())
            else:
                state = replace(entry.state, place=Place.WAITING)
            self._store.change(entry.id, state)

    def _check_owned(self) -> None:
        if self._owned is None:
            raise LiveError(
                f"another console answers the questions in {self._folder}, or the folder cannot be written"
            )

    def _run(self) -> None:
        while True:
            busy = self.look()
            with self._lock:
                if self._ends:
                    return
                self._news.wait(LOOK_S if busy else None)
                if self._ends:
                    return


def _own(folder: Path) -> int | None:
    """The lock of a folder, or None if another console holds it or the folder is not writable."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        return None
    return lock


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
