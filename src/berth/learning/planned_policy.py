"""`learned` on one GPU: what its network would do and what some rules would is followed to the end, and the best done.

A portfolio by simulation on what is believed, which the network is a member of, and its starts put to the test one by
one. Where run times, memory or speeds are in doubt, rules alone are followed, in several worlds that may be true, and
the network chooses among the starts that are about as good there. On several GPUs and with `plans=0` the network
decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster import Cluster
from berth.errors import SettingError
from berth.interference import mode_of
from berth.knowledge import Spread, believed_run
from berth.learning.domains import Domain
from berth.learning.jobsets import JobSets, Task
from berth.learning.player import Player, best_of_listed, listed
from berth.learning.queue_kernels import NONE, SEATS, SEEN
from berth.learning.rollouts import STEP_MS, TICK_MS, Trace, heuristic
from berth.model import GpuModel
from berth.policies.colocation.forecast import Offer
from berth.policies.colocation.learned import UNTRAINED, Learned
from berth.policies.colocation.network_chooser import best_of
from berth.policies.colocation.open_gpus import LEAD_MS
from berth.policies.colocation.rules import rule_scores, shipped_weights
from berth.policies.colocation.scene import Scene
from berth.profiles import series

LONGEST_LINE = 100
"""A plan is made for at most this many waiting jobs."""
LONGEST_PLAN_MS = 24 * 3_600_000
"""Where a plan takes longer, no start is tried and the network is not followed: that takes time in proportion."""
PLANNED = ("time-sliced", "mps", "none")
"""Ways of sharing in which every tenant advances: a plan would never end where one of them may stand still."""
CHANGED, SIZE = 0.4, 0.3
"""How many of a rule's weights are changed at a time, and by how much of the largest."""
BATCH, AGAIN = 10, 4
"""Rules that are tried at once, those that follow being made of the best so far; and when it is planned anew."""
DRAWN, IN_DOUBT, IN_DOUBT_AGAIN = 3, 30, 10
"""Worlds that rules are followed in where beliefs are in doubt; changes of rules at first, and after each start and
each end."""
AS_GOOD = 1.004
"""Starts whose mean total time is at most this times the least are about as good: few worlds do not tell them apart."""
TENTH = 1.2816
"""Standard deviations from the middle of a normal distribution to its upper tenth."""


MOST_PLAYERS = 16
_PLAYERS: dict[tuple[object, ...], Player | None] = {}
"""Speeds that were asked for once need not be asked for again by the next policy of the same profiles and speeds."""


@dataclass(slots=True)
class _Plan:
    """What is to be done when, from a moment on."""

    began_ms: int
    steps: list[tuple[int, int, int]]
    """After how long (ms), the combination that starts (0: a job has ended), and how many run then."""
    running: int
    waiting: int
    at: int = 0


