"""Starts the jobs' processes, watches them, and ends them; finds them again after the broker was killed.

`tracker_variables` tells trackers of experiments (W&B and MLflow) of a job, through its environment. What the user has
set stays: tags are added to theirs, group and notes are left alone. With `BERTH_CONSOLE`, the address of a console,
notes and tags link to the job's page.
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
from collections.abc import Callable, Mapping
from typing import Any

from berth.errors import BerthError, LiveError, NoRoomError
from berth.live.local import terminal_relay
from berth.live.local.cards import Card
from berth.live.local.cgroups import Cgroups
from berth.live.local.entry import RUNNING, STARTING, TIMEOUT, End, Entry
from berth.live.local.image import contained
from berth.live.local.places import Places
from berth.live.local.recovery import job_text
from berth.live.local.request import substituted
from berth.live.local.runs import Process, Run, boot_id
from berth.partition import Limit, create, find, remove, resize, use_of
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
            use = use_of(find(self.partition_of(entry)))
        except BerthError:
            return None, 0, 0
        run.keep_ledger(*use)
        return use

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
                remove(self.partition_of(entry), force=True, unfinished=True)

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
            remove(partition, force=True, unfinished=True)
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
