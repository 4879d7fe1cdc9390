"""`learned` on one GPU: what its network would do and what some rules would is followed to the end, and the best done.

A portfolio by simulation on what is believed, which the network is a member of, and its starts put to the test one by
one. Where beliefs are in doubt, the two starts that the network likes most are put to the test by the network. On
several GPUs and with `plans=0` it decides in one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from berth.arrays import FloatArray, IntArray
from berth.cluster import Cluster
from berth.errors import SettingError
from berth.interference import mode_of
from berth.learning.jobsets import Task
from berth.learning.queue_kernels import SEATS, SEEN
from berth.learning.rollouts import NETWORK_ALONE, STEP_MS, TICK_MS, Rollouts, Trace, as_heuristic, heuristic
from berth.model import GpuModel
from berth.policies.colocation.forecast import Offer
from berth.policies.colocation.forecast_scores import LONGEST_LINE
from berth.policies.colocation.learned import UNTRAINED, Learned
from berth.policies.colocation.open_gpus import LEAD_MS
from berth.policies.colocation.rules import shipped_weights
from berth.policies.colocation.scene import Scene
from berth.profiles import series

LONGEST_PLAN_MS = 24 * 3_600_000
"""Where a plan takes longer, no start is tried: that takes time in proportion."""
PLANNED = ("time-sliced", "mps", "none")
"""Ways of sharing in which every tenant advances: a plan would never end where one of them may stand still."""
CHANGED, SIZE = 0.4, 0.3
"""How many of a rule's weights are changed at a time, and by how much of the largest."""
BATCH, AGAIN = 10, 4
"""Rules that are tried at once, those that follow being made of the best so far; and when it is planned anew."""

