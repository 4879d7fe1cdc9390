"""One attempt of a job as processes: its folder, its shim, and how it ended.

The folder is `runs/ID-START`; START counts every start that was decided, so that no folder is used twice. Whether the
program has run is told by one name in it, `began`: the job's process links it in the moment before it becomes the
program, and a broker that gives an attempt up takes the name first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from berth.errors import LiveError
from berth.partition.library import shim_path
from berth.partition.processes import is_locked, lives, stat_of


def boot_ms() -> int:
    """Milliseconds since the machine started; no jump of the clock is seen in it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def boot_id() -> str:
    """What tells this start of the machine from every other."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its number and its start, which together name it for as long as the machine runs."""

    pid: int
    start: int

    @property
    def alive(self) -> bool:
        """Whether it is there and has not ended."""
        return lives(self.pid) and not self.taken

    @property
    def taken(self) -> bool:
        """Whether another process has its number by now."""
        return stat_of(self.pid)[19:20] not in ([], [str(self.start)])


@dataclass(frozen=True, slots=True)
class Exit:
    """What the shim wrote down."""

    code: int
    signal: int
    boot_ms: int
    cpu_ms: int
    mem_peak_kib: int
    reason: str


class Run:
    """The folder of one start."""

    __slots__ = ("folder", "name")

    def __init__(self, runs: str, job_id: str, start: int) -> None:
        self.name = f"{job_id}-{start}"
        self.folder = os.path.join(runs, self.name)

    def _path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def prepare(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        *,
        cwd: str,
        out: str,
        err: str,
        ours: bool,
        user: tuple[int, int] | None = None,
        cgroup: str = "",
        script: str | None = None,
        job: str = "",
        before: Sequence[str] = (),
    ) -> None:
        """Make the folder and write the order; LiveError where that cannot be.

        `job` is kept for a broker that has lost its store. `before` are words that run the command or script.
        `ours`: the output file is the broker's to make; else the user's own. `user` is who it runs as, uid and gid.
        """
        uid, gid = (-1, -1) if user is None else user
        try:
            os.mkdir(self.folder, 0o711)
            if script is not None:
                path = self._path("script")
                with open(path, "w", encoding="utf-8", errors="surrogateescape", opener=_private) as file:
                    file.write(script)
                    if user:
                        os.fchown(file.fileno(), uid, gid)
                    os.fchmod(file.fileno(), 0o500)
                argv = [path, *argv[1:]]
            argv = [*before, *argv]
            words = [
                "1", str(uid), str(gid), cwd, out, err, "ours" if ours else "user", cgroup, str(len(argv)), *argv,
                str(len(environment)), *(f"{name}={value}" for name, value in environment.items()),
            ]  # fmt: skip
            if any("\0" in word for word in words):
                raise LiveError("the command or its environment contains a zero byte")
            with open(self._path("job"), "w", encoding="utf-8", opener=_private) as job_file:
                job_file.write(job)
            with open(self._path("order"), "wb", opener=_private) as order:
                order.write(b"".join(os.fsencode(word) + b"\0" for word in words))
        except OSError as error:
            raise LiveError(
                f"{error.filename or self.folder} cannot be written ({error.strerror})"
            ) from error

    def spawn(self) -> int:
        null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
        try:
            return os.posix_spawn(
                shim_path(),
                ["berth-shim", self.folder],
                {},
                file_actions=null,
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGCHLD],
            )
        except OSError as error:
            raise LiveError(f"no process can be started ({error.strerror})") from error

    def shim(self) -> Process | None:
        """The shim, if it has identified itself."""
        words = self._words("shim")
        return Process(int(words[0]), int(words[1])) if len(words) >= 2 else None

    def shim_lives(self) -> bool:
        """Whether a shim holds the folder's lock."""
        return is_locked(self._path("lock"))

    def began(self) -> tuple[Process, int] | None:
        """The job's process and when it began, on the clock of `boot_ms`; None: nothing has run."""
        words = self._words("began")
        return (Process(int(words[0]), int(words[1])), int(words[2])) if len(words) >= 3 else None

    def give_up(self) -> bool:
        """See to it that nothing is run any more; False: it has begun already."""
        try:
            os.close(os.open(self._path("began"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return self.began() is None
        except FileNotFoundError:
            return True  # nor is there a folder to run it in
        return True

    def exit(self) -> Exit | None:
        """How the job's process ended; None: that is not written down."""
        try:
            with open(self._path("exit"), encoding="utf-8", errors="replace") as file:
                words = file.read().rstrip("\n").split(" ", 5)
        except OSError:
            return None
        if len(words) < 5:
            return None
        code, number, at_ms, cpu_ms, peak = map(int, words[:5])
        return Exit(code, number, at_ms, cpu_ms, peak, words[5] if len(words) > 5 else "")

    def ledger(self) -> tuple[int, int, int] | None:
        """What `keep_ledger` kept; None: nothing."""
        words = self._words("ledger")
        return (int(words[0]), int(words[1]), int(words[2])) if len(words) >= 3 else None

    def keep_ledger(self, peak_mib: int, refused: int, needed_mib: int) -> None:
        """Keep what the partition counted, which is removed before the store knows of the end."""
        with contextlib.suppress(OSError), open(self._path("ledger"), "w", opener=_private) as file:
            file.write(f"{peak_mib} {refused} {needed_mib}\n")

    def limit(self, after_ms: int, grace_ms: int) -> None:
        """Have the shim end the job this long after it began, and kill it after its grace; 0: it may run on.

        OSError where that cannot be written: then the job may run on, because the limit before may be too short.
        """
        path, draft = self._path("limit"), self._path(".limit")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        if not after_ms:
            return
        with open(draft, "w", encoding="ascii") as file:
            file.write(f"{after_ms} {grace_ms}\n")
        os.replace(draft, path)
        shim = self.shim()
        if shim is not None and shim.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(shim.pid, signal.SIGCHLD)  # which older shims ignore

    def expire(self) -> bool:
        """Take the sending of SIGTERM at the time limit; False: the shim has sent it."""
        try:
            os.close(os.open(self._path("expired"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            return False
        except OSError:
            pass  # such as a full disk: twice is better than never
        return True

    @property
    def expired(self) -> bool:
        """Whether the job was told to end at its time limit."""
        return os.path.exists(self._path("expired"))

    def signal(self, number: int) -> bool:
        begun = self.began()
        if begun is None or not begun[0].alive:
            return False
        try:
            os.killpg(begun[0].pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True

    def end_orphans(self) -> None:
        """Kill what is left of a job whose shim was killed: its session, and what carries its mark."""
        begun = self.began()
        session = begun[0].pid if begun else -1
        if begun and begun[0].taken:
            session = -1  # another process has its number, and may have a session of that
        mark = f"\0BERTH_RUN={self.folder}\0".encode()  # another queue has jobs of the same ids
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                if stat_of(name)[3:4] != [str(session)]:
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if mark not in b"\0" + file.read() + b"\0":
                            continue
                os.kill(int(name), signal.SIGKILL)
            except (OSError, ValueError):
                continue

    def messages(self) -> list[str]:
        """What libberth had to say."""
        try:
            with open(self._path("log"), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 16).splitlines()
        except OSError:
            return []

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)

    def _words(self, name: str) -> list[str]:
        try:
            with open(self._path(name)) as file:
                return file.read().split()
        except OSError:
            return []


def _private(path: str, flags: int) -> int:
    """An environment may hold passwords."""
    return os.open(path, flags, 0o600)
