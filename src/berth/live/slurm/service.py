"""`berth slurm run`: query Slurm every few seconds, let the driver decide, and place jobs or say where they would be.

Apart from what start intervals have learned, it keeps nothing that it could not read from Slurm again. After a restart
it continues from what Slurm has.

`Claim` is the right to place: a note in the comments of the nodes, which every berth of the cluster sees. A file's lock
holds on one machine and for one state folder. Slurm has no lock to lend, but it keeps a comment for each node, which
berth reads with the nodes anyway:

    disk replaced in May [berth places: head1:/var/lib/berth/slurm until 1795374000]

The berth that wrote its note last has the right, until the time in the note (seconds since 1970); what the site has
written stays. A berth reads the comments again a moment after it has written them, and with each query of the nodes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO
from urllib.parse import quote

from berth.errors import BerthError, LiveError
from berth.experiments.recorded_run import keep_machine, kept_policies
from berth.files import write_whole
from berth.history.values.applications import read_rules
from berth.knowledge import Knowledge
from berth.live.driver.defaults import DEFAULT_KNOWLEDGE, DEFAULT_POLICY
from berth.live.driver.driver import Driver
from berth.live.driver.driver import Settings as DriverSettings
from berth.live.driver.site import Gpu
from berth.live.slurm.agent import BY_BERTH, STATUS, Reports, order, orders, reports, revoke
from berth.live.slurm.attempts import Attempts, Journal
from berth.live.slurm.candidates import Priorities, Reader, Scope
from berth.live.slurm.controller import Controller, View, forgotten_after_s
from berth.live.slurm.decisions import read_decisions
from berth.live.slurm.jobs import SlurmJob
from berth.live.slurm.measured_use import COMPUTE_PCT, MeasuredUse, names
from berth.live.slurm.nodes import SlurmNode, SlurmPartition
from berth.live.slurm.requests import Cards, asks_for_compute
from berth.live.slurm.site import Apply, SlurmSite
from berth.model import WHOLE_GPU

log = logging.getLogger(__name__)

DECISIONS = "decisions.jsonl"
RESULTS = "results"
STARTS = "starts.json"
"""What start intervals have learned."""
SCOPE = "scope"
"""Whose jobs berth places: a line for each partition and QoS, for the watchdog; it is not there while berth advises."""
ALIVE_S = 5.0
"""How often berth shows, between queries, that it lives."""
NODES_EVERY = 4
"""Nodes and partitions are queried every fourth time."""
TICK_S = 0.05
"""Time between two checks for what an Epilog has left, which ask nothing of Slurm."""
BORROWED = 3
"""How many queries may come early because of that, and be made up for by waiting longer."""
SHARES_EVERY_S = 300
"""PriorityCalcPeriod's default: Slurm does not compute them more often."""
FORECAST_S = 0.3
"""The time that start intervals may take in each step."""
LEAST_CLAIM_S = 60.0
CLAIM_INTERVALS = 40
"""How many intervals the right to place lasts: the nodes are read, and it is renewed, at least every fourteen."""
MOST_REASONS = 10_000
"""Waiting jobs of which `berth slurm why` knows the reason: the first of the queue."""
MOST_MEASURED = 1000
"""Kinds of jobs of which the status tells what was measured: those that ended last."""
MOST_WANTED = 100
"""Of how many waiting jobs the nodes' agents get the needs."""
LONGEST_WAIT_S = 600
"""How long a job is left alone at most after Slurm did not start it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How berth works with Slurm."""

    state: Path
    """Where it writes what it decided."""
    places: bool = False
    """Whether it places jobs, or only says what it would do."""
    partitions: frozenset[str] = frozenset()
    qos: frozenset[str] = frozenset()
    policy: str = DEFAULT_POLICY
    knowledge: str = DEFAULT_KNOWLEDGE
    interval_s: float = 5.0
    """Between two queries, on average."""
    patience_s: float = 30.0
    """How long a placed job may wait until it is taken back: Slurm found a rule against it."""
    retries: int = 2
    """How often a job is queued again that ran out of GPU memory."""
    card_mib: dict[str, int] = field(default_factory=dict)
    """Memory of the GPUs of a type."""
    decide_s: float = 20.0
    compute_pct: int = COMPUTE_PCT
    """What the measured compute of jobs that share a GPU by best effort may add up to."""
    measured_memory: bool = True
    """Whether those jobs get the GPU memory that was measured of their application, if they ask for more."""


