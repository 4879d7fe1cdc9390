"""One GPU, a queue and a clock, as pure functions that JAX compiles: `reset` and `step`.

The environment of Oh 2019, section IV.2: action 0 holds and lets time advance, action c starts the jobs of
combination c together, and no time passes. Holding goes on to the earliest of: the next tick (a multiple of
`step_ms`), the next end of a job, the next change of what a tenant uses. All is whole numbers, as in
`berth.engine.simulate`, with which it agrees to the millisecond. Letters: J jobs of an episode, M of them seen,
K that run, C = 2^M actions, H steps of the horizon.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from berth.errors import SettingError
from berth.interference.speeds import Speeds, crossed
from berth.learning.jobsets import JobSets, Task
from berth.network.catalogue import NEVER_MS, Catalogue, left_cells
from berth.network.combinations import combinations

NOBODY = -1
WHOLE_MILLI = 1000
LONGEST_MS = 1_000_000
"""Nothing is foreseen beyond a tick, and a tick is not longer."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How the environment looks and goes on."""

    slots: int = 5
    """Waiting jobs that are seen, M."""
    tenants: int = 0
    """Jobs that may run on the GPU together, K; 0: as many as are seen."""
    retries: int = 1000
    """How often a job that ran out of memory is queued again."""

    def __post_init__(self) -> None:
        combinations(self.slots)
        if min(self.tenants, self.retries) < 0:
            raise SettingError(
                f"{self.tenants} tenants and {self.retries} retries; expected 0 or more of each"
            )

    @property
    def places(self) -> int:
        """How many jobs may run together."""
        return self.tenants or self.slots


class State(eqx.Module):
    """Everything there is to know at one moment."""

    model: Array  # int32 (): which model of interference
    now_ms: Array  # int32 ()
    application: Array  # int32 (J,)
    work_ms: Array  # int32 (J,)
    slot: Array  # int32 (M,): the jobs that are seen, NOBODY for none
    line: Array  # int32 (J,): the jobs behind them, a ring
    head: Array  # int32 (): place of the first of the line
    behind: Array  # int32 (): how many are in the line
    waiting_ms: Array  # int32 (): work of all that wait
    tenant: Array  # int32 (K,): the jobs that run, in the order of their start, NOBODY behind the last
    left_ms: Array  # int32 (K,): work that is left of them: whole milliseconds
    left_us: Array  # int32 (K,): and microseconds, 0…999
    start_ms: Array  # int32 (J,): of the last try, −1 before
    end_ms: Array  # int32 (J,): −1 while it waits or runs
    failures: Array  # int32 (J,): how often it ran out of memory


class Observation(eqx.Module):
    """What an agent is shown; the images of Oh 2019, figure 7, as amounts rather than as fields of 0 and 1."""

    cluster: Array  # int32 (H, 4): what the running jobs use together
    jobs: Array  # int32 (M, H, 4): what each job that is seen would use
    backlog: Array  # int32 (2,): jobs behind them, and their work in steps
    mask: Array  # bool (C,): which actions are allowed


