"""A whole cluster as Gymnasium's environment: the agent says which waiting job starts next, and on which node.

    env = gymnasium.make("berth.experiments.cluster_gym:berth/Cluster-v0", trace="jobs.csv", cluster="8x8:V100")

It is the simulator, step by step: whenever something has ended or arrived, the agent is asked until it holds. Needs the
extra `learn`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from math import log10
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from berth.card_speeds import ALL_ALIKE
from berth.cluster import Cluster, Queue
from berth.cluster.outages import Recovery
from berth.engine.run import Run
from berth.errors import SettingError
from berth.experiments.compare.comparison import nodes_of
from berth.interference import no_interference
from berth.knowledge import believed_run_ms, make_knowledge
from berth.model import EventKind, GpuSlot, Job, Node, Placement, placement_of
from berth.traces import Trace, read_trace
from berth.traces.job_table import compressed

Shown = dict[str, Any]
"""Arrays by their names."""
JOB_FEATURES = 7
"""GPUs, part of each, nodes, CPU, memory, believed run time, time waited."""
NODE_FEATURES = 4
"""Free GPU, GPUs that are wholly free, free CPU and free memory, each of what the node has."""
MOST_LOG_S = 8.0
"""Times are shown as log10(1 + s) over this: 10⁸ s are three years."""
HOUR_MS = 3_600_000


class ClusterEnvironment(gym.Env[Shown, np.int64]):
    """An episode replays jobs of a trace. Letters: N nodes, K waiting jobs that are shown, in order of submission.

    Action 0 holds until something happens; 1 + k·N + n starts job k on node n. A job of several nodes takes that one
    and the next that fit; one that may spread and does not fit there is spread. What `action_mask` forbids counts as
    holding. If nothing runs and nothing is to come, holding is forbidden, and counts as the first start that is not.

    The reward is minus the hours that jobs have waited since the last step, all together, so that the return of an
    episode is minus their waiting time.
    """

    metadata = {"render_modes": []}  # noqa: RUF012  Gymnasium's own declaration

    def __init__(
        self,
        trace: str | os.PathLike[str] | Sequence[Job],
        cluster: str | os.PathLike[str] | Sequence[Node] | None = None,
        *,
        slots: int = 16,
        jobs: int | None = None,
        compress: float = 1.0,
        knowledge: str = "oracle",
    ) -> None:
        """`slots` is K. With `jobs` an episode is that many consecutive jobs, from a place that its seed draws. A
        synthetic trace that names no seed is drawn anew each time. `knowledge` tells the run times that are shown.

        Raises what `berth.compare` raises for a trace, a cluster and a knowledge, and SettingError for numbers below 1.
        """
        if slots < 1 or (jobs is not None and jobs < 1):
            raise SettingError(
                f"{slots} waiting jobs shown and {jobs} jobs an episode; expected 1 or more of each"
            )
        source: Trace | tuple[Job, ...]
        if isinstance(trace, str | os.PathLike):
            compressed((), compress)  # refuses a wrong factor now, and not at the first episode
            source = read_trace(trace)
        else:
            source = tuple(compressed(trace, compress))
        self.nodes = nodes_of(source, cluster)
        self._source = source
        self._read: tuple[object, Sequence[Job]] = (None, ())
        self._slots, self._jobs, self._compress, self._knowledge = slots, jobs, compress, knowledge
        count = len(self.nodes)
        self._has = np.maximum(1, _left(Cluster(self.nodes)))
        self._totals: list[float] = self._has[:, 1:].sum(axis=0, dtype=np.float64).tolist()
        self.action_space = spaces.Discrete(1 + slots * count)
        self.observation_space = spaces.Dict(
            {
                "nodes": spaces.Box(0.0, 1.0, (count, NODE_FEATURES), np.float32),
                "jobs": spaces.Box(0.0, 1.0, (slots, JOB_FEATURES), np.float32),
                "waiting": spaces.Box(0.0, 1.0, (1,), np.float32),
                "action_mask": spaces.Box(0, 1, (1 + slots * count,), np.int8),
            }
        )
        self._mask: NDArray[np.int8] = np.zeros(1 + slots * count, np.int8)
        self._shown_jobs: list[Job] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Shown, dict[str, Any]]:
        """Begin an episode; `options={"first": 100}` names its first job. Raises SettingError for one that is none."""
        super().reset(seed=seed)
        jobs = self._all_jobs()
        if self._jobs is not None:
            last = max(0, len(jobs) - self._jobs)
            first = int((options or {}).get("first", self.np_random.integers(last + 1)))
            if not 0 <= first <= last:
                raise SettingError(f"an episode cannot begin at job {first}; expected 0 to {last}")
            jobs = jobs[first : first + self._jobs]
        self._agent = _Agent()
        self._believed = make_knowledge(self._knowledge, jobs)
        cluster = Cluster(self.nodes)
        self._run = Run(
            iter(jobs), cluster, self._agent, self._believed, no_interference, (), Recovery(), ALL_ALIKE, None
        )
        self._run.arrivals.draw(0)
        self._now_ms, self._waits_s = -1, list[float]()
        self._passed_h = 0.0
        over = self._go_on()
        return self._observed(), self._info(over)

    def step(self, action: np.int64) -> tuple[Shown, float, bool, bool, dict[str, Any]]:
        """Hold, or start a job. Raises SettingError for what is no action of the space."""
        if not self.action_space.contains(action):
            raise SettingError(f"action {action!r}; expected a whole number from 0 to {len(self._mask) - 1}")
        self._passed_h, over = 0.0, False
        chosen = int(action) if self._mask[action] else 0
        if not chosen and not self._mask[0]:
            chosen = int(self._mask.argmax())
        if chosen:
            job, node = self._shown_jobs[(chosen - 1) // len(self.nodes)], (chosen - 1) % len(self.nodes)
            self._agent.wish = placement_of(job, self._slots_on(job, node))
            self._run.decide(self._now_ms)
            self._note_events()
        if not chosen or not self._may_start():
            self._run.end_instant(self._now_ms)
            self._note_events()
            over = self._go_on()
        return self._observed(), -self._passed_h, over, False, self._info(over)

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are allowed now."""
        return self._mask.astype(np.bool_)

    def _all_jobs(self) -> Sequence[Job]:
        """The jobs of the trace, read once unless each seed has others."""
        source = self._source
        if not isinstance(source, Trace):
            return source
        drawn = source.with_seed(int(self.np_random.integers(2**31)))
        if self._read[0] != drawn:
            self._read = (drawn, drawn.table(nodes=self.nodes, compress=self._compress))
        return self._read[1]

    def _go_on(self) -> bool:
        """Let time pass until there is something to decide; returns whether the episode is over."""
        run = self._run
        while (now_ms := run.next_ms()) is not None:
            self._passed_h += len(run.queue) * (now_ms - max(self._now_ms, 0)) / HOUR_MS
            self._now_ms = now_ms
            asked = run.begin_instant(now_ms)
            self._note_events()
            if asked and self._may_start():
                return False
            run.end_instant(now_ms)
            self._note_events()
        self._shown_jobs = []
        self._mask[:] = 0
        self._mask[0] = 1
        return True

    def _may_start(self) -> bool:
        """Find what may start now; whether anything may."""
        run, count = self._run, len(self.nodes)
        self._shown_jobs = [*islice(run.queue, self._slots)]
        self._mask[:] = 0
        alike: dict[int, NDArray[np.int64]] = {}
        for at, job in enumerate(self._shown_jobs):
            number = run.cluster.request(job)
            fitting = alike.get(number)
            if fitting is None:
                fitting = alike[number] = run.cluster.fitting_nodes(job)
            if not job.tasks and len(fitting) >= max(1, job.nodes):
                self._mask[1 + at * count + fitting] = 1
            elif (job.tasks or not job.nodes) and run.cluster.spread(job) is not None:
                self._mask[1 + at * count] = 1
        may = bool(self._mask.any())
        self._mask[0] = not may or bool(run.cluster.running) or run.arrivals.job is not None
        return may

    def _slots_on(self, job: Job, node: int) -> tuple[GpuSlot, ...]:
        """Where a job that may start runs if this node is its first."""
        fitting = self._run.cluster.fitting_nodes(job)
        nodes = np.roll(fitting, -int(np.searchsorted(fitting, node))).tolist()
        return self._run.cluster.slots_for(job, nodes) or ()

    def _note_events(self) -> None:
        for event in self._run.new_events:
            if event.kind is EventKind.START:
                self._waits_s.append((event.time_ms - event.job.submit_ms) / 1000)
        self._run.new_events.clear()

    def _observed(self) -> Shown:
        run = self._run
        jobs = np.zeros((self._slots, JOB_FEATURES), np.float32)
        for at, job in enumerate(self._shown_jobs):
            jobs[at] = self._features(job)
        np.clip(jobs, 0, 1, out=jobs)
        return {
            "nodes": np.clip(_left(run.cluster) / self._has, 0, 1).astype(np.float32),
            "jobs": jobs,
            "waiting": np.array([_logged(len(run.queue))], np.float32),
            "action_mask": self._mask.copy(),
        }

    def _features(self, job: Job) -> list[float]:
        run_ms = believed_run_ms(job, self._believed)
        gpus, cpu_milli, mem_mib = self._totals
        shown = [
            job.gpus / gpus, job.share.milli / 1000, job.nodes / len(self.nodes), job.cpu_milli / cpu_milli,
            job.mem_mib / mem_mib, 1.0 if run_ms is None else _logged(run_ms / 1000),
            _logged((self._now_ms - job.submit_ms) / 1000),
        ]  # fmt: skip
        return shown

    def _info(self, over: bool) -> dict[str, Any]:
        info: dict[str, Any] = {"now_ms": max(self._now_ms, 0)}
        if over:
            info["started"] = len(self._waits_s)
            info["wait_mean_s"] = float(np.mean(self._waits_s)) if self._waits_s else 0.0
            info["wait_p90_s"] = float(np.quantile(self._waits_s, 0.9)) if self._waits_s else 0.0
        return info


class _Agent:
    """The policy of the run: what the agent said last."""

    def __init__(self) -> None:
        self.wish: Placement | None = None

    def __call__(self, queue: Queue, cluster: Cluster, now_ms: int) -> Iterator[Placement]:
        if self.wish is not None:
            wish, self.wish = self.wish, None
            yield wish


def _left(cluster: Cluster) -> NDArray[np.int64]:
    """(N, NODE_FEATURES): what is free on each node."""
    free = cluster.free
    left: NDArray[np.int64] = np.stack(
        [
            np.maximum(free.milli, 0).sum(axis=1),
            (free.milli >= 1000).sum(axis=1),
            free.cpu_milli,
            free.mem_mib,
        ],
        axis=1,
    )
    return left


def _logged(value: float) -> float:
    """log10(1 + value), of MOST_LOG_S."""
    return min(1.0, log10(1 + max(0.0, value)) / MOST_LOG_S)


gym.register("berth/Cluster-v0", entry_point="berth.experiments.cluster_gym:ClusterEnvironment")