class Service:
    """One berth that works with one Slurm."""

    def __init__(
        self,
        settings: Settings,
        controller: Controller,
        *,
        channel: Apply | None = None,
        knowledge: Knowledge | None = None,
        claim: Claim | None = None,
    ) -> None:
        """`claim` is the right to place, which a berth that places has."""
        self.settings = settings
        self._claim = claim
        self._controller = controller
        cards, log = Cards(settings.card_mib), settings.state / DECISIONS
        scope = Scope(settings.places, settings.partitions, settings.qos)
        use = MeasuredUse(settings.compute_pct, memory=settings.measured_memory)
        with contextlib.suppress(LiveError):  # there is no log yet
            use.read(read_decisions(log))
        self.site = SlurmSite(
            Reader(scope, cards, read_rules(), settings.retries),
            cards,
            Attempts(controller, results=settings.state / RESULTS, log=log),
            Journal(log, settings.policy),
            channel or controller.apply,
            places=settings.places,
            patience_ms=int(1000 * settings.patience_s),
            use=use,
        )
        self.site.learned_starts = self._kept_starts = self._read_starts()
        self.driver = self._new_driver(knowledge)
        self._priorities = Priorities()
        self._shares_at_ms = 0
        self._cycles = 0
        self._left: set[str] = set()
        """Jobs of which Epilogs had left something before the last query."""
        self._nodes: tuple[SlurmNode, ...] = ()
        self._partitions: tuple[SlurmPartition, ...] = ()
        self.why: dict[str, str] = {}
        """Why waiting jobs were not started, as of the last query."""
        self.decide_s = 0.0

    def _new_driver(self, knowledge: Knowledge | None) -> Driver:
        settings = self.settings
        how = DriverSettings(
            settings.policy,
            settings.knowledge,
            most_start_failures=None,  # a limit of Slurm's may keep a job back for days
            start_pause_ms=int(1000 * settings.patience_s),
            most_start_pause_ms=1000 * LONGEST_WAIT_S,
            no_room_pause_ms=0,
            notes=MOST_REASONS,
        )
        return Driver(self.site, how, knowledge)

    def _read_starts(self) -> str:
        path = self.settings.state / STARTS
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""
        except OSError as error:
            log.warning("start intervals begin anew: %s cannot be read (%s)", path, error.strerror)
            return ""

    def query(self) -> View:
        """What Slurm has now and what has ended: the jobs each time, the nodes now and then."""
        if self._cycles % NODES_EVERY == 0 or (self._claim is not None and self._claim.due):
            self._nodes, self._partitions = self._controller.nodes(), self._controller.partitions()
            if self._claim is not None:
                self._claim.check(self._nodes)
        if time.time() * 1000 - self._shares_at_ms > SHARES_EVERY_S * 1000:
            configuration = self._controller.configuration()
            self.site.again_after_s = forgotten_after_s(configuration)
            self._priorities = Priorities.of(configuration, self._controller.fair_shares(), self._partitions)
            self._shares_at_ms = int(time.time() * 1000)
        self._cycles += 1
        self._left = names(self.settings.state / RESULTS)
        self._controller.unreadable.clear()
        jobs = self._controller.jobs(with_ended=True)
        ended = tuple(job for job in jobs if job.ended)
        live = tuple(job for job in jobs if not job.ended) if ended else jobs
        return View(int(time.time() * 1000), live, self._nodes, self._partitions, ended)

    def step(self) -> None:
        """Query, decide, and place or advise. LiveError if Slurm does not answer: nothing was changed then, nor if
        ClaimLostError says that the right to place has passed on."""
        view = self.query()
        memory = reports(self.settings.state)
        self.site.limits_mib = {raw_id: each.limit_mib for raw_id, each in memory.items()}
        self.site.idle = {raw_id for raw_id, each in memory.items() if each.idle}
        self.site.take(view, self._priorities)
        if self.settings.places:
            self._follow_suspensions(view.jobs, memory)
        began = time.perf_counter()
        limit = began + self.settings.decide_s
        came = self.driver.step(
            view.at_ms,
            out_of_time=lambda: time.perf_counter() > limit,
            for_real=self.settings.places,
        )
        self.decide_s = time.perf_counter() - began
        if not self.settings.places:
            nodes = self.driver.scheduler.cluster.nodes
            for placement in came.placed:
                gpus = [Gpu(nodes[slot.node].name, slot.index) for slot in placement.slots]
                self.site.advise(placement.job.id, gpus, placement.share)
        self.site.cannot_hold(self.driver.misfits)
        try:
            self.site.carry_out()
        finally:
            for job_id in self.site.not_started():
                self.driver.take_back(job_id, view.at_ms)
        end_s = time.perf_counter() + FORECAST_S
        self.driver.forecast(view.at_ms, out_of_time=lambda: time.perf_counter() > end_s)
        self._show(view.at_ms)
        if came.fault is not None:
            raise came.fault

    def _follow_suspensions(self, jobs: Iterable[SlurmJob], memory: Mapping[str, Reports]) -> None:
        """Have the agents free the GPUs of jobs that Slurm itself has suspended, as for a job of another QoS, and let
        them run on when Slurm does."""
        state, stopped = self.settings.state, {job.raw_id for job in jobs if job.state == "SUSPENDED"}
        by = orders(state)
        for raw_id in stopped & memory.keys() - by.keys():
            order(state, raw_id, BY_BERTH)
        for raw_id in by.keys() - stopped:
            if by[raw_id] == BY_BERTH:
                revoke(state, raw_id)

    def _show(self, now_ms: int) -> None:
        """Write what `berth slurm status` and `why` show, and for the watchdog whose jobs are placed."""
        found, placed = self.site.found, self.site.placed()
        waiting = {job_id for job_id, job in found.jobs.items() if job.waits}
        reasons = {job_id: why for job_id, why in self.site.reasons.items() if job_id in waiting}
        self.why = {**reasons, **found.kept_back, **placed}
        values = {
            "at_ms": now_ms,
            "mode": "place" if self.settings.places else "advise",
            "policy": self.settings.policy,
            "card_mib": self.settings.card_mib,
            "waiting": len(found.waiting),
            "kept_back": len(found.kept_back),
            "running": len(found.running),
            "placed": len(placed),
            "unplaced": self.driver.unplaced,
            "decide_s": round(self.decide_s, 4),
            "queries": self._controller.queries,
            "compute_pct": self.settings.compute_pct,
            "measured": [asdict(each) for each in self.site.use.all(MOST_MEASURED)],
            "why": self.why,
            "wanted": self._wanted() if self.settings.places else {},
            "counts": dict(islice(self.site.counts.items(), MOST_REASONS)),
            "starts": {job_id: each for job_id, each in self.driver.starts.items() if job_id in waiting},
            "outside": found.outside[:100],
            "leaked": {str(gpu): count for gpu, count in self.site.leaked.items()},
        }
        self._write_scope()
        write_whole(self.settings.state / STATUS, json.dumps(values))
        if self.site.learned_starts != self._kept_starts:
            self._kept_starts = self.site.learned_starts
            write_whole(self.settings.state / STARTS, self._kept_starts)

    def _wanted(self) -> dict[str, list[tuple[int, int]]]:
        """What jobs need that wait for a part of one GPU, in milli and MiB, by the nodes that could run them."""
        cluster, found = self.driver.scheduler.cluster, dict[str, list[tuple[int, int]]]()
        for waits in islice(self.site.waiting().values(), MOST_WANTED):
            milli, mem_mib = waits.job.share
            if waits.job.gpus == 1 and milli < WHOLE_GPU.milli and waits.gang is None:
                promised = milli if asks_for_compute(self.site.found.jobs[waits.job.id]) else 0
                for row in cluster.fitting_nodes_when_empty(waits.job):
                    found.setdefault(cluster.nodes[row].name, []).append((promised, mem_mib))
        return found

    def _write_scope(self) -> None:
        path = self.settings.state / SCOPE
        if not self.settings.places:
            path.unlink(missing_ok=True)
            return
        lines = [f"partition {name}" for name in sorted(self.settings.partitions)]
        lines += [f"qos {name}" for name in sorted(self.settings.qos)]
        text = "".join(f"{line}\n" for line in lines)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_whole(path, text)

    def run(self, say: Callable[[str], None], *, until: Callable[[], bool] = lambda: False) -> None:
        """Step for ever, no more often than one query an interval on average; what goes wrong is said, once each.
        Raises ClaimLostError if the right to place has passed on."""
        logged, warned, wait_s, paid = "", False, self.settings.interval_s, 0.0
        while not until():
            begun, queries, works = time.monotonic(), self._controller.queries, True
            try:
                self.step()
                wait_s = self.settings.interval_s
                paid = max(paid, begun) + wait_s * max(1, self._controller.queries - queries)
                if logged:
                    say("Slurm answers again")
                logged = ""
                outside = self.site.found.outside
                if outside and not warned:
                    say(
                        f"{len(outside)} jobs are held for berth that this one does not place, job"
                        f" {outside[0]} first; name their partition or QoS, or let the watchdog give them back"
                    )
                warned = bool(outside)
            except ClaimLostError:
                raise
            except BerthError as error:
                if str(error) != logged:
                    logged = str(error)
                    say(logged)
                if not isinstance(
                    error, LiveError
                ):  # a policy or a knowledge failed: begin with what Slurm has
                    self.site.forget_placed()
                    self.driver = self._new_driver(self.driver.knowledge)
                wait_s, works = min(60.0, 2 * wait_s), False
                paid = time.monotonic() + wait_s
            self._wait(paid, until, works)

    def _wait(self, end: float, until: Callable[[], bool], works: bool) -> None:
        """Wait for the next query, which an Epilog may bring forward; those after it come later for that. A berth that
        works shows meanwhile that it lives, so that the watchdog need not know how often it queries."""
        shown, results = time.monotonic(), self.settings.state / RESULTS
        while not until() and (left := end - time.monotonic()) > 0:
            if works and left <= BORROWED * self.settings.interval_s and not names(results) <= self._left:
                return
            time.sleep(min(TICK_S, left))
            if works and time.monotonic() - shown > ALIVE_S:
                shown = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self.settings.state / STATUS)

    def keep_history(self, history: Path) -> None:
        """Keep what the nodes are and which policy decides, so that the history can be replayed."""
        with contextlib.suppress(BerthError):
            changes = kept_policies(history)
            if not changes or changes[-1][1] != self.settings.policy:
                changes.append((int(time.time() * 1000), self.settings.policy))
            keep_machine(history, self.site.nodes_by_partition(), changes)