class LearnedWithPlans(Learned):
    """A network, or a rule where that ends sooner by a simulation of all that wait, chooses what starts together.

    On one GPU whose whole queue may share, and where all is known, the network, joint progress, the sum of speeds, the
    tuned rule and `plans` random changes of the best of these are each followed to the end of the queue; then, for the
    first plan, every start is tried at each moment, with the best rules going on from there; only rules are followed if
    that takes more than a day. What ends soonest is done step by step until the world departs from it, as when a job
    comes: it is planned anew with fewer changes, and the network is followed again only if it has led so far. Where
    beliefs are in doubt, the rule with the least mean total time in worlds drawn from them is taken, found anew after
    each start and end; of the combinations after which this rule has about the least mean total time in these worlds,
    the network chooses. Elsewhere it is `Learned`.
    """

    def _prepare(self) -> None:
        mine = self.settings
        self._may_plan = bool(
            mine.plans
            and mine.shield
            and mine.window == SEEN
            and not mine.unslowed
            and self.model.learner != UNTRAINED
            and mode_of(self.knowledge.speeds) in PLANNED
        )
        self._players: dict[tuple[GpuModel | None, tuple[str, ...]], Player | None] = {}
        self._plan: _Plan | None = None
        self._planned_for = (0, 0)
        self._best: FloatArray | None = None
        self._network_led = True
        self._follows = False
        self._holds_until_ms = 0

    def _profiles_changed(self) -> None:
        super()._profiles_changed()
        self._players, self._plan = {}, None

    def _begin(self, cluster: Cluster) -> None:
        if cluster is not self._cluster:
            self._plan, self._planned_for, self._best, self._network_led = None, (0, 0), None, True
        super()._begin(cluster)

    def _chosen(self, scene: Scene) -> IntArray:
        if not self._may_plan or not self._is_alone(scene.forecasts.offers, scene.backlog_jobs):
            return super()._chosen(scene)
        if not self.knowledge.certain:
            return self._in_doubt(scene)
        step = self._next_step(scene)
        if step is None:
            scene = scene.with_all()
            if self._made_anew(scene):
                step = self._next_step(scene)
        return super()._chosen(scene) if step is None else np.array([step], np.int64)

    def asked_about(self, offers: Sequence[Offer], waiting: int) -> Sequence[int] | None:
        """None of the jobs, and the combination that the plan starts next, while it holds."""
        if self._plan is None or not self._is_alone(offers, waiting):
            return None
        step = self._planned(len(offers[0].tenants), waiting)
        return None if step is None else (0, step[1])

    def _is_alone(self, offers: Sequence[Offer], waiting: int) -> bool:
        """Whether all that wait are for this one GPU, and in the order in which it is offered them."""
        return (
            len(offers) == 1
            and waiting <= LONGEST_LINE
            and self._cluster is not None
            and sum(node.gpus for node in self._cluster.nodes) == 1
            and self.queue_order is None
            and self._due is None
        )

    def _next_step(self, scene: Scene) -> int | None:
        """The combination that the plan starts now, 0 for none yet; None if there is no plan that still holds."""
        plan = self._plan
        if plan is None:
            return None
        passed_ms, running = self._now_ms - plan.began_ms, int(scene.forecasts.tenants[0])
        if (step := self._planned(running, scene.backlog_jobs)) is not None:
            when_ms, combination, then = step
            allowed = self.allowed(scene)[0]
            if when_ms > passed_ms and running and allowed[0]:
                self.next_decision_ms = when_ms - passed_ms
                return 0
            if when_ms <= passed_ms and combination < len(allowed) and allowed[combination]:
                plan.at += 1
                plan.running, plan.waiting = then, plan.waiting - combination.bit_count()
                return combination
        self._plan = None
        return None

    def _planned(self, running: int, waiting: int) -> tuple[int, int, int] | None:
        """The step of the plan that is next; None if others run or wait than it has foreseen."""
        plan = self._plan
        if plan is None:
            return None
        passed_ms, steps = self._now_ms - plan.began_ms, plan.steps
        while plan.at < len(steps) and steps[plan.at][0] <= passed_ms and not steps[plan.at][1]:
            plan.running = steps[plan.at][2]
            plan.at += 1
        if (running, waiting) != (plan.running, plan.waiting) or plan.at == len(steps):
            return None
        return steps[plan.at]

    def _in_doubt(self, scene: Scene) -> IntArray:
        """Of the starts after which all ends about soonest in worlds drawn from beliefs, the one of the best score; the
        rule that goes on from there is found anew after each change."""
        kind = len(scene.forecasts.offers[0].tenants), scene.backlog_jobs
        if kind != self._planned_for:
            self._planned_for, self._holds_until_ms = kind, 0
            situation = self._situation(scene)
            self._follows = situation is not None
            if situation is not None:
                self._best = self._best_rule(scene, *situation)
        if not self._follows or self._best is None:
            return super()._chosen(scene)
        allowed = self.allowed(scene)
        if allowed[0, 0] and self._now_ms < self._holds_until_ms:
            return np.zeros(1, np.int64)
        actions = np.flatnonzero(allowed[0])
        if not len(scene.forecasts.offers[0].tenants):
            actions = actions[actions > 0]
        situation = self._situation(scene) if len(actions) > 1 else None
        if situation is None:
            return best_of(rule_scores(scene, self._best), allowed, scene.forecasts)
        player, *jobs = situation
        after_ms = player.model.starts_ms(*self._drawn(scene, *jobs), actions, self._best[None])
        as_good = np.zeros_like(allowed)
        as_good[0, actions[after_ms <= after_ms.min() * AS_GOOD]] = True
        pick = best_of(self.scores(scene, as_good), as_good, scene.forecasts)
        if not pick[0]:
            ends_ms = scene.forecasts.ends_ms[0, 0]
            first_ms = int(ends_ms.min(where=ends_ms > 0, initial=TICK_MS + LEAD_MS))
            self._holds_until_ms = self._now_ms + max(first_ms - LEAD_MS, STEP_MS)
        return pick

    def _best_rule(self, scene: Scene, player: Player, tenants: IntArray, queue: IntArray) -> FloatArray:
        """The rule, of those that ship and changes of the best, with the least mean total time over drawn worlds."""
        draw = np.random.default_rng(len(queue))
        worlds = self._drawn(scene, tenants, queue)
        first = self._best is None
        rules = [heuristic((0, 1.0)), heuristic((1, 1.0)), shipped_weights(mode_of(self.knowledge.speeds))]
        heuristics = np.stack(rules if self._best is None else [*rules, self._best])
        tries = min(self.settings.plans, IN_DOUBT if first else IN_DOUBT_AGAIN)
        best: FloatArray = heuristics[0]
        least_ms = 1e300
        while len(heuristics):
            total_ms = player.model.mean_ms(*worlds, heuristics)
            at = int(total_ms.argmin())
            if total_ms[at] < least_ms:
                best, least_ms = heuristics[at], float(total_ms[at])
            count = min(BATCH, tries)
            tries -= count
            change = draw.normal(0, SIZE * np.abs(best).max(), (count, *best.shape))
            heuristics = best + change * (draw.random(change.shape) < CHANGED)
        return best

    def _drawn(self, scene: Scene, tenants: IntArray, queue: IntArray) -> tuple[IntArray, IntArray]:
        """Worlds (W, S, 3) and (W, J, 2) that may be true: what is expected, and run times drawn around it."""
        doubt = np.array([_doubt(believed_run(job, self.knowledge)) for job in scene.queue])
        usual = float(doubt.mean())
        draw = np.random.default_rng(len(queue))
        others = DRAWN - 1
        waiting = np.exp(np.vstack([np.zeros(len(queue)), draw.normal(0, 1, (others, len(queue))) * doubt]))
        running = np.exp(np.vstack([np.zeros(SEATS), draw.normal(0, 1, (others, SEATS)) * usual]))
        tenants, queue = np.repeat(tenants[None], DRAWN, axis=0), np.repeat(queue[None], DRAWN, axis=0)
        done_us = tenants[..., 2] - tenants[..., 1]
        seated = tenants[..., 2] > 0
        tenants[..., 2] = np.maximum((tenants[..., 2] * running).astype(np.int64), done_us + seated)
        tenants[..., 1] = tenants[..., 2] - done_us
        queue[..., 1] = np.maximum((queue[..., 1] * waiting / 1000).astype(np.int64), 1) * 1000  # whole ms
        return tenants, queue

    def _made_anew(self, scene: Scene) -> bool:
        """Make a plan, unless one was made while as many ran and waited and did not hold; whether there is one."""
        kind = len(scene.forecasts.offers[0].tenants), scene.backlog_jobs
        if kind == self._planned_for:
            return False
        self._planned_for = kind
        situation = self._situation(scene)
        if situation is None:
            return False
        first = self._best is None
        steps = self._best_steps(*situation, self.settings.plans if first else AGAIN)
        self._plan = _Plan(self._now_ms, steps, *kind)
        return True

    def _situation(self, scene: Scene) -> tuple[Player, IntArray, IntArray] | None:
        """What can be asked what comes of rules, tenants (S, 3) and queue (J, 2); None where nothing is planned."""
        if any(not self._shares(job) for job in scene.queue):
            return None
        if self._never_combines(scene):  # then `Learned` does what joint progress says
            return None
        player = self._player(scene)
        if player is None:
            return None
        names = {name: at for at, name in enumerate(scene.forecasts.names)}
        tenants = np.zeros((SEATS, 3), np.int64)
        for seat, one in enumerate(scene.forecasts.offers[0].tenants):
            tenants[seat] = names[one.application], one.left_us, one.work_us
        queue = np.array(
            [(names.get(job.application, NONE), max(self.work_us(job), 1000)) for job in scene.queue],
            np.int64,
        )  # one without work takes 1 ms here: it would take no seat, and never be over
        return None if (queue[:, 0] == NONE).any() else (player, tenants, queue)

    def _best_steps(
        self, player: Player, tenants: IntArray, queue: IntArray, tries: int
    ) -> list[tuple[int, int, int]]:
        """What ends soonest of the network, the rules, changes of these and, at first, of every start tried."""
        model, draw = player.model, np.random.default_rng(len(queue))
        rules = [heuristic((0, 1.0)), heuristic((1, 1.0)), shipped_weights(mode_of(self.knowledge.speeds))]
        heuristics = np.stack(rules if self._best is None else [*rules, self._best])
        best, least_ms, steps = heuristics[0], 1 << 60, list[tuple[int, int, int]]()
        while len(heuristics):
            total_ms, trace = model.plans(tenants, queue, heuristics)
            at = int(total_ms.argmin())
            if total_ms[at] < least_ms:
                best, least_ms, steps = heuristics[at], int(total_ms[at]), _steps(trace, at)
            count = min(BATCH, tries)
            tries -= count
            change = draw.normal(0, SIZE * np.abs(best).max(), (count, *best.shape))
            heuristics = best + change * (draw.random(change.shape) < CHANGED)
        short = least_ms <= LONGEST_PLAN_MS
        if self._best is None and short:
            for some in ([best, *rules], rules[:2], [best]):
                better_ms, trace = model.improved(tenants, queue, np.stack(some))
                if better_ms < least_ms:
                    least_ms, steps = better_ms, _steps(trace, 0)
        if (self._best is None or self._network_led) and short:
            network_ms, network_steps = self._network_steps(player, tenants, queue)
            self._network_led = network_ms <= least_ms
            steps = network_steps if self._network_led else steps
        self._best = best
        return steps

    def _network_steps(
        self, player: Player, tenants: IntArray, queue: IntArray
    ) -> tuple[int, list[tuple[int, int, int]]]:
        """When all ends if the network decides, and what it starts when."""
        worlds, trace = player.model.begin_on_one(tenants, queue)
        while not worlds.over.all():
            masks, there = listed(worlds.allowed)
            score = np.where(there, player.scores(self.model.network, worlds, masks), -np.inf)
            worlds = player.model.advance(worlds, best_of_listed(masks, score), trace)
        return int(worlds.now_ms[0]), _steps(trace, 0)

    def _player(self, scene: Scene) -> Player | None:
        """The applications on this card as plans see them; None of profiles that cannot be followed."""
        key = scene.gpu, scene.forecasts.names
        if key not in self._players:
            self._players[key] = self._player_on(scene.gpu or GpuModel(""), scene.forecasts.names)
        return self._players[key]

    def _player_on(self, gpu: GpuModel, names: tuple[str, ...]) -> Player | None:
        scaled = tuple(series(self.known[name], gpu) for name in names)
        model = self.model
        rows = tuple((one.interval_ms, one.usage.tobytes()) for one in scaled)
        key = self.knowledge.speeds, gpu, names, rows, model.horizon, model.step_ms, model.demand
        if key not in _PLAYERS:
            if len(_PLAYERS) >= MOST_PLAYERS:
                _PLAYERS.clear()
            task = Task(names, scaled, gpu, model.horizon, model.step_ms)
            no_sets = JobSets(np.zeros((0, 0), np.int32), np.zeros((0, 0), np.int32))
            try:
                _PLAYERS[key] = Player(Domain(task, self.knowledge.speeds, no_sets, no_sets), model.demand)
            except SettingError:
                _PLAYERS[key] = None
        return _PLAYERS[key]


def _doubt(spread: Spread | None) -> float:
    """Standard deviation of the logarithm of a believed run time."""
    if spread is None or spread.low <= 0:
        return 0.0
    return min(1.0, log(spread.high / spread.low) / (2 * TENTH))


def _steps(trace: Trace, at: int) -> list[tuple[int, int, int]]:
    return [(when, mask, then) for when, mask, then in trace.steps[at, : trace.many[at]].tolist()]
