"""What each start is worth, found by going on from it to the end: the teacher of `learned`.

Applications, their profiles and the model of interference are known. So what a simple heuristic makes of a queue is
known too, exactly and in a millisecond. The worth of a start is the total time if a heuristic goes on after it, the
least over several heuristics (Bertsekas, Tsitsiklis and Wu, "Rollout algorithms for combinatorial optimization",
Journal of Heuristics 3, 1997). Letters as in `queue_kernels`; N sets of J jobs, W worlds under way, B heuristics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from berth.arrays import FloatArray, IntArray
from berth.errors import SettingError
from berth.interference import Speeds
from berth.learning.jobsets import JobSets, Task
from berth.learning.queue_kernels import (
    NETWORK,
    NO_NETWORK,
    NONE,
    SEATS,
    SEEN,
    TRAITS,
    Room,
    next_choice,
    room_for,
    see_worlds,
    worth_of,
)
from berth.network.forecast_network import INPUTS, ForecastNetwork, uses_of
from berth.policies.colocation.cards import MOST_CLASSES, card_of

TICK_MS, STEP_MS = 15_000, 1_000
"""How often something may be decided while all hold, and while a job is about to end."""
COARSE_MS = 5_000
"""The second for heuristics, which only say what a start is worth."""

BoolArray = NDArray[np.bool_]


def heuristic(*weights: tuple[int, float]) -> FloatArray:
    """A heuristic that goes by these traits, however much waits: (2, F)."""
    found = np.zeros((2, TRAITS))
    for trait, weight in weights:
        found[:, trait] = weight
    return found


NETWORK_ALONE = heuristic((NETWORK, 1.0))
"""The network of the rollouts decides."""


def as_heuristic(weights: FloatArray) -> FloatArray:
    """A rule of other traits than the network's score, (2, F - 1), as a heuristic."""
    return np.pad(weights, ((0, 0), (0, TRAITS - weights.shape[1])))


@dataclass(frozen=True, slots=True, eq=False)
class Worlds:
    """GPUs with a queue each, at moments at which something is to be decided."""

    tenants: IntArray  # (W, S, 3): application, work left and all work in µs, running ones first
    queue: IntArray  # (W, J, 2): application and work in µs
    head: IntArray  # (W,): the first job in the queue that waits
    now_ms: IntArray  # (W,)
    allowed: BoolArray  # (W, C): what may be started, 0 being to hold

    @property
    def over(self) -> BoolArray:
        """(W,): where all jobs have ended."""
        return np.asarray((self.head == self.queue.shape[1]) & (self.tenants[:, 0, 1] == 0))

    @property
    def waiting(self) -> IntArray:
        """(W, M, 2): application and work in µs of the jobs that are seen, 0 where there is none."""
        jobs = self.queue.shape[1]
        place = self.head[:, None] + np.arange(SEEN)
        seen = np.take_along_axis(self.queue, np.minimum(place, jobs - 1)[..., None], axis=1)
        return np.where((place < jobs)[..., None], seen, 0)

    def take(self, rows: IntArray) -> Worlds:
        """Some of them."""
        return Worlds(
            self.tenants[rows], self.queue[rows], self.head[rows], self.now_ms[rows], self.allowed[rows]
        )


class Trace(NamedTuple):
    """What is done in E worlds, and when."""

    steps: IntArray  # (E, T, 3): time in ms, the combination that starts (0: an end), how many run then
    many: IntArray  # (E,): how many steps there are

    @classmethod
    def of(cls, entries: int, steps: int) -> Trace:
        """Room for `steps` steps of each."""
        return cls(np.zeros((entries, steps, 3), np.int64), np.zeros(entries, np.int64))


