"""What runs on the nodes for as long as they do: it lets the memory of jobs grow, and suspends and resumes jobs.

It talks with `berth slurm` by small files in the folder that nodes and berth share. An order, named by the job's
number, has a job suspended for as long as it is there. A report says what each job on a node has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from berth.errors import LiveError
from berth.files import write_whole
from berth.history.values.hostlist import expand
from berth.live.driver.idling import Need
from berth.live.driver.node_tenants import LOOK_S, NodeTenants, Shown
from berth.live.driver.words import sizes
from berth.live.slurm.controller import Controller
from berth.live.slurm.jobs import SlurmJob
from berth.partition import fake_driver_folder
from berth.partition.gpus import gpus
from berth.tenants import SUSPENDED

REPORTS, ORDERS, STATUS = "agents", "orders", "status.json"
REPORT_S = 5.0
"""How often an agent reports if nothing has changed."""
SILENT_S = 30.0
"""An older report counts no more."""
SUSPEND_S = 600.0
"""How long a suspension is waited for at most."""
_ID = re.compile(r"[0-9]+([_+][0-9]+)?")
BY_USER, BY_BERTH, BY_AGENT = "user", "berth", "agent"


async def serve(
    state: Path,
    node: str,
    grow: str,
    uncounted: str,
    log: Callable[..., None],
    *,
    fake: bool = False,
    card: str = "",
) -> None:
    """Serve the tenants of this node until a signal stops it. Raises PartitionError if another agent runs."""
    cards = gpus(fake_driver_folder() if fake else None)
    tenants = NodeTenants(cards, log, grow=grow, fake=fake, fake_card=card, uncounted=uncounted)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    ordered: set[str] | None = None
    wanted = Wanted(state)
    reported, reported_s = None, 0.0
    try:
        while not stopped.is_set():
            with contextlib.suppress(OSError):  # such as NFS away: the last orders hold
                ordered = {path.name for path in _listed(state / ORDERS)}
            if ordered is not None:
                _heed(tenants, ordered)
            tenants.wanted = wanted.on({each.job.partition("-")[2] for each in tenants.tenants()})
            tenants.look()
            sent_away = _order_sent_away(state, tenants)
            if ordered is not None:
                ordered |= sent_away  # the next list may fail
            shown = tenants.shown()
            if shown != reported or time.monotonic() - reported_s > REPORT_S:
                with contextlib.suppress(OSError):
                    _let_back(state, tenants)
                    _report(state, node, shown)
                    reported, reported_s = shown, time.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await stopped.wait()
    finally:
        tenants.close()


class Wanted:
    """What jobs need that a berth which places would start on a node if there were room, by its status."""

    def __init__(self, state: Path) -> None:
        self._path = state / STATUS
        self._read_ns = 0
        self._by_node: dict[str, list[Need]] = {}

    def on(self, nodes: Collection[str]) -> list[Need]:
        """Of some of the nodes of this machine; nothing once no berth has written for `SILENT_S`."""
        with contextlib.suppress(OSError, ValueError, TypeError):  # what was read last holds
            written = self._path.stat()
            if written.st_mtime_ns != self._read_ns:
                wanted = json.loads(self._path.read_text(encoding="utf-8")).get("wanted", {})
                self._by_node = {
                    node: [Need(1, (), milli, mem_mib) for milli, mem_mib in each]
                    for node, each in wanted.items()
                }
                self._read_ns = written.st_mtime_ns
        if time.time() - self._read_ns / 1e9 > SILENT_S:
            return []
        return [need for node in nodes for need in self._by_node.get(node, ())]


def _heed(tenants: NodeTenants, ordered: set[str]) -> None:
    for tenant in tenants.tenants():
        raw_id = tenant.job.partition("-")[0]
        (tenants.suspend if raw_id in ordered else tenants.resume)(tenant.id)


def _order_sent_away(state: Path, tenants: NodeTenants) -> set[str]:
    """Write an order for each job that the agent itself has suspended for uncounted memory, so that `berth slurm
    resume` brings it back. Returns their numbers."""
    written = set()
    for tenant in tenants.tenants():
        if tenant.sent_away and tenant.suspension == SUSPENDED:
            raw_id = tenant.job.partition("-")[0]
            with contextlib.suppress(OSError):  # the agent keeps it away, and tries again
                order(state, raw_id, BY_AGENT)
                written.add(raw_id)
                tenants.suspend(tenant.id)
    return written


def _let_back(state: Path, tenants: NodeTenants) -> None:
    """Let a job that this agent has suspended for uncounted memory run on if it cannot leave its GPUs on another node:
    half of a job gets nowhere. It is throttled instead."""
    away = [each for each in tenants.tenants() if each.uncounted and each.suspension == SUSPENDED]
    if not away:
        return
    by, found = orders(state), reports(state)
    for tenant in away:
        raw_id = tenant.job.partition("-")[0]
        if by.get(raw_id) == BY_AGENT and (why := found.get(raw_id, Reports({})).why):
            tenants.keep_here(tenant.id, why)
            revoke(state, raw_id)


def _report(state: Path, node: str, shown: Iterable[Shown]) -> None:
    (state / REPORTS).mkdir(parents=True, exist_ok=True)
    write_whole(state / REPORTS / node, json.dumps([each._asdict() for each in shown]))


def memory_text(shown: Shown) -> str:
    """What a job has of the memory of a node's GPUs, in words."""
    has, most, promised, used = sizes(shown.limit_mib, shown.max_mib, shown.promise_mib, shown.used_mib)
    text = f"promised {promised} of each GPU, may hold {has} now and {most} at most, holds {used}"
    if shown.asked:
        text += (
            f"; requests for more: {shown.asked}, granted: {shown.granted}, calls refused: {shown.refused}"
        )
    if shown.suspension:
        away = f"{shown.suspension}{' while idle' if shown.idle else ''}"
        text += f"; {away}, with {sizes(shown.parked_mib)[0]} for each GPU in the machine's memory"
    return f"{text}; {shown.uncounted}" if shown.uncounted else text


