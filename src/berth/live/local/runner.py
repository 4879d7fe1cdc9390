"""Starts the jobs' processes, watches them, and ends them; finds them again after the broker was killed.

What trackers of experiments are told of a job, through its environment: W&B and MLflow.

What the user has set stays: tags are added to theirs, group and notes are left alone. With `BERTH_CONSOLE`, the address
of a console, notes and tags link to the job's page.

What a store that was broken no longer knows, found again in the folders of the runs.

Every start leaves its job in the run's folder (`Run.prepare`), so that a job that started after the last good copy was
made is taken up again instead of being lost. Numbers of jobs are reserved in a file beside the store, so that none is
used twice whatever happens to the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pwd
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from berth.errors import BerthError, LiveError, NoRoomError
from berth.live.local import terminal_relay
from berth.live.local.cards import Card
from berth.live.local.entry import RUNNING, STARTING, TIMEOUT, End, Entry
from berth.live.local.image import contained
from berth.live.local.places import Places
from berth.live.local.request import request_from_dict, substituted, to_dict
from berth.live.local.runs import Process, Run, boot_id
from berth.live.local.store import Statement, of_entry, of_request, of_text
from berth.partition import Limit, create, find, remove, resize
from berth.partition.launch import environment
from berth.partition.library import fake_driver_folder, library_path
from berth.partition.regions import MAKERS, Access, root_folder

POLL_S = (0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25)
"""When to look whether a job has begun, again and again."""
MARK = "BERTH_JOB_ID"


class Runner:
    """The processes of all attempts that were started."""

    def __init__(
        self,
        places: Places,
        cards: tuple[Card, ...],
        *,
        fake: bool,
        texts: Callable[[str], str],
        began: Callable[[Entry, int], None],
        ended: Callable[[Entry, End], None],
        log: Callable[..., None],
        to_ms: Callable[[int], int],
        joined: Callable[[Entry], None],
    ) -> None:
        """`texts` gives environments and scripts; `began` and `ended` hear of attempts; `to_ms` makes milliseconds
        since 1970 of those since the machine started; `joined` is called once the partition of an attempt is there,
        before anything runs in it."""
        self._places = places
        self._cards = cards
        self._fake = fake
        self._texts = texts
        self._began = began
        self._ended = ended
        self._log = log
        self._to_ms = to_ms
        self._joined = joined
        self._watched: dict[str, tuple[Entry, Run, int]] = {}  # job -> its pidfd
        self.reaped: dict[int, int] = {}  # pid -> status, of processes that came to the broker
        self._stopping: dict[str, asyncio.TimerHandle] = {}
        self._limits: dict[str, tuple[int, int, int]] = {}  # job -> what its shim was told of its time limit
        self._unlimited: set[str] = set()  # jobs whose shims could not be told
        self._tag = hashlib.sha256(os.path.abspath(places.folder).encode()).hexdigest()[:6]
        self._boot = boot_id()
        self.cgroups = Cgroups(self._tag)

    # Starting

    def start(self, entry: Entry) -> None:
        """Start an attempt whose intent is written; what goes wrong is told as an end that never ran."""
        run = Run(self._places.runs, entry.id, entry.start)
        try:
            self._prepare(entry, run)
            self.keep_limit(entry)
            pid = run.spawn()
        except (BerthError, OSError) as error:
            run.give_up()
            self._clear(entry, run)
            lacking = isinstance(error, NoRoomError)
            why = error.short if isinstance(error, NoRoomError) else str(error)
            self._ended(entry, End(None, why, never_ran=True, no_room=lacking))
            return
        self._watch(entry, run, pid)

    def keep_limit(self, entry: Entry) -> None:
        """Tell the shim of an attempt its time limit as it is now, so that it holds without a broker. A suspended job
        has none until it runs on."""
        limit_ms, grace_ms = entry.request.time_limit_ms or 0, entry.request.grace_ms
        after_ms = limit_ms + entry.suspended_ms if limit_ms and not entry.suspension else 0
        limit = (entry.start, after_ms, grace_ms)
        if self._limits.get(entry.id) == limit:
            return
        try:
            Run(self._places.runs, entry.id, entry.start).limit(after_ms, grace_ms)
        except OSError as error:  # then it holds while a broker lives, who tries again
            if entry.id not in self._unlimited:
                self._log("limit-not-kept", job=entry.id, why=str(error))
            self._unlimited.add(entry.id)
            return
        self._limits[entry.id] = limit
        self._unlimited.discard(entry.id)

    def give_up(self, entry: Entry) -> bool:
        """See to it that nothing of a start is run any more; False: it has begun already."""
        run = Run(self._places.runs, entry.id, entry.start)
        if not run.give_up():
            return False
        self._clear(entry, run)
        return True

    def watches(self, entry: Entry) -> bool:
        return entry.id in self._watched

    def _prepare(self, entry: Entry, run: Run) -> None:
        request = entry.request
        if not os.path.isdir(request.cwd) and os.geteuid() != 0:
            raise LiveError(f"there is no folder {request.cwd} to run in")
        region = self._partition(entry)
        if entry.slots:
            self._joined(entry)
        environment_text = self._texts(request.env) if request.env else ""
        script = self._texts(request.script) if request.script else None
        base = json.loads(environment_text) if environment_text else {}
        uuids = ",".join(self._cards[at].uuid for at in entry.slots)
        if entry.slots:
            log = os.path.join(run.folder, "log")
            words = environment(base, region=region, log=log, gpu=uuids, fake_gpu=self._fake)  # type: ignore[arg-type]
        else:
            words = dict(base)
            words["CUDA_VISIBLE_DEVICES"] = ""
        if self._fake:
            words["BERTH_FAKE_CARD"] = self._places.fake_card
        words |= tracker_variables(
            base,
            job_id=entry.id,
            number=entry.number,
            name=request.name or os.path.basename(request.argv[0]),
            user=entry.user,
            attempt=entry.attempt,
        )
        words |= {MARK: entry.id, "BERTH_RUN": run.folder, "BERTH_ATTEMPT": str(entry.attempt)}
        if entry.index is not None:
            words |= {"BERTH_ARRAY_ID": entry.number, "BERTH_ARRAY_INDEX": str(entry.index)}
        words |= {f"BERTH_PARAM_{name}": value for name, value in entry.params}
        argv = substituted(request.argv, entry.params)
        out, ours = self.output_of(entry)
        err = self._named(request.error, entry) if request.error else ""
        user = None
        if os.geteuid() == 0 and entry.uid != 0:
            user = (entry.uid, _gid_of(entry.uid))
        before = (
            [sys.executable, "-I", "-S", terminal_relay.__file__, request.terminal]
            if request.terminal
            else []
        )
        if request.image:
            image, words = self._contained(entry, run, words, base.get("PATH"), region)
            before += image
        run.prepare(
            argv,
            words,
            cwd=request.cwd,
            out=out,
            err=err,
            ours=ours,
            user=user,
            cgroup=self.cgroups.make(run.name, request.host_mem_mib),
            script=script,
            job=job_text(entry, filter(None, (environment_text, script))),
            before=before,
        )
        if entry.slots:
            path = os.path.join(self._places.allotments, entry.id)
            with open(path, "w", encoding="ascii") as file:
                file.write(f"gpus={','.join(map(str, entry.slots))}\n")

    def _contained(
        self, entry: Entry, run: Run, words: dict[str, str], path: str | None, region: Any
    ) -> tuple[list[str], dict[str, str]]:
        request, inside, mounts = entry.request, {}, [run.folder]
        if entry.slots:
            inside["LD_PRELOAD"] = str(library_path())
            if self._fake:
                inside["LD_LIBRARY_PATH"] = str(fake_driver_folder())
                mounts.append(self._places.fake_card)
            mounts += [str(region), *inside.values()]
        return contained(
            request.image,
            words,
            path=path,
            cwd=request.cwd,
            uid=entry.uid,
            mounts=mounts,
            devices=() if self._fake else [self._cards[at].uuid for at in entry.slots],
            inside=inside,
            host_mem_mib=request.host_mem_mib,
            terminal=bool(request.terminal),
        )

    def _partition(self, entry: Entry) -> Any:
        """Make the partition that the job runs in; its folder."""
        folder = None
        access = MAKERS
        if os.geteuid() == 0 and entry.uid != 0:
            access = Access(uid=entry.uid)  # not its group, whose others may not join
        for at in entry.slots:
            card = self._cards[at]
            limit = Limit(min(entry.share[1] or card.mem_mib, card.mem_mib), *_time_of(entry))
            folder = create(self.partition_of(entry), card.gpu, limit, access=access).folder
        return folder

    def run_name(self, entry: Entry) -> str:
        return Run(self._places.runs, entry.id, entry.start).name

    def signal(self, entry: Entry, number: int) -> None:
        Run(self._places.runs, entry.id, entry.start).signal(number)

    def partition_of(self, entry: Entry) -> str:
        return f"job-{entry.id}-{entry.start}-{self._tag}"

    def throttle(self, entry: Entry, core_pct: int | None) -> None:
        """Cut a job to a share of the GPU's time; None: give it its own again."""
        core, burst = _time_of(entry) if core_pct is None else (core_pct, False)
        try:
            resize(self.partition_of(entry), core_pct=core, burst=burst)
        except BerthError as error:
            self._log("not-throttled", job=entry.id, why=str(error))

    def output_of(self, entry: Entry) -> tuple[str, bool]:
        """Where an attempt writes to, and whether that file is the queue's own."""
        if entry.request.output:
            return self._named(entry.request.output, entry), False
        return os.path.join(self._places.output, f"{entry.id}.{entry.attempt}.out"), True

    @staticmethod
    def _named(path: str, entry: Entry) -> str:
        named = path.replace("%j", entry.id).replace("%a", str(entry.index or 0)).replace("%A", entry.number)
        return os.path.join(entry.request.cwd, named)

    # Watching

    def _watch(self, entry: Entry, run: Run, pid: int) -> None:
        """Hear of the end of a shim, and look out for the beginning of its job."""
        loop = asyncio.get_running_loop()
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            loop.call_soon(self._shim_gone, entry, run)
            return
        try:
            loop.add_reader(fd, self._unwatch, entry, run, self._shim_gone)
        except OSError:
            os.close(fd)
            raise
        self._watched[entry.id] = (entry, run, fd)
        if entry.state == STARTING:
            loop.call_later(POLL_S[0], self._look, entry, run, 1)
        elif entry.stop:
            self.stop(entry)

    def _look(self, entry: Entry, run: Run, times: int) -> None:
        if entry.state != STARTING or entry.id not in self._watched:
            return
        begun = run.began()
        if begun is not None:
            self._began(entry, self._to_ms(begun[1]))
            if entry.stop:
                self.stop(entry)
            return
        wait_s = POLL_S[min(times, len(POLL_S) - 1)]
        asyncio.get_running_loop().call_later(wait_s, self._look, entry, run, times + 1)

    def _unwatch(self, entry: Entry, run: Run, then: Callable[[Entry, Run], None]) -> None:
        watched = self._watched.pop(entry.id, None)
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched[2])
            os.close(watched[2])
        then(entry, run)

    def _shim_gone(self, entry: Entry, run: Run) -> None:
        """The shim has ended: it has written down how its job did, or was killed."""
        if (outcome := run.exit()) is not None:
            begun = run.began()
            if entry.state == STARTING and begun is not None:
                self._began(entry, self._to_ms(begun[1]))
            self._over(
                entry,
                run,
                outcome.code,
                outcome.reason,
                outcome.boot_ms,
                outcome.cpu_ms,
                outcome.mem_peak_kib >> 10,
            )
            return
        begun = run.began()
        if begun is None and run.give_up():
            self._clear(entry, run)
            self._ended(entry, End(None, self._why_ended(run), never_ran=True))
            return
        begun = run.began()
        assert begun is not None
        if entry.state == STARTING:
            self._began(entry, self._to_ms(begun[1]))
        self._log("shim-killed", job=entry.id, alive=begun[0].alive)
        self._watch_orphan(entry, run, begun[0])

    def _why_ended(self, run: Run) -> str:
        """Why a shim ended before its job began, by its exit; empty where it or the broker was killed."""
        self.reap()
        shim = run.shim()
        status = None if shim is None else self.reaped.pop(shim.pid, None)
        if status is None or not os.WIFEXITED(status) or os.WEXITSTATUS(status) in (0, 7):
            return ""
        return f"its shim ended with {os.WEXITSTATUS(status)}; see native/shim.c"

    def _watch_orphan(self, entry: Entry, run: Run, process: Process) -> None:
        """The job runs on without its shim; its end is seen, and its exit known if it came to this broker."""
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            self._orphan_gone(entry, run)
            return
        if not process.alive:
            os.close(fd)
            self._orphan_gone(entry, run)
            return
        self._watched[entry.id] = (entry, run, fd)
        asyncio.get_running_loop().add_reader(fd, self._unwatch, entry, run, self._orphan_gone)
        if entry.stop:
            self.stop(entry)

    def _orphan_gone(self, entry: Entry, run: Run) -> None:
        self.reap()
        begun = run.began()
        status = self.reaped.pop(begun[0].pid, None) if begun else None
        run.end_orphans()
        code = None if status is None else os.waitstatus_to_exitcode(status)
        code = 128 - code if code is not None and code < 0 else code
        reason = "" if code is not None else "its shim was killed, so its exit status is unknown"
        self._over(entry, run, code, reason, None, None, None)

    def reap(self) -> None:
        """Take the exits of processes that came to the broker, as of jobs whose shim was killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self.reaped[pid] = status
            if len(self.reaped) > 4096:
                del self.reaped[next(iter(self.reaped))]

    def _over(
        self,
        entry: Entry,
        run: Run,
        code: int | None,
        reason: str,
        at_boot_ms: int | None,
        cpu_ms: int | None,
        mem_peak_mib: int | None,
    ) -> None:
        peak, refused, needed = self._ledger(entry, run)
        if not reason and code and (lines := [line for line in run.messages() if line.startswith("no GPU")]):
            reason = lines[-1]
        self._clear(entry, run)
        end_ms = None if at_boot_ms is None else self._to_ms(at_boot_ms)
        self._ended(
            entry,
            End(code, reason, end_ms, peak, refused, needed, cpu_ms, mem_peak_mib, expired=run.expired),
        )

    def _ledger(self, entry: Entry, run: Run) -> tuple[int | None, int, int]:
        """Peak of GPU memory, refused calls, and what would have been enough, MiB, of an attempt's partition."""
        if not entry.slots:
            return None, 0, 0
        if (kept := run.ledger()) is not None:
            return kept  # a broker before this one may have removed the partition
        try:
            parts = find(self.partition_of(entry))
        except BerthError:
            return None, 0, 0
        needed = 0
        for part in parts:
            for refusal in part.refusals:
                held = refusal.limit_bytes - min(refusal.left_bytes, refusal.limit_bytes)
                needed = max(needed, -(-(held + refusal.asked_bytes) >> 20))
        peak = max((-(-part.peak_bytes >> 20) for part in parts), default=0)
        refused = sum(part.refused for part in parts)
        run.keep_ledger(peak, refused, needed)
        return peak, refused, needed

    def _clear(self, entry: Entry, run: Run) -> None:
        """Give back what an attempt had beside its output."""
        timer = self._stopping.pop(entry.id, None)
        if timer is not None:
            timer.cancel()
        self._limits.pop(entry.id, None)
        self._unlimited.discard(entry.id)
        self.cgroups.end(run.name)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(self._places.allotments, entry.id))
        if entry.slots:
            with contextlib.suppress(BerthError):
                remove(self.partition_of(entry), force=True)

    def forget(self, entry: Entry, start: int) -> None:
        Run(self._places.runs, entry.id, start).remove()

    # Ending

    def stop(self, entry: Entry) -> None:
        """SIGTERM to the job's process group, and SIGKILL to all of it after its grace."""
        run = Run(self._places.runs, entry.id, entry.start)
        if entry.state == STARTING and run.began() is None and run.give_up():
            return  # its shim ends, which is seen
        if entry.stop != TIMEOUT or run.expire():
            run.signal(signal.SIGTERM)
        run.signal(signal.SIGCONT)
        if entry.id not in self._stopping:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(entry.request.grace_ms / 1000, self._kill, entry, run)
            self._stopping[entry.id] = timer

    def _kill(self, entry: Entry, run: Run) -> None:
        if entry.id not in self._watched:
            return
        self._log("killed", job=entry.id, why="it has not ended within its grace after SIGTERM")
        self.cgroups.kill(run.name)
        if not run.signal(signal.SIGKILL):
            run.end_orphans()

    def run_of(self, pid: int) -> str:
        """The run of this queue that a process belongs to; empty where it belongs to none."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                words = file.read()
        except OSError:
            return ""
        found = words.partition(b"BERTH_RUN=")[2].partition(b"\0")[0].decode(errors="replace")
        return next((run.name for _, run, _ in list(self._watched.values()) if run.folder == found), "")

    # After a restart

    def adopt(self, entry: Entry, tries: int = 0) -> None:
        """Find out what has become of an attempt that a broker before this one started."""
        run = Run(self._places.runs, entry.id, entry.start)
        if run.exit() is not None and not run.shim_lives():
            self._shim_gone(entry, run)
            return
        if entry.boot != self._boot:
            self._clear(entry, run)
            self._ended(entry, End(None, lost=True))
            return
        if run.shim_lives():
            shim = run.shim()
            if shim is None:
                if tries < 500:
                    asyncio.get_running_loop().call_later(0.01, self.adopt, entry, tries + 1)
                    return
                self._shim_gone(entry, run)
                return
            self._watch(entry, run, shim.pid)
            if entry.slots:
                self.throttle(entry, None)  # a broker before this one may have throttled it
            if (
                not run.shim_lives() and entry.id in self._watched
            ):  # another process may have its number by now
                self._unwatch(entry, run, self._shim_gone)
            return
        self._shim_gone(entry, run)

    def sweep(self, live: dict[str, Entry]) -> None:
        """Take away run folders and partitions of attempts that are no longer waited for."""
        kept = {f"{entry.id}-{entry.start}" for entry in live.values() if entry.state in (STARTING, RUNNING)}
        for name in os.listdir(self._places.runs):
            run = Run(self._places.runs, *_split(name))
            if run.shim_lives():
                kept.add(name)
            elif name not in kept:
                run.remove()
        self.cgroups.sweep(kept)
        with contextlib.suppress(OSError):
            for name in os.listdir(root_folder()):
                if self.is_ours(name) and self._run_of_partition(name) not in kept:
                    self.remove_left(name)

    def is_ours(self, partition: str) -> bool:
        """Whether this queue made a partition of this name for a job."""
        return partition.startswith("job-") and partition.endswith(f"-{self._tag}")

    def remove_left(self, partition: str) -> None:
        """Remove a partition of this queue whose job has ended; one whose shim lives stays."""
        if Run(self._places.runs, *_split(self._run_of_partition(partition))).shim_lives():
            return
        try:
            remove(partition, force=True)
        except BerthError as error:
            self._log("partition-left", name=partition, why=str(error))
            return
        self._log("partition-removed", name=partition)

    def _run_of_partition(self, partition: str) -> str:
        return partition[len("job-") : -len(self._tag) - 1]


def _split(name: str) -> tuple[str, int]:
    job_id, _, start = name.rpartition("-")
    return job_id, int(start) if start.isdigit() else 0


def _gid_of(uid: int) -> int:
    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid


def _time_of(entry: Entry) -> tuple[int, bool]:
    """A job's share of the GPU's time in per cent, and whether it may use what others leave."""
    core = 0 if entry.best_effort else entry.request.core_pct
    return core, entry.request.burst and bool(core)


BROKERS = "berth-broker"
"""The group of the broker alone that systemd makes below the unit's (`DelegateSubgroup=`): the runs' are beside it."""


class Cgroups:
    """The cgroups below the broker's own; none where they are not delegated to it."""

    def __init__(self, tag: str, root: str | None = None) -> None:
        """`root` is this process's group in the hierarchy of version 2; found by itself where it is None."""
        self.folder = ""
        self.limits_memory = False
        """Whether the memory of a run can be limited."""
        own = _own_group() if root is None else root
        if not own:
            return
        if os.path.basename(own) == BROKERS:
            own = os.path.dirname(own)
            _enable_memory(own)  # which the kernel refuses where processes are in that group itself
        folder = os.path.join(own, f"berth-{tag}")
        try:
            os.makedirs(folder, exist_ok=True)
            _enable_memory(folder)
            probe = os.path.join(folder, "probe")
            os.mkdir(probe)
            allowed = os.access(os.path.join(probe, "cgroup.procs"), os.W_OK)
            allowed = allowed and os.path.exists(os.path.join(probe, "cgroup.kill"))
            limits = os.access(os.path.join(probe, "memory.max"), os.W_OK)
            os.rmdir(probe)
        except OSError:
            return
        if allowed:
            self.folder, self.limits_memory = folder, limits

    def make(self, name: str, mem_mib: int) -> str:
        """A group for one run, with at most this much memory (0: any); the file that a process enters it by, or ''."""
        if not self.folder:
            return ""
        group = os.path.join(self.folder, name)
        try:
            os.mkdir(group)
        except OSError:
            return ""
        if mem_mib:
            with contextlib.suppress(OSError), open(os.path.join(group, "memory.max"), "w") as file:
                file.write(str(mem_mib << 20))
        return os.path.join(group, "cgroup.procs")

    def left_mib(self, name: str) -> int | None:
        """Memory that a run may still take of its own limit; None: it has none that is enforced."""
        try:
            group = os.path.join(self.folder, name)
            with (
                open(os.path.join(group, "memory.max")) as most,
                open(os.path.join(group, "memory.current")) as now,
            ):
                return max(0, int(most.read()) - int(now.read())) >> 20
        except (OSError, ValueError):  # it has no group, or `max`
            return None

    def kill(self, name: str) -> None:
        if self.folder:
            with (
                contextlib.suppress(OSError),
                open(os.path.join(self.folder, name, "cgroup.kill"), "w") as file,
            ):
                file.write("1")

    def end(self, name: str) -> None:
        """Kill what is left in a run's group, and take it away."""
        if self.folder:
            self.kill(name)
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(self.folder, name))

    def sweep(self, kept: Set[str]) -> None:
        if self.folder:
            for entry in os.scandir(self.folder):
                if entry.is_dir() and entry.name not in kept:
                    self.end(entry.name)

    def close(self) -> None:
        """Take away the folder of all groups, if no run has one."""
        if self.folder:
            with contextlib.suppress(OSError):
                os.rmdir(self.folder)