@dataclass(eq=False)
class Rollouts:
    """The applications of a task under one model of interference, and what starting them is worth."""

    task: Task
    speeds: Speeds
    network: ForecastNetwork = NO_NETWORK
    """What heuristics ask that go by its score."""

    def __post_init__(self) -> None:
        task = self.task
        self.card = card_of(task.applications, task.series, task.gpu.mem_mib, self.speeds)
        if self.card.rounded:
            raise SettingError(
                f"the profiles have more rows of use that differ than the {MOST_CLASSES:,} that rollouts tell apart:"
                " take profiles of longer intervals"
            )
        self.uses = uses_of(task.series, task.gpu.mem_mib)

    def _room(self, jobs: int) -> Room:
        return room_for(jobs, self.uses, self.network)

    def begin(self, sets: JobSets) -> Worlds:
        """Sets of jobs, none of which has started, at the first moment with a choice."""
        queue = np.stack([sets.application, sets.work_ms.astype(np.int64) * 1000], axis=-1).astype(np.int64)
        count = len(queue)
        worlds = Worlds(
            np.zeros((count, SEATS, 3), np.int64),
            queue,
            np.zeros(count, np.int64),
            np.zeros(count, np.int64),
            np.zeros((count, 1 << SEEN), np.bool_),
        )
        return self.advance(worlds, np.full(count, NONE, np.int64))

    def begin_on_one(self, tenants: IntArray, queue: IntArray) -> tuple[Worlds, Trace]:
        """Jobs that run (S, 3) and wait (J, 2) on one GPU, at the first moment with a choice, and a trace with room for
        all that is done until they have ended."""
        zero = np.zeros(1, np.int64)
        worlds = Worlds(tenants[None], queue[None], zero, zero, np.zeros((1, 1 << SEEN), np.bool_))
        trace = Trace.of(1, 2 * (len(queue) + SEATS))
        return self.advance(worlds, np.array([NONE]), trace), trace

    def advance(self, worlds: Worlds, action: IntArray, trace: Trace | None = None) -> Worlds:
        """What comes of the actions (W,) by the next moment with a choice, or by the end, which goes on the trace."""
        tenants, queue, head = worlds.tenants.copy(), worlds.queue.copy(), worlds.head.copy()
        now_ms, allowed = worlds.now_ms.copy(), worlds.allowed.copy()
        unknown, action = np.zeros(len(head), np.bool_), action.copy()
        room, usual = self._room(queue.shape[1]), heuristic((1, 1.0))
        rows, noted = np.arange(len(head)), trace or Trace.of(len(head), 0)
        while True:
            steps, many = noted.steps[rows], noted.many[rows]
            mine, line, first, now, does = tenants[rows], queue[rows], head[rows], now_ms[rows], action[rows]
            may, missing = allowed[rows], unknown[rows]
            next_choice(
                self.card.arrays,
                usual,
                mine,
                line,
                first,
                now,
                does,
                TICK_MS,
                STEP_MS,
                room,
                may,
                missing,
                steps,
                many,
            )
            noted.steps[rows], noted.many[rows] = steps, many
            tenants[rows], queue[rows], head[rows], now_ms[rows], action[rows] = mine, line, first, now, does
            allowed[rows] = may
            rows = rows[missing]
            if not len(rows):
                return replace(
                    worlds, tenants=tenants, queue=queue, head=head, now_ms=now_ms, allowed=allowed
                )
            self.card.learn()

    def worth_s(self, worlds: Worlds, heuristics: Sequence[FloatArray]) -> FloatArray:
        """Seconds until all is done if the best of the heuristics goes on after each start, (W, C); infinite where it
        is not allowed."""
        world, action = np.nonzero(worlds.allowed)
        starts = worlds.take(world)
        found = [self.rest_ms(starts, one, action) for one in heuristics]
        worth = np.full(worlds.allowed.shape, np.inf)
        worth[world, action] = np.min(found, axis=0) / 1000
        return worth

    def inputs(self, worlds: Worlds, offered: BoolArray) -> NDArray[np.float32]:
        """What the network sees of the combinations that are offered (W, C) in each world: (W, C, INPUTS)."""
        out = np.zeros((*offered.shape, INPUTS), np.float32)
        room = self._room(worlds.queue.shape[1])
        while not see_worlds(self.card.arrays, worlds.tenants, worlds.queue, worlds.head, offered, room, out):
            self.card.learn()
        return out

    def heuristic_ms(self, one: FloatArray, sets: JobSets) -> IntArray:
        """Total time of each set, (N,), if a heuristic decides from the beginning."""
        queue = np.stack([sets.application, sets.work_ms.astype(np.int64) * 1000], axis=-1).astype(np.int64)
        count, jobs = queue.shape[:2]
        nobody = np.zeros((count, SEATS, 3), np.int64)
        return self.followed(one, nobody, queue, np.full(count, NONE), np.full(count, jobs))

    def rest_ms(self, worlds: Worlds, one: FloatArray, action: IntArray | None = None) -> IntArray:
        """Total time of each world from now on, (W,), if a heuristic decides after the actions (W,)."""
        queue = np.stack(
            [np.roll(line, -at, axis=0) for line, at in zip(worlds.queue, worlds.head, strict=True)]
        )
        action = np.full(len(queue), NONE, np.int64) if action is None else action
        return self.followed(one, worlds.tenants, queue, action, queue.shape[1] - worlds.head)

    def plans(self, tenants: IntArray, queue: IntArray, heuristics: FloatArray) -> tuple[IntArray, Trace]:
        """Total time, (B,), of jobs that run (S, 3) and wait (J, 2) on one GPU, and what is done when, if each of the
        heuristics (B, 2, F) decides."""
        count, jobs = len(heuristics), len(queue)
        trace = Trace.of(count, 2 * (jobs + SEATS))
        many = np.repeat(tenants[None], count, axis=0), np.repeat(queue[None], count, axis=0)
        nothing, length = np.full(count, NONE, np.int64), np.full(count, jobs, np.int64)
        return self.followed(heuristics, *many, nothing, length, STEP_MS, trace), trace

    def starts_ms(
        self,
        tenants: IntArray,
        queue: IntArray,
        actions: IntArray,
        heuristics: FloatArray,
        step_ms: int = COARSE_MS,
    ) -> FloatArray:
        """Mean total time, (A,), over worlds of jobs that run (W, S, 3) and wait (W, J, 2), after each of the actions
        (A,), 0 being to hold, if the best of the heuristics (B, 2, F) for it goes on."""
        worlds, many = len(tenants), len(actions)
        which, action = np.tile(np.arange(worlds), many), np.repeat(actions, worlds)
        length = np.full(worlds * many, queue.shape[1], np.int64)
        total_ms = [
            self.followed(one, tenants[which], queue[which], action, length, step_ms).reshape(many, worlds)
            for one in heuristics
        ]
        least: FloatArray = np.min([one.mean(axis=1) for one in total_ms], axis=0)
        return least

    def improved(self, tenants: IntArray, queue: IntArray, heuristics: FloatArray) -> tuple[int, Trace]:
        """Total time of jobs that run (S, 3) and wait (J, 2) on one GPU, and what is done when, if at each moment the
        start is made that is best when the best of the heuristics (B, 2, F) for it goes on.

        Bertsekas, Tsitsiklis and Wu 1997, with several heuristics.
        """
        worlds, trace = self.begin_on_one(tenants, queue)
        while not worlds.over.all():
            actions, waits = np.flatnonzero(worlds.allowed[0]), worlds.queue[:, worlds.head[0] :]
            after_ms = self.starts_ms(worlds.tenants, waits, actions, heuristics, STEP_MS)
            worlds = self.advance(worlds, actions[[after_ms.argmin()]], trace)
        return int(worlds.now_ms[0]), trace

    def followed(
        self,
        heuristics: FloatArray,
        tenants: IntArray,
        queue: IntArray,
        action: IntArray,
        length: IntArray,
        step_ms: int | None = None,
        trace: Trace | None = None,
    ) -> IntArray:
        """Total time of each entry (E,) if the heuristic, or that of each, (E, 2, F), goes on after the action (NONE:
        from here on); of each queue (E, J, 2) the first `length` (E,) jobs wait."""
        if heuristics.ndim == 2:
            heuristics = np.repeat(heuristics[None], len(action), axis=0)
        noted = trace or Trace.of(len(action), 0)
        step_ms = step_ms or COARSE_MS
        out: IntArray = np.full(len(action), NONE, np.int64)
        room, reached = self._room(queue.shape[1]), np.zeros((len(action), 2), np.int64)
        tenants, queue, action = tenants.copy(), queue.copy(), action.astype(np.int64)
        while True:
            worth_of(
                self.card.arrays,
                heuristics,
                tenants,
                queue,
                action,
                length,
                step_ms,
                room,
                reached,
                out,
                noted.steps,
                noted.many,
            )
            if (out != NONE).all():
                return out
            self.card.learn()