class Reports(NamedTuple):
    """What the agents say of one job, one entry a node that it has GPUs on."""

    by_node: dict[str, Shown]

    def lacking(self, nodes: Iterable[str]) -> list[str]:
        """Return the nodes without a report of a living agent."""
        return [name for name in nodes if name not in self.by_node]

    def suspended(self, nodes: Iterable[str]) -> bool:
        """Whether it has left the GPUs of all these nodes."""
        return not self.lacking(nodes) and all(each.suspension == SUSPENDED for each in self.by_node.values())

    @property
    def away(self) -> bool:
        """Whether it has left some of its GPUs, or is on the way there or back."""
        return any(each.suspension for each in self.by_node.values())

    @property
    def limit_mib(self) -> int:
        """What it may hold of each GPU now; of GPUs that it has left, what it was promised."""
        return max(each.promise_mib if each.suspension else each.limit_mib for each in self.by_node.values())

    @property
    def idle(self) -> bool:
        """Whether it has left all of its GPUs until its next call of CUDA."""
        return all(each.idle and each.suspension == SUSPENDED for each in self.by_node.values())

    @property
    def why(self) -> str:
        """Why it cannot be suspended; empty if that is not known."""
        return next((f"{node}: {each.why}" for node, each in self.by_node.items() if each.why), "")


def reports(state: Path) -> dict[str, Reports]:
    """What agents that live say of each job, by its number."""
    found: dict[str, Reports] = {}
    for path in _files(state / REPORTS):
        with contextlib.suppress(OSError, ValueError, TypeError):
            if time.time() - path.stat().st_mtime > SILENT_S:
                continue
            for values in json.loads(path.read_text(encoding="utf-8")):
                shown = Shown(**{**values, "gpus": tuple(values["gpus"])})
                raw_id, _, node = shown.job.partition("-")
                found.setdefault(raw_id, Reports({})).by_node[node] = shown
    return found


