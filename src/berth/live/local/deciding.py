"""The broker's questions to the brain, one at a time, and what follows from the answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from berth.errors import LiveError
from berth.live.local.book import Book
from berth.live.local.link import BRAIN, DECIDE_S, SAFE_POLICY, Link

WHY_S = 5.0
REASONS_S = 0.15
"""A listing waits no longer for the brain; it says less then."""

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What an operator chose to decide by."""

    policy: str
    knowledge: str
    paths: tuple[str, ...] = ()
    """Folders in which a user's own policy or knowledge is looked up."""


class Deciding:
    """Asks the brain whenever something has happened."""

    def __init__(
        self,
        book: Book,
        nodes: Sequence[Message],
        history: str,
        chosen: Chosen,
        log: Callable[..., None],
        *,
        now_ms: Callable[[], int],
        act: Callable[[], None],
        wake_at: Callable[[int], None],
        is_ready: Callable[[], None],
        has_decided: Callable[[float], None],
        brain: str = BRAIN,
        decide_s: float = DECIDE_S,
        can_suspend: Callable[[], bool] = lambda: False,
        learned_starts: str = "",
        samples: str = "",
    ) -> None:
        """`nodes` are the machine's, `history` is the folder from which a knowledge begins, `samples` that of what runs
        use. `act` has written what has changed; `is_ready` hears of a brain that does not know yet what others hold,
        `has_decided` how many seconds one took. `can_suspend` tells whether a running job can be suspended to make
        room."""
        self._book, self._nodes, self._history = book, nodes, history
        self._samples = samples
        self._log, self._now_ms, self._can_suspend = log, now_ms, can_suspend
        self._act, self._wake_at, self._is_ready, self._has_decided = act, wake_at, is_ready, has_decided
        self.link = Link(self._begin, self.on_message, log, brain=brain, decide_s=decide_s)
        self.chosen = chosen
        self.learned_starts = learned_starts
        """What start intervals have learned, for the next brain."""
        self._proposed: Chosen | None = None
        self.decisions = 0
        self.seconds: list[float] = []
        """How long the last decisions took."""
        self.measured: Sequence[str] = ()
        """The jobs whose use is measured because their application is unknown."""
        self.policy_error = ""
        self.outstanding = 0
        """The question that is not answered yet; 0: none."""
        self._serial = 0
        self._failed_round = 0
        self._whys: dict[int, asyncio.Future[Message]] = {}

    async def change(self, proposed: Chosen) -> None:
        """Decide by something else from now on; LiveError if it cannot, and then nothing has changed."""
        if self._proposed is not None:
            raise LiveError("another policy is being tried; ask again when that is done")
        self._proposed = proposed

        def accepted() -> None:
            self.chosen = proposed

        try:
            await self.link.change(proposed.policy, accepted)
        finally:
            self._proposed = None

    def _begin(self, policy: str, trial: bool) -> Message:
        """The first message to a new brain: all that there is. What one says that is only tried changes nothing."""
        chosen = self._proposed if trial and self._proposed is not None else self.chosen
        if not trial:
            self.outstanding, self.measured = 0, ()
        return {
            "do": "begin",
            "nodes": self._nodes,
            "policy": policy,
            "knowledge": self._knowledge_named(policy, chosen.knowledge, trial=trial),
            "events": self._book.snapshot() if trial else self._book.begin_anew(),
            "now_ms": self._now_ms(),
            "paths": chosen.paths,
            "can_suspend": self._can_suspend(),
            "learned_starts": self.learned_starts,
            "samples": self._samples,
        }

    def _knowledge_named(self, policy: str, knowledge: str, *, trial: bool) -> str:
        """The knowledge as `make_knowledge` wants it: a history that names no folder begins with this queue's."""
        kind, _, settings = knowledge.partition("?")
        if kind != "history" or "begin=" in settings:
            return knowledge
        if policy == SAFE_POLICY and not trial and self.link.policy != SAFE_POLICY:
            return "user"  # whatever failed, it is not asked now
        there = os.path.exists(os.path.join(self._history, "index.json"))
        settings = "&".join(filter(None, (f"begin={self._history}" if there else "", settings)))
        return f"history?{settings}" if settings else "history"

    def decide(self, *, anyway: bool = False) -> None:
        """Ask the brain if it has not been asked and something has happened."""
        if not self.link.ready or self.outstanding or not (self._book.events or anyway):
            return
        self._serial += 1
        self.outstanding = self._serial
        self.link.ask(
            {
                "do": "decide",
                "now_ms": self._now_ms(),
                "serial": self._serial,
                "events": self._book.take_events(),
            }
        )

    def on_message(self, message: Message) -> None:
        kind, book, now_ms = message["say"], self._book, self._now_ms()
        if kind == "start":
            share = (message["share"][0], message["share"][1])
            slots, best_effort = tuple(message["slots"]), message["best_effort"]
            peak_mib = message.get("peak_mib", 0)
            book.placed(
                message["id"], message["version"], slots, share, now_ms, best_effort=best_effort, peak_mib=peak_mib
            )  # fmt: skip
        elif kind == "evict":
            book.evicted(message["id"], now_ms)
        elif kind == "suspend":
            book.suspended_by_brain(message["id"], now_ms)
        elif kind == "resume":
            book.resumed_by_brain(message["id"], now_ms)
        elif kind in ("again", "give-up"):
            fields = {name: value for name, value in message.items() if name != "say"}
            (book.again if kind == "again" else book.give_up)(**fields, now_ms=now_ms)
        elif kind == "remember":
            book.remember(message["job_id"], message["needs_mib"])
        elif kind == "learned-starts":
            self.learned_starts = message["text"]
        elif kind == "error":
            self.policy_error, self._failed_round = message["why"], self._serial
            self._log("policy-error", why=message["why"])
        elif kind == "refused":
            self._log("refused", why=message["why"])
        elif kind == "why":
            future = self._whys.pop(message["serial"], None)
            if future is not None and not future.done():
                future.set_result(message)
        elif kind == "ready":
            self._log("brain-ready", policy=message["policy"], seconds=message["seconds"])
            self.policy_error = ""
            self._is_ready()
            self.decide(anyway=True)
        elif kind == "decided":
            self.link.answered()
            self.outstanding = 0
            if self._failed_round != message["serial"]:
                self.policy_error = ""  # it decides again
            self.measured = message.get("measured", ())
            self.decisions += 1
            self.seconds = [*self.seconds[-999:], message["seconds"]]
            self._has_decided(message["seconds"])
            if message["wake_ms"] is not None:
                self._wake_at(message["wake_ms"])
            self._act()

    async def why(self, job_id: str) -> Message:
        return await self._ask_why({"do": "why", "id": job_id}, WHY_S)

    async def reasons(self, ids: list[str]) -> dict[str, tuple[str, int | None, int | None]]:
        """Why these waiting jobs wait, in a few words, and from when to when each is believed to start; empty if the
        brain is busy."""
        answer = await self._ask_why({"do": "reasons", "ids": ids}, REASONS_S)
        return {job_id: tuple(values) for job_id, values in answer.get("reasons", {}).items()}

    async def _ask_why(self, question: Message, seconds: float) -> Message:
        if not self.link.ready:
            return {}
        self._serial += 1
        future: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._whys[self._serial] = future
        serial = self._serial
        self.link.ask({**question, "serial": serial, "now_ms": self._now_ms()}, limited=False)
        try:
            async with asyncio.timeout(seconds):
                return await future
        except TimeoutError:
            self._whys.pop(serial, None)
            return {}