def _enable_memory(group: str) -> None:
    with contextlib.suppress(OSError), open(os.path.join(group, "cgroup.subtree_control"), "w") as file:
        file.write("+memory")


def _own_group() -> str:
    """The folder of this process's group of version 2; empty where there is none."""
    try:
        with open("/proc/self/cgroup") as file:
            own = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open("/proc/self/mounts") as file:
            mount = next(line.split()[1] for line in file if line.split()[2] == "cgroup2")
    except (OSError, StopIteration):
        return ""
    return os.path.join(mount, own.lstrip("/"))


def tracker_variables(
    base: Mapping[str, str], *, job_id: str, number: str, name: str, user: str, attempt: int
) -> dict[str, str]:
    """The variables for a job whose environment is `base`; `number` is shared by the tasks of an array."""
    host = os.uname().nodename
    console = base.get("BERTH_CONSOLE", "").rstrip("/")
    page = f"{console}/job/{job_id}" if console else ""
    notes = " ".join(filter(None, [f"berth job {job_id} on {host}, attempt {attempt}", page]))
    tags = [tag for tag in (*base.get("WANDB_TAGS", "").split(","), "berth", f"berth-job-{job_id}") if tag]
    context = {"berth.job": job_id, "berth.name": name, "berth.user": user, "berth.host": host}
    context |= {"berth.attempt": str(attempt), **({"berth.page": page} if page else {})}
    return {
        "WANDB_RUN_GROUP": base.get("WANDB_RUN_GROUP") or f"berth-{host}-{number}",
        "WANDB_NOTES": base.get("WANDB_NOTES") or notes,
        "WANDB_TAGS": ",".join(dict.fromkeys(tags)),
        "MLFLOW_RUN_CONTEXT": json.dumps({**context, **_object(base.get("MLFLOW_RUN_CONTEXT", ""))}),
    }


