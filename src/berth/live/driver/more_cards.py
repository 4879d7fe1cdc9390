"""How many more cards would start the jobs that wait for room, by GPU model: what an autoscaler or a buyer asks."""

from __future__ import annotations

from collections.abc import Iterable

from berth.cluster import Cluster
from berth.live.driver.snapshot import MoreCards
from berth.model import GpuModel, Job


def more_cards(cluster: Cluster, waiting: Iterable[Job]) -> tuple[MoreCards, ...]:
    """For each GPU model of the cluster, how many more cards would start which of these jobs and gangs, all of which
    wait for room. Each answer is one way by itself. The new nodes are like those of today, and no card of today is
    used.
    """
    models = {node.gpu_model.name: node.gpu_model for node in cluster.nodes if node.gpu_model and node.gpus}
    tasks_of: dict[str, list[Job]] = {name: [] for name in sorted(models)}
    for job in waiting:
        tasks = job.tasks or (job,)
        for name in set.intersection(*(_models_for(cluster, task) for task in tasks)):
            tasks_of[name] += tasks
    return tuple(
        MoreCards(name, _cards(models[name], tasks), len(tasks)) for name, tasks in tasks_of.items() if tasks
    )


def _models_for(cluster: Cluster, task: Job) -> set[str]:
    """The names of the models of nodes that could run a task if nothing else ran; none for one without GPUs."""
    nodes = (cluster.nodes[row] for row in cluster.fitting_nodes_when_empty(task)) if task.gpus else ()
    return {node.gpu_model.name for node in nodes if node.gpu_model is not None}


def _cards(model: GpuModel, tasks: Iterable[Job]) -> int:
    """How many empty cards hold these tasks: each part goes to the first card that has room, the largest first."""
    asked = [(task.share.milli, task.share.mem_mib if model.mem_mib else 0, task.gpus) for task in tasks]
    free: list[tuple[int, int]] = []  # milli and MiB of each card that is not full
    full = 0
    for milli, mem_mib, gpus in sorted(asked, reverse=True):
        left_milli, left_mib = 1000 - milli, model.mem_mib - mem_mib
        if not left_milli:
            full += gpus
            continue
        roomy = [at for at, (has, has_mib) in enumerate(free) if has >= milli and has_mib >= mem_mib][:gpus]
        for at in roomy:
            free[at] = free[at][0] - milli, free[at][1] - mem_mib
        free += [(left_milli, left_mib)] * (gpus - len(roomy))
    return full + len(free)