FOLLOWED, AHEAD = 2, 10
"""Starts that are followed where beliefs are in doubt, and for how many waiting jobs at most."""


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
    """A network, or a rule if that ends sooner in simulation, chooses which jobs start together.

    On one GPU whose whole queue may share and is fully known, several plans are played to the end of the queue. They
    follow the network, joint progress, the sum of speeds, the tuned rule, and `plans` random variations of the best
    of these. For the first plan, every start is then tried at each moment and the best is kept, unless that takes
    more than a day. The plan that ends soonest is followed until reality departs from it, such as when a job arrives.
    Then it is made anew with fewer variations. If beliefs are uncertain, nothing is planned: of the two starts with
    the best scores, the one is made after which the first waiting jobs end sooner if the network continues.
    Elsewhere it is `Learned`.
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
        self._models: dict[tuple[GpuModel | None, tuple[str, ...]], Rollouts | None] = {}
        self._plan: _Plan | None = None
        self._planned_for = (0, 0)
        self._best: FloatArray | None = None
        self._holds_until_ms = 0

    def _profiles_changed(self) -> None:
        super()._profiles_changed()
        self._models, self._plan = {}, None

    def _begin(self, cluster: Cluster) -> None:
        if cluster is not self._cluster:
            self._plan, self._planned_for, self._best = None, (0, 0), None
        super()._begin(cluster)

    def _chosen(self, scene: Scene) -> IntArray:
        if not self._may_plan or not self._is_alone(scene.forecasts.offers, scene.backlog_jobs):
            return super()._chosen(scene)
        if not self.knowledge.certain:
            return self._in_doubt(scene)
        step = self._next_step(scene)
        if step is None and self._made_anew(scene):
            step = self._next_step(scene)
        return super()._chosen(scene) if step is None else np.array([step], np.int64)

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
        """The combination that the plan starts now, 0 for none yet; None if there is no plan that still holds, as when
        others run or wait than it has foreseen."""
        plan = self._plan
        if plan is None:
            return None
        passed_ms, steps = self._now_ms - plan.began_ms, plan.steps
        running, waiting = int(scene.forecasts.tenants[0]), scene.backlog_jobs
        while plan.at < len(steps) and steps[plan.at][0] <= passed_ms and not steps[plan.at][1]:
            plan.running = steps[plan.at][2]
            plan.at += 1
        if (running, waiting) == (plan.running, plan.waiting) and plan.at < len(steps):
            when_ms, combination, then = steps[plan.at]
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

    def _in_doubt(self, scene: Scene) -> IntArray:
        """The best by what is believed of the starts that the network likes most, if it goes on after each of them."""
        kind = len(scene.forecasts.offers[0].tenants), scene.backlog_jobs
        if kind != self._planned_for:
            self._planned_for, self._holds_until_ms = kind, 0
        allowed = self.allowed(scene)
        if allowed[0, 0] and self._now_ms < self._holds_until_ms:
            return np.zeros(1, np.int64)
        score = self.scores(scene, allowed)
        if not kind[0] and allowed[0, 1:].any():  # an idle GPU starts a job wherever it may
            score[0, 0] = -np.inf
        actions = np.argsort(-score[0], kind="stable")[:FOLLOWED]
        actions = actions[np.isfinite(score[0, actions])]
        situation = self._situation(scene) if len(actions) > 1 else None
        if situation is None:
            return super()._chosen(scene)
        model, tenants, queue = situation
        after_ms = model.starts_ms(tenants[None], queue[None, :AHEAD], actions, NETWORK_ALONE[None])
        pick: IntArray = actions[[after_ms.argmin()]]
        if not pick[0]:
            ends_ms = scene.forecasts.ends_ms[0, 0]
            first_ms = int(ends_ms.min(where=ends_ms > 0, initial=TICK_MS + LEAD_MS))
            self._holds_until_ms = self._now_ms + max(first_ms - LEAD_MS, STEP_MS)
        return pick

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

    def _situation(self, scene: Scene) -> tuple[Rollouts, IntArray, IntArray] | None:
        """What can be asked what comes of rules, tenants (S, 3) and queue (J, 2); None where nothing is planned."""
        if any(not self._shares(job) for job in scene.queue):
            return None
        if self._never_combines(scene):  # then `Learned` does what joint progress says
            return None
        model = self._model(scene)
        if model is None:
            return None
        names = {name: at for at, name in enumerate(scene.forecasts.names)}
        tenants = np.zeros((SEATS, 3), np.int64)
        for seat, one in enumerate(scene.forecasts.offers[0].tenants):
            tenants[seat] = names[one.application], one.left_us, one.work_us
        queue = self.scores.waiting(scene).copy()
        # One without work takes 1 ms here: it would take no seat, and never be over.
        queue[:, 1] = np.maximum(queue[:, 1], 1000)
        return None if len(queue) < scene.backlog_jobs else (model, tenants, queue)

    def _best_steps(
        self, model: Rollouts, tenants: IntArray, queue: IntArray, draws: int
    ) -> list[tuple[int, int, int]]:
        """What ends soonest of the network, the rules, changes of these and, at first, of every start tried."""
        draw = np.random.default_rng(len(queue))
        rule = as_heuristic(shipped_weights(mode_of(self.knowledge.speeds)))
        rules = [NETWORK_ALONE, heuristic((1, 1.0)), rule, heuristic((0, 1.0))]
        heuristics = np.stack(rules if self._best is None else [*rules, self._best])
        best, least_ms, steps = heuristics[0], 1 << 60, list[tuple[int, int, int]]()
        while len(heuristics):
            total_ms, trace = model.plans(tenants, queue, heuristics)
            at = int(total_ms.argmin())
            if total_ms[at] < least_ms:
                best, least_ms, steps = heuristics[at], int(total_ms[at]), _steps(trace, at)
            count = min(BATCH, draws)
            draws -= count
            change = draw.normal(0, SIZE * np.abs(best).max(), (count, *best.shape))
            heuristics = best + change * (draw.random(change.shape) < CHANGED)
        short = least_ms <= LONGEST_PLAN_MS
        if self._best is None and short:
            for some in ([best, *rules], rules[:2], [best]):
                better_ms, trace = model.improved(tenants, queue, np.stack(some))
                if better_ms < least_ms:
                    least_ms, steps = better_ms, _steps(trace, 0)
        self._best = best
        return steps

    def _model(self, scene: Scene) -> Rollouts | None:
        """The applications on this card as plans see them; None of profiles that cannot be followed."""
        key = scene.gpu, scene.forecasts.names
        if key not in self._models:
            gpu, names = scene.gpu or GpuModel(""), scene.forecasts.names
            scaled = tuple(series(self.known[name], gpu) for name in names)
            try:
                task = Task(names, scaled, gpu, 1, 1)
                self._models[key] = Rollouts(task, self.knowledge.speeds, self.model.network)
            except SettingError:
                self._models[key] = None
        return self._models[key]


def _steps(trace: Trace, at: int) -> list[tuple[int, int, int]]:
    return [(when, mask, then) for when, mask, then in trace.steps[at, : trace.many[at]].tolist()]
