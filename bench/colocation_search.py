"""How short schedules of thirty jobs can be made: what of `learned`'s distance from the bound can be won.

A beam search that knows the whole queue: at each moment at which something may be decided every start that is allowed
is tried in each of the best schedules begun so far; what a start is worth is the total time if the network of `learned`
goes on after it. It offers the first five of the queue, as `learned` does, and starts nothing that it may not. A policy
that decides job by job and does not know what is behind those five can hardly do as well.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from berth.interference import make_speeds
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.rollouts import NETWORK_ALONE, Rollouts, Worlds
from berth.policies.colocation.learned import model_named, shipped_for
from berth.profiles import THESIS_GPU, WORKLOADS, thesis_profiles, workload_jobs
from berth_papers.bounds import time_bound
from harness import count, save

FIRST_SEED = 700_000
JOBS = 30
MODELS = ("mps", "time-sliced")


def distinct(worlds: Worlds) -> Worlds:
    """Each world once: the same tenants, queue and time may come of several starts."""
    last = worlds.queue.shape[1]
    seen: dict[bytes, int] = {}
    for at in range(len(worlds.head)):
        tenants = worlds.tenants[at][np.lexsort(worlds.tenants[at].T)]
        rest = worlds.queue[at, worlds.head[at] : last]
        seen.setdefault(worlds.now_ms[at].tobytes() + tenants.tobytes() + rest.tobytes(), at)
    return worlds.take(np.array(sorted(seen.values())))


def shortest_ms(model: Rollouts, begin: Worlds, beam: int) -> int:
    """The shortest total time that a beam of so many schedules comes to."""
    worlds, least = begin, 1 << 62
    while True:
        worlds = worlds.take(np.flatnonzero(~worlds.over))
        if not len(worlds.head):
            return least
        world, action = np.nonzero(worlds.allowed)
        worlds = distinct(model.advance(worlds.take(world), action))
        total_ms = worlds.now_ms + model.rest_ms(worlds, NETWORK_ALONE)
        least = min(least, int(total_ms.min()))
        worlds = worlds.take(np.argsort(total_ms, kind="stable")[:beam])


def main() -> None:
    """Search, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=count, default=6, help="sets of each workload")
    parser.add_argument("--beam", type=count, default=20, help="schedules that are followed side by side")
    parser.add_argument("--interference", choices=MODELS, help="under which model; by default both")
    asked = parser.parse_args()
    results: dict[str, object] = {"beam": asked.beam}
    for name in [asked.interference] if asked.interference else MODELS:
        speeds = make_speeds(name)
        task = thesis_task()
        model = Rollouts(task, speeds, model_named(shipped_for("learned", speeds)).network)
        above: dict[str, list[float]] = {"learned": [], "search": []}
        for workload in WORKLOADS:
            sets = thesis_sets(task, workload, FIRST_SEED, asked.sets, jobs=JOBS)
            begun, rows = time.process_time(), []
            for number in range(asked.sets):
                jobs = workload_jobs(workload, JOBS, FIRST_SEED + number)
                bound_ms = time_bound(jobs, thesis_profiles(), speeds, THESIS_GPU).total_ms
                only = JobSets(sets.application[[number]], sets.work_ms[[number]])
                learned_ms = int(model.heuristic_ms(NETWORK_ALONE, only)[0])
                found_ms = min(learned_ms, shortest_ms(model, model.begin(only), asked.beam))
                times_ms = {"bound": bound_ms, "learned": learned_ms, "search": found_ms}
                rows.append({f"{way}_s": value / 1000 for way, value in times_ms.items()})
            mean = {
                way: float(np.mean([100 * (row[f"{way}_s"] / row["bound_s"] - 1) for row in rows]))
                for way in above
            }
            for way, value in mean.items():
                above[way].append(value)
            results[f"{name}, {workload}"] = {"above_bound_pct": mean, "runs": rows}
            print(
                f"{name}, {workload}: above the bound: learned {mean['learned']:.1f} %, search {mean['search']:.1f} %"
                f" ({asked.sets} sets, {time.process_time() - begun:.0f} s of processor time)",
                flush=True,
            )
        averages = {way: float(np.mean(values)) for way, values in above.items()}
        results[f"{name}, mean"] = averages
        print(
            f"{name}: on average learned {averages['learned']:.1f} %, the search {averages['search']:.1f} %",
            flush=True,
        )
    save("colocation_search", results)


if __name__ == "__main__":
    main()