def orders(state: Path) -> dict[str, str]:
    """Who wants which jobs to be suspended, by the job's number: BY_USER, BY_BERTH or BY_AGENT."""
    found = {}
    for path in _files(state / ORDERS):
        with contextlib.suppress(OSError):
            found[path.name] = path.read_text(encoding="utf-8").strip()
    return found


def order(state: Path, raw_id: str, by: str) -> None:
    """Have a job suspended until `revoke`."""
    (state / ORDERS).mkdir(parents=True, exist_ok=True)
    write_whole(state / ORDERS / raw_id, f"{by}\n")


def revoke(state: Path, raw_id: str) -> None:
    """Let a job run on as soon as its GPUs have room."""
    (state / ORDERS / raw_id).unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    try:
        return _listed(folder)
    except OSError:
        return []


def _listed(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if not path.name.startswith(".") and path.suffix != ".part"
    )


def suspend(controller: Controller, state: Path, job_id: str) -> str:
    """Have a running job, or one that Slurm has stopped, leave its GPUs, and then have Slurm stop it, so that its time
    limit stands still.

    Returns a warning; empty if there is none. LiveError if it cannot leave. Killed at any step, it can be repeated.
    """
    job = _job(controller, job_id)
    if job.state not in ("RUNNING", "SUSPENDED"):
        raise LiveError(f"job {job_id} is {job.state}; only a running job can be suspended")
    raw_id, names = job.raw_id, expand(job.node_list)
    found = reports(state).get(raw_id, Reports({}))
    if lacking := found.lacking(names):
        raise LiveError(
            f"job {job_id} has no GPU partition on {lacking[0]}, or no agent of berth runs there; start one with:"
            f" berth slurm agent --state {state}"
        )
    order(state, raw_id, BY_USER)
    stays = "Slurm keeps it stopped" if job.state == "SUSPENDED" else "it runs on"
    seen_s = began_s = time.monotonic()
    while not (found := reports(state).get(raw_id, Reports({}))).suspended(names):
        now_s = time.monotonic()
        if why := found.why:
            revoke(state, raw_id)
            raise LiveError(f"job {job_id} cannot be suspended: {why}; {stays}")
        if not (lacking := found.lacking(names)):
            seen_s = now_s
        elif now_s - seen_s > SILENT_S:
            revoke(state, raw_id)
            raise LiveError(
                f"job {job_id} cannot be suspended: berth's agent on {lacking[0]} has not reported it for"
                f" {SILENT_S:.0f} s. If the job has not ended, {stays}. See the agent's log, and start the agent again."
            )
        if now_s - began_s > SUSPEND_S:
            raise LiveError(
                f"job {job_id} has not left its GPUs for {SUSPEND_S:.0f} s; see the agent's log, or give it up with:"
                f" berth slurm resume {job_id}"
            )
        time.sleep(LOOK_S)
    if job.state == "SUSPENDED":
        return ""
    try:
        controller.order(["suspend", raw_id])
    except LiveError as error:
        return f"its GPUs are free, but Slurm did not stop it, so that its time limit goes on: {error}"
    return ""


def resume(controller: Controller, state: Path, job_id: str) -> None:
    """Let a suspended job run on as soon as its GPUs have room. LiveError if Slurm does not let it."""
    job = _job(controller, job_id)
    if job.state == "SUSPENDED":
        controller.order(["resume", job.raw_id])
    revoke(state, job.raw_id)


def _job(controller: Controller, job_id: str) -> SlurmJob:
    first = job_id.partition("+")[0]
    found = [job for job in controller.jobs([first]) if job.id == job_id] if _ID.fullmatch(job_id) else []
    if not found:
        raise LiveError(f"Slurm knows no job {job_id}; name one as squeue shows it: 12, 12_3 or 12+1")
    return found[0]
