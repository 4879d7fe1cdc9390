"""Gangs under the published genetic algorithm: its fitness is what can be carried out."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from berth.cluster import Cluster
from berth.model import Job, Placement, Share
from berth.policies.genetic.batch import batch_of, pooled
from berth_papers.genetic.policy import PaperSettings, evolve_paper, fitness_of
from tests.policies.genetic.test_gangs import gang, nodes


def test_the_papers_fitness_of_a_gang_is_that_of_taking_all_or_nothing() -> None:
    cluster = Cluster(nodes(2, 2))
    jobs = [Job("one", 0, 1, gpus=1), gang("pair", 2, 2), gang("twice", 2, 1, milli=500)]
    batch = batch_of([jobs[0], jobs[2]], cluster)
    # 4 GPUs: one whole, and half of one on each node; on one node alone the gang has no place.
    assert fitness_of(batch, np.array([[0, 0, 1], [0, 1, 0], [0, 1, 1]])) == pytest.approx(
        [2 / 4, 2 / 4, 1 / 4 - 2]
    )
    full = batch_of(jobs[:2], cluster)
    assert fitness_of(full, np.array([[0, 0, 1]])) == pytest.approx([1 / 4 - 2])
    assert evolve_paper(full, PaperSettings(generations=3)).fitness == pytest.approx(1 / 4 - 2)


def test_fitness_with_gangs_is_what_can_be_carried_out() -> None:
    draw = random.Random(4)
    cluster = Cluster(nodes(2, 4, 1, 2, cpu_milli=9_000))
    jobs = [
        Job(
            f"j{at}",
            0,
            1,
            gpus=(over := draw.choice([1, 1, 2, 3])) * draw.choice([1, 2]),
            nodes=over,
            share=Share(draw.choice([250, 600, 1000])),
            cpu_milli=over * draw.choice([0, 2_000]),
        )
        for at in range(8)
    ]
    batch = batch_of(jobs, cluster)
    starts, candidates = batch.candidates()
    options = [candidates[starts[kind] : starts[kind + 1]].tolist() for kind in batch.type_of.tolist()]
    genes = np.array([[draw.choice(choice) for choice in options] for _ in range(200)])
    for row, fitness in zip(genes, fitness_of(batch, genes), strict=True):
        tried = Cluster(cluster.nodes)
        placed = misfits = 0
        for at in np.flatnonzero(batch.parts).tolist():
            job, count = batch.jobs[at], int(batch.parts[at])
            where = [int(batch.nodes[node]) for node in row[at : at + count]]
            fits = len(set(where)) == count and set(where) <= set(tried.fitting_nodes(job).tolist())
            if not fits:
                misfits += count
                continue
            slots = itertools.chain(*(tried.slots_on(node, job, tightest=True) for node in where))
            tried.place(Placement(job, tuple(slots), job.share))
            placed += job.gpus * job.share.milli
        assert fitness == pytest.approx(placed / 9_000 - misfits)


def test_on_pooled_gpus_a_gang_is_one_instance() -> None:
    jobs, cluster = [gang("pair", 2, 1), Job("one", 0, 1)], Cluster(nodes(1, 1, 1))
    batch, one = batch_of(jobs, cluster), pooled(jobs, cluster)
    assert (len(batch.jobs), len(one.jobs)) == (3, 2)
    assert fitness_of(one, np.zeros((1, 2), dtype=np.int64)) == pytest.approx([1.0])