SETTLE_S = 1.0
"""Between writing the comments and reading them again: another berth that has begun at the same time has written by
then."""
_MARK = re.compile(r" ?\[berth places: (\S+) until (\d+)\]")


class ClaimLostError(LiveError):
    """Another berth has the right to place."""


def lock(state: Path) -> IO[str]:
    """The right to write this folder, until the file is closed. LiveError if another berth of this machine has it, or
    there can be no such folder."""
    try:
        state.mkdir(parents=True, exist_ok=True)
        file = open(state / "lock", "a", encoding="ascii")  # noqa: SIM115
    except OSError as error:
        raise LiveError(
            f"{state} cannot be written ({error.strerror}); name another folder with --state"
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise LiveError(f"another berth runs with the state {state}; stop it first") from error
    return file


def make_private(state: Path) -> None:
    """Let only this user and group read the logs, old and new: Slurm hides the jobs of others, too."""
    os.umask(os.umask(0o077) | 0o027)
    for path in state.glob("*.jsonl*"):
        path.chmod(path.stat().st_mode & ~0o027)


def claimant(node: SlurmNode) -> tuple[str, int] | None:
    """The berth that a node's comment names, and when its right ends, s since 1970; None: it names none."""
    found = _MARK.search(node.comment)
    return None if found is None else (found[1], int(found[2]))


def owner_of(state: Path) -> str:
    """The name of the berth of this machine that has this state folder."""
    return f"{socket.gethostname()}:{quote(str(state.resolve()))}"


class Claim:
    """One berth's right to place on the nodes of some partitions."""

    def __init__(
        self,
        controller: Controller,
        owner: str,
        partitions: Set[str],
        lasts_s: float,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """On the nodes of these partitions; of none: on all nodes. A claim that is not renewed ends after `lasts_s`."""
        self._controller, self._owner, self._lasts_s = controller, owner, lasts_s
        self._partitions = partitions
        self._clock, self._sleep = clock, sleep
        self._until_s = 0.0

    def take(self) -> None:
        """Take the right to place. ClaimLostError if another berth has it, LiveError if Slurm refuses it."""
        nodes = self._controller.nodes()
        self._check_others(nodes)
        self._write(nodes)
        self._sleep(SETTLE_S)
        nodes = self._controller.nodes()
        try:
            self._check_others(nodes)
        except ClaimLostError:
            self.drop(nodes)
            raise

    def _check_others(self, nodes: Iterable[SlurmNode]) -> None:
        now_s = self._clock()
        for owner, until_s in filter(None, map(claimant, self._ours(nodes))):
            if owner != self._owner and until_s > now_s:
                raise ClaimLostError(
                    f"another berth places on these nodes, {owner}; stop it, or wait"
                    f" {until_s - now_s:.0f} s if it is gone"
                )

    @property
    def due(self) -> bool:
        """Whether it is to be renewed."""
        return self._until_s - self._clock() < self._lasts_s / 2

    def check(self, nodes: Sequence[SlurmNode]) -> None:
        """Renew the claim; ClaimLostError if another berth has taken it since."""
        self._check_others(nodes)
        if self.due or any(claimant(each) is None for each in self._ours(nodes)):
            self._write(nodes)

    def drop(self, nodes: Sequence[SlurmNode] | None = None) -> None:
        """Give the right back on the nodes where this berth still has it."""
        self._until_s = 0.0
        mine = [
            each for each in nodes or self._controller.nodes() if (claimant(each) or [""])[0] == self._owner
        ]
        self._note(mine, "")

    def _write(self, nodes: Iterable[SlurmNode]) -> None:
        until_s = int(self._clock() + self._lasts_s)
        self._note(self._ours(nodes), f"[berth places: {self._owner} until {until_s}]")
        self._until_s = until_s

    def _note(self, nodes: Iterable[SlurmNode], mark: str) -> None:
        """Write a mark behind what the site has noted of its nodes."""
        names: dict[str, list[str]] = {}
        for node in nodes:
            names.setdefault(_MARK.sub("", node.comment), []).append(node.name)
        for text, those in names.items():
            self._controller.comment_nodes(those, f"{text} {mark}".strip())

    def _ours(self, nodes: Iterable[SlurmNode]) -> list[SlurmNode]:
        return [each for each in nodes if not self._partitions or self._partitions & set(each.partitions)]
