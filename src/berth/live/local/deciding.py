"""What the broker and the brain say to each other: the beginning, the questions, and what follows from the answers."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from berth.live.local.entry import WAITING
from berth.live.local.link import SAFE_POLICY
from berth.live.local.telling import snapshot

if TYPE_CHECKING:
    from berth.live.local.broker import Broker

__all__ = ["Deciding"]

WHY_S = 5.0
REASONS_S = 0.15
"""A listing waits no longer for the brain; it says less then."""


class Deciding:
    """Asks the brain whenever something has happened, one question at a time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.decisions = 0
        self.seconds: list[float] = []
        """How long the last decisions took."""
        self.policy_error = ""
        self.never: dict[str, str] = {}
        """Waiting jobs that no GPU of today could hold, and why."""
        self.outstanding = 0
        """The question that is not answered yet; 0: none."""
        self._serial = 0
        self._failed_round = 0
        self._whys: dict[int, asyncio.Future[dict[str, Any]]] = {}

    def begin(self, policy: str, trial: bool) -> dict[str, Any]:
        """The first message to a new brain: all that there is. What one says that is only tried changes nothing."""
        book = self._broker.book
        knowledge, paths = self._broker.knowledge, self._broker.paths
        if trial and self._broker.proposed is not None:
            knowledge, paths = self._broker.proposed
        if not trial:
            self.offer_again()
            book.notes.clear()
            for entry in book.jobs.values():
                if entry.state == WAITING and entry.offered:
                    entry.version += 1
            self.outstanding = 0
        return {
            "do": "begin", "nodes": self._broker.cards.nodes(self._broker.book.limits), "policy": policy,
            "knowledge": self._knowledge_named(policy, knowledge, trial=trial),
            "notes": snapshot(book.active.values(), book.jobs.values(), book.limits),
            "now_ms": self._broker.now_ms(), "paths": paths,
        }  # fmt: skip

    def _knowledge_named(self, policy: str, knowledge: str, *, trial: bool) -> str:
        """The knowledge as `make_knowledge` wants it: the history's folder, if there is one yet."""
        if knowledge != "history":
            return knowledge
        if policy == SAFE_POLICY and not trial and self._broker.link.policy != SAFE_POLICY:
            return "user"  # whatever failed, it is not asked now
        there = os.path.exists(os.path.join(self._broker.places.history, "index.json"))
        return f"history?begin={self._broker.places.history}" if there else "history"

    def decide(self, *, anyway: bool = False) -> None:
        """Ask the brain if it has not been asked and something has happened."""
        if not self._broker.link.ready or self.outstanding or not (self._broker.book.notes or anyway):
            return
        self._serial += 1
        self.outstanding = self._serial
        now_ms = self._broker.now_ms()
        notes, self._broker.book.notes = self._broker.book.notes, []
        for note in notes:
            note["now_ms"] = now_ms
        self._broker.link.ask({"do": "decide", "now_ms": now_ms, "serial": self._serial, "notes": notes})

    def hear(self, message: dict[str, Any]) -> None:
        """What the brain says."""
        said = message["say"]
        now_ms = self._broker.now_ms()
        if said == "placed":
            share = (message["share"][0], message["share"][1])
            slots = tuple(message["slots"])
            self._broker.book.placed(
                message["id"], message["version"], slots, share, now_ms, best_effort=message["best_effort"]
            )
            self.never.pop(message["id"], None)
        elif said == "evicted":
            self._broker.book.evicted(message["id"], now_ms)
        elif said == "never":
            self._never_fits(message["id"], message["why"], now_ms)
        elif said == "error":
            self.policy_error, self._failed_round = message["why"], self._serial
            self._broker.log("policy-error", why=message["why"])
        elif said == "refused":
            self._broker.log("refused", why=message["why"])
        elif said == "why":
            future = self._whys.pop(message["serial"], None)
            if future is not None and not future.done():
                future.set_result(message)
        elif said == "ready":
            self._broker.log("brain-ready", policy=message["policy"], seconds=message["seconds"])
            self.policy_error = ""
            self._broker.watch.tell(anew=True)
            self.decide(anyway=True)
        elif said == "decided":
            self._broker.link.heard()
            self.outstanding = 0
            if self._failed_round != message["serial"]:
                self.policy_error = ""  # it decides again
            self.decisions += 1
            self.seconds = [*self.seconds[-999:], message["seconds"]]
            self._broker.counters.decided.add(message["seconds"])
            if message["wake_ms"] is not None:
                self._broker.wake_at(message["wake_ms"])
            self._broker.act()

    def _never_fits(self, job_id: str, why: str, now_ms: int) -> None:
        """A job that could not start if nothing else ran waits without holding up the others."""
        self.never[job_id] = why
        entry = self._broker.book.jobs.get(job_id)
        if entry is not None and entry.state == WAITING and entry.offered:
            self._broker.book.set_aside(entry, why, now_ms)

    def offer_again(self) -> None:
        """Ask anew about the jobs that no GPU could hold, because the policy or the machine has changed."""
        ids = list(self.never)
        self.never.clear()
        self._broker.book.reconsider(ids, self._broker.now_ms())

    async def why(self, job_id: str) -> dict[str, Any]:
        """What the brain says of a waiting job; empty where it does not answer."""
        return await self._ask_why({"do": "why", "id": job_id}, WHY_S)

    async def reasons(self, ids: list[str]) -> dict[str, str]:
        """Why these waiting jobs wait, in a few words; empty where the brain is busy."""
        told: dict[str, str] = (await self._ask_why({"do": "reasons", "ids": ids}, REASONS_S)).get(
            "reasons", {}
        )
        return told

    async def _ask_why(self, question: dict[str, Any], seconds: float) -> dict[str, Any]:
        if not self._broker.link.ready:
            return {}
        self._serial += 1
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._whys[self._serial] = future
        serial = self._serial
        self._broker.link.ask({**question, "serial": serial}, limited=False)
        try:
            return await asyncio.wait_for(future, seconds)
        except TimeoutError:
            self._whys.pop(serial, None)
            return {}
