"""A decision of the driver as a change of Slurm's job: its nodes, and its GPUs or shards by their types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from berth.history.values.gres import gres_list
from berth.live.driver.site import Gpu, Start
from berth.live.slurm.controller import Change
from berth.live.slurm.nodes import SlurmNode
from berth.live.slurm.requests import LeftToSlurmError, Note
from berth.model import NO_GPU


def gpus_by_node(gpus: Iterable[Gpu]) -> dict[str, tuple[int, ...]]:
    """The indices of the GPUs on each node, by its name."""
    found: dict[str, tuple[int, ...]] = {}
    for gpu in gpus:
        found[gpu.node] = (*found.get(gpu.node, ()), gpu.index)
    return {name: tuple(sorted(at)) for name, at in sorted(found.items())}


def where_of(gpus: Iterable[Gpu]) -> str:
    """Nodes and GPUs as the log has them: `node1:0+1,node2:0`."""
    return ",".join(
        f"{name}:{'+'.join(map(str, at))}" if at != (NO_GPU,) else name
        for name, at in gpus_by_node(gpus).items()
    )


def order_of(start: Start, note: Note, nodes: Mapping[str, SlurmNode], before: str = "") -> Change:
    """What is to be changed so that the job runs there, its release included.

    Slurm takes one request for all nodes of a job: where their GPUs' types differ, or nodes give none, it is asked for
    the nodes alone and chooses the GPUs itself. `before` is what the job asked for on each node when it was placed
    before. It keeps that, because Slurm takes no type back: it adds others to it (`gres_job_state_validate`), and 22.05
    then never frees some of them. Raises LeftToSlurmError where the GPUs have other types.
    """
    by_node = gpus_by_node(start.gpus)
    noted = replace(note, share=start.share, best_effort=start.best_effort, failures=0, why="")
    if {NO_GPU} == {gpu.index for gpu in start.gpus}:
        return Change(start.job_id, node_list=",".join(by_node), admin_comment=str(noted), hold=False)
    kinds = {tuple(nodes[name].gpu_kinds[at] for at in where) for name, where in by_node.items()}
    kinds_before = {each.kind for each in gres_list(before, odd=True)}
    typed = len(kinds) == 1 and all(nodes[name].typed for name in by_node) and "" not in kinds_before
    first = nodes[next(iter(by_node))]
    each = len(next(iter(by_node.values())))
    shared = start.share.milli < 1000 or start.best_effort
    by_shards = bool(first.shards_a_gpu) and (shared or "shard" in before) and "gpu:" not in before
    if by_shards:
        count = first.shards_a_gpu if not shared else _shards(start, first)
        items = [f"shard:{kind}:{count}" for kind in kinds.pop()] if typed else [f"shard:{count * each}"]
    else:
        items = [f"gpu:{kind}:1" for kind in kinds.pop()] if typed else [f"gpu:{each}"]
    # As the site's Slurm writes what was asked for: `gres/` in later versions.
    asked = f"{note.per_node},{note.per_job},{note.per_task}"
    mark = "gres/" if "gres/" in asked else "gres:"
    gres = ",".join(f"{mark}{item}" for item in items)
    if before and kinds_before != {each.kind for each in gres_list(gres)}:
        raise LeftToSlurmError("Slurm does not exchange the GPUs that it was given before")
    return Change(
        start.job_id,
        node_list=",".join(by_node),
        gres=gres,
        admin_comment=str(noted),
        hold=False,
    )


def _shards(start: Start, node: SlurmNode) -> int:
    """How many shards stand for a part of a GPU in Slurm's accounts: rounded down, so that jobs that fit with one
    another have room there. What is enforced is the partition."""
    milli = start.share.milli
    if start.best_effort:  # compute is not promised, so that memory alone counts
        return 1
    return max(1, node.shards_a_gpu * milli // 1000)


def given_back(job_id: str, note: Note, before: str = "") -> Change:
    """The job with the request that it was submitted with, for Slurm to decide on; one that was placed `before` keeps
    the types of the GPUs or shards that it was placed on, on any node, because Slurm does not take them off again."""
    if before:
        return Change(job_id, node_list="", admin_comment="", hold=False)
    return Change(
        job_id,
        node_list="",
        gres=note.per_node or None,
        per_job=note.per_job or None,
        per_task=note.per_task or None,
        admin_comment="",
        hold=False,
    )


def taken_back(job_id: str, note: Note) -> Change:
    """The job as it waited before it was placed."""
    waits = str(replace(note, share=None, best_effort=False))
    return Change(job_id, hold=True, node_list="", admin_comment=waits)