class Environment:
    """The pure functions for one task; it holds no state.

    Of several models of interference each episode has one, which `reset` is told.
    """

    def __init__(self, task: Task, *speeds: Speeds, settings: Settings | None = None) -> None:
        if not speeds:
            raise SettingError("an environment needs a model of interference, or several")
        self.task = task
        self.settings = settings or Settings()
        self.models = speeds
        self.members = jnp.asarray(combinations(self.settings.slots))  # (C, M)
        self.actions = self.members.shape[0]
        self.capacity = jnp.array(
            [WHOLE_MILLI, task.gpu.mem_mib or NEVER_MS, WHOLE_MILLI, WHOLE_MILLI], jnp.int32
        )
        self.shown = Catalogue(*map(jnp.asarray, task.catalogue()))
        self.usage = self.shown.usage
        self.tick_ms = min(task.step_ms, LONGEST_MS)

    def reset(self, jobs: JobSets, model: Array | int = 0) -> State:
        """The beginning of an episode about one set, arrays (J,), under one of the models of interference."""
        settings = self.settings
        count, seen = jobs.application.shape[-1], settings.slots
        work_ms = jnp.asarray(jobs.work_ms, jnp.int32)
        order = jnp.arange(max(count, seen), dtype=jnp.int32)
        nobody = jnp.full(settings.places, NOBODY, jnp.int32)
        zeros = jnp.zeros(settings.places, jnp.int32)
        return State(
            model=jnp.asarray(model, jnp.int32),
            now_ms=jnp.int32(0),
            application=jnp.asarray(jobs.application, jnp.int32),
            work_ms=work_ms,
            slot=jnp.where(order[:seen] < count, order[:seen], NOBODY),
            line=jnp.arange(count, dtype=jnp.int32),
            head=jnp.int32(seen % count),
            behind=jnp.int32(max(0, count - seen)),
            waiting_ms=jnp.sum(work_ms, dtype=jnp.int32),
            tenant=nobody,
            left_ms=zeros,
            left_us=zeros,
            start_ms=jnp.full(count, -1, jnp.int32),
            end_ms=jnp.full(count, -1, jnp.int32),
            failures=jnp.zeros(count, jnp.int32),
        )

    def speeds_of(self, state: State) -> Speeds:
        """The model of interference of an episode, as one function."""
        if len(self.models) == 1:
            return self.models[0]

        def speeds(usage: Array, present: Array, capacity_mem_mib: Array, *, xp: ModuleType = jnp) -> Array:
            found = [model(usage, present, capacity_mem_mib, xp=xp) for model in self.models]
            return jax.lax.select_n(state.model, *found)

        return speeds

    def over(self, state: State) -> Array:
        """Whether no job waits or runs."""
        return jnp.all(state.end_ms >= 0)

    def step(self, state: State, action: Array, mask: Array | None = None) -> tuple[State, Array]:
        """What an action leads to, and its reward: −1 for each step of the horizon that goes by, so that the return is
        minus the total time. An action that `mask` forbids counts as holding; a caller that knows the mask gives it."""
        starts = (action > 0) & (self.mask(state) if mask is None else mask)[action]
        started = self._started(state, self.members[action] & starts)
        held = self._held(state)
        after = jax.tree.map(lambda new, old: jnp.where(starts, new, old), started, held)
        return after, (state.now_ms - after.now_ms) / self.task.step_ms

    # Starting

    def _started(self, state: State, member: Array) -> State:
        """The members of a combination, bool (M,), take their places behind those that run; the line moves up."""
        job = state.slot
        member = member & (job >= 0)
        count = jnp.sum(state.tenant >= 0, dtype=jnp.int32)
        place = count + jnp.cumsum(member, dtype=jnp.int32) - 1  # (M,)
        lands = member[None] & (place[None] == jnp.arange(self.settings.places)[:, None])  # (K, M)
        comes = jnp.any(lands, axis=-1)
        who = jnp.max(jnp.where(lands, job, NOBODY), axis=-1)
        work_ms = state.work_ms[who]
        # The places that are free now are filled from the line, in order.
        free = member | (job < 0)
        turn = jnp.cumsum(free, dtype=jnp.int32) - 1
        length = state.line.shape[0]
        follows = state.line[(state.head + turn) % length]
        moves = free & (turn < state.behind)
        moved = jnp.sum(moves, dtype=jnp.int32)
        begins = jnp.any(member[:, None] & (job[:, None] == jnp.arange(length)[None]), axis=0)
        return replace(
            state,
            slot=jnp.where(moves, follows, jnp.where(free, NOBODY, job)),
            head=(state.head + moved) % length,
            behind=state.behind - moved,
            waiting_ms=state.waiting_ms - jnp.sum(jnp.where(comes, work_ms, 0), dtype=jnp.int32),
            tenant=jnp.where(comes, who, state.tenant),
            left_ms=jnp.where(comes, work_ms, state.left_ms),
            left_us=jnp.where(comes, 0, state.left_us),
            start_ms=jnp.where(begins, state.now_ms, state.start_ms),
        )

    # Holding

    def _held(self, state: State) -> State:
        """A job is out of memory now and leaves at once, or time goes on to what happens next."""
        present = state.tenant >= 0
        application, row, change_ms, done_ms = self._positions(state)
        usage = jnp.where(present[:, None], self.usage[application, row], 0)  # (K, 4)
        interval_ms = self.shown.interval_ms[application]
        entered = done_ms == row * interval_ms
        earlier = jnp.where(row[:, None] > 0, self.usage[application, jnp.maximum(row - 1, 0)], 0)
        before = jnp.where(entered[:, None], earlier, usage)
        fails = crossed(usage, before, present, self.capacity[1], xp=jnp)
        full = fails >= 0
        speed = self.speeds_of(state)(usage, present, self.capacity[1], xp=jnp)
        until_end = _duration_ms(state.left_ms, state.left_us, speed)
        # A row begins when its first microsecond of work does.
        until_row_ms = state.left_ms - (state.work_ms[state.tenant] - change_ms)
        until_change = jnp.where(
            change_ms < NEVER_MS, _duration_ms(until_row_ms, state.left_us, speed), LONGEST_MS
        )
        tick_ms = self.tick_ms - state.now_ms % self.tick_ms
        soonest = jnp.minimum(until_end, until_change)
        first = jnp.min(jnp.where(present & (speed > 0), soonest, LONGEST_MS))
        over = self.over(state)
        passes_ms = jnp.where(full | over, 0, jnp.minimum(tick_ms, first))
        rest_us = state.left_us - passes_ms * speed
        left_ms = state.left_ms + rest_us // 1000
        left_us = rest_us % 1000
        now_ms = state.now_ms + passes_ms
        ends = present & ~full & ((left_ms < 0) | ((left_ms == 0) & (left_us == 0)))
        leaves = ends | (jnp.arange(present.shape[0]) == fails)
        job = jnp.arange(state.work_ms.shape[0])
        is_tenant = state.tenant[:, None] == job[None]  # (K, J)
        ended = jnp.any(is_tenant & ends[:, None], axis=0)
        failed = jnp.any(is_tenant & (leaves & ~ends)[:, None], axis=0)
        failures = state.failures + failed
        again = jnp.any(failed & (failures <= self.settings.retries))
        given_up = failed & (failures > self.settings.retries)
        whom = jnp.max(jnp.where(leaves & ~ends, state.tenant, NOBODY))
        queued = self._queued(state, whom, again)
        left_ms = jnp.where(leaves, 0, left_ms)
        left_us = jnp.where(leaves, 0, left_us)
        tenant = jnp.where(leaves, NOBODY, state.tenant)
        tenant, left_ms, left_us = _closed_up(tenant, left_ms, left_us)
        return replace(
            queued,
            now_ms=now_ms,
            tenant=tenant,
            left_ms=left_ms,
            left_us=left_us,
            end_ms=jnp.where(ended | given_up, now_ms, state.end_ms),
            failures=failures,
        )

    def _queued(self, state: State, job: Array, again: Array) -> State:
        """A job that ran out of memory waits behind all others."""
        length = state.line.shape[0]
        empty = state.slot < 0
        at = jnp.where(jnp.any(empty), jnp.argmax(empty), NOBODY)
        seen = again & (at >= 0)
        lines_up = again & (at < 0)
        place = (state.head + state.behind) % length
        return replace(
            state,
            slot=jnp.where(seen & (jnp.arange(empty.shape[0]) == at), job, state.slot),
            line=jnp.where(lines_up & (jnp.arange(length) == place), job, state.line),
            behind=state.behind + lines_up,
            waiting_ms=state.waiting_ms + jnp.where(again, state.work_ms[job], 0),
        )

    def _positions(self, state: State) -> tuple[Array, Array, Array, Array]:
        """Of each tenant: its application, the row of its series, when that changes, and the work done: (K,)."""
        application = jnp.where(state.tenant >= 0, state.application[state.tenant], 0)
        done_ms = state.work_ms[state.tenant] - state.left_ms - (state.left_us > 0)
        row = jnp.minimum(done_ms // self.shown.interval_ms[application], self.shown.rows[application] - 1)
        return application, row, self.shown.change_ms[application, row], done_ms

    # Seeing

    def cells(self, state: State) -> tuple[Array, Array]:
        """What the jobs that run and those that are seen need in each step of the horizon: (K, H, 4), (M, H, 4)."""
        application, _, _, done_ms = self._positions(state)
        horizon, step_ms = self.task.horizon, self.task.step_ms
        left_ms = jnp.where(state.tenant >= 0, state.left_ms + (state.left_us > 0), 0)
        running = left_cells(self.shown, application, done_ms, left_ms, step_ms, horizon, jnp)
        work_ms = jnp.where(state.slot >= 0, state.work_ms[state.slot], 0)
        application = jnp.where(state.slot >= 0, state.application[state.slot], 0)
        nothing = jnp.zeros_like(work_ms)
        return running, left_cells(self.shown, application, nothing, work_ms, step_ms, horizon, jnp)

    def observe(self, state: State) -> Observation:
        """What an agent is shown of a state."""
        running, jobs = self.cells(state)
        cluster = jnp.sum(running, axis=0, dtype=jnp.int32)
        seen_ms = jnp.sum(jnp.where(state.slot >= 0, state.work_ms[state.slot], 0), dtype=jnp.int32)
        backlog = jnp.stack([state.behind, (state.waiting_ms - seen_ms) // self.task.step_ms])
        return Observation(cluster, jobs, backlog, self._mask_of(state, cluster, jobs))

    def mask(self, state: State) -> Array:
        """Which actions are allowed, bool (C,): where for each resource and each step the sum stays within capacity.

        Oh 2019, section IV.2. Holding is allowed if a job runs or none could start.
        """
        return self.observe(state).mask

    def _mask_of(self, state: State, cluster: Array, jobs: Array) -> Array:
        places = self.settings.places - jnp.sum(state.tenant >= 0)
        together = self.virtual(jobs) + cluster.astype(jnp.float32)[None]
        within = jnp.all(together <= self.capacity.astype(jnp.float32)[None, None], axis=(-1, -2))
        fits = within & self.startable(state)
        fits = fits & (jnp.sum(self.members, axis=-1) <= places)
        return fits.at[0].set(jnp.any(state.tenant >= 0) | ~jnp.any(fits[1:]))

    def startable(self, state: State) -> Array:
        """Which combinations are of waiting jobs, each of them in a slot: bool (C,)."""
        return jnp.all(~self.members | (state.slot >= 0)[None], axis=-1)

    def virtual(self, jobs: Array) -> Array:
        """The images of the virtual job slots, float32 (C, H, 4) of whole numbers: their members' added up."""
        return jnp.tensordot(self.members.astype(jnp.float32), jobs.astype(jnp.float32), axes=1)


def _duration_ms(left_ms: Array, left_us: Array, speed_milli: Array) -> Array:
    """How long this work takes at that speed, rounded up; LONGEST_MS at most. 32 bits are enough."""
    speed = jnp.maximum(speed_milli, 1)
    whole = jnp.minimum(left_ms // speed, LONGEST_MS // 1000)
    part_us = (left_ms % speed) * 1000 + left_us
    return jnp.minimum(whole * 1000 - (-part_us // speed), LONGEST_MS)


def _closed_up(tenant: Array, left_ms: Array, left_us: Array) -> tuple[Array, Array, Array]:
    """Those that are left move up, in their order."""
    present = tenant >= 0
    place = jnp.cumsum(present, dtype=jnp.int32) - 1
    lands = present[None] & (
        place[None] == jnp.arange(tenant.shape[0])[:, None]
    )  # (K, K): new place, old place
    return (
        jnp.max(jnp.where(lands, tenant, NOBODY), axis=-1),
        jnp.max(jnp.where(lands, left_ms, 0), axis=-1),
        jnp.max(jnp.where(lands, left_us, 0), axis=-1),
    )