def _object(text: str) -> dict[str, str]:
    """The tags that the user has set; none if that is no object of JSON, which MLflow could not read either."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


BLOCK = 1000


def job_text(entry: Entry, texts: Iterable[str]) -> str:
    """All that is needed to go on with a job without the store: `texts` are its environment and script."""
    saved = {"entry": entry.to_dict(), "request": to_dict(entry.request), "texts": list(texts)}
    return json.dumps(saved, separators=(",", ":"))


def started_since(
    runs: str, live: Mapping[str, Entry], next_key: Callable[[], int], boot: str
) -> tuple[list[Entry], list[Statement]]:
    """The jobs of starts that the store does not know, and the rows that tell it of them.

    Those among `live` are changed in place; what becomes of each start is to be found out (`Runner.adopt`).
    """
    latest: dict[str, int] = {}
    for name in os.listdir(runs):
        job_id, _, count = name.rpartition("-")
        if count.isdigit():
            latest[job_id] = max(latest.get(job_id, 0), int(count))
    found: list[Entry] = []
    rows: list[Statement] = []
    for job_id, start in latest.items():
        known = live.get(job_id)
        if known is not None and start <= known.start:
            continue
        key = next_key()
        made = _made(os.path.join(runs, f"{job_id}-{start}", "job"), key)
        if made is not None:
            entry, texts = made
            rows += [of_request(key, entry.request), *map(of_text, texts), of_entry(entry)]
            found.append(entry)
        elif known is not None:
            known.start, known.state, known.boot = start, STARTING, boot
            known.over, known.over_as = None, ""
    return found, rows


def _made(path: str, key: int) -> tuple[Entry, list[str]] | None:
    """The job of a run's folder, as it was started, and its texts; None where the file is not there or is not whole."""
    try:
        with open(path, encoding="utf-8") as file:
            saved: dict[str, Any] = json.load(file)
        request = request_from_dict(saved["request"])
        entry = Entry.from_dict({**saved["entry"], "request_key": key, "state": STARTING}, request)
        of_entry(entry)
        return entry, [str(text) for text in saved["texts"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Numbers:
    """The file that says which numbers of jobs may have been given out."""

    def __init__(self, places: Places) -> None:
        self._path = places.numbers
        self._outputs = places.output
        self._reserved = self._read()

    def first_free(self) -> int:
        """A number above all that were ever given out, as far as the files tell."""
        of_outputs = (name.partition(".")[0].partition("_")[0] for name in os.listdir(self._outputs))
        return max(self._reserved, 1 + max((int(each) for each in of_outputs if each.isdigit()), default=0))

    def reserve(self, number: int) -> None:
        """Note durably that numbers up to this one are given out, ahead of it so that it is seldom done; OSError where
        the file cannot be written."""
        if number < self._reserved:
            return
        reserved = number + BLOCK
        draft = f"{self._path}.draft"
        with open(draft, "w", encoding="ascii") as file:
            file.write(f"{reserved}\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, self._path)
        self._reserved = reserved

    def _read(self) -> int:
        try:
            with open(self._path, encoding="ascii") as file:
                return int(file.read())
        except (OSError, ValueError):
            return 1
