"""The lower bound of each set of jobs of the co-location experiment, kept beside its runs.

A bound that is kept counts for the jobs, the card, the model of interference and the version of the program that it was
made with, which its name tells by a digest; others are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path

from berth.experiments.compare.kept import interference_digest
from berth.experiments.compare.kept_file import digest_of
from berth.files import whole_file
from berth.interference.profiled import ProfiledInterference
from berth.model import GpuModel, Job
from berth.policies import Progress
from berth_papers.bounds import TimeBound, time_bound

SEGMENTS = 40
"""Kinds of moments at most: with more the bound hardly rises."""

Key = tuple[str, int]
"""Workload and seed."""


def kept_bounds(
    sets: Mapping[Key, Sequence[Job]],
    model: ProfiledInterference,
    gpu: GpuModel,
    folder: Path,
    processes: int,
    progress: Progress | None,
) -> dict[Key, TimeBound]:
    """The bound of each set on one such GPU; none at all where HiGHS (extra `optimum`) is not installed."""
    try:
        import highspy  # noqa: F401
    except ImportError:
        return {}
    places = {key: _place(folder, key, jobs, model, gpu) for key, jobs in sets.items()}
    found = {
        key: TimeBound(**json.loads(path.read_text(encoding="utf-8")))
        for key, path in places.items()
        if path.is_file()
    }
    missing = [key for key in sets if key not in found]
    if progress and missing:
        progress(len(found), len(sets))  # the first takes a while
    work = [(tuple(sets[key]), model, gpu) for key in missing]

    def note(key: Key, bound: TimeBound) -> None:
        found[key] = bound
        places[key].parent.mkdir(parents=True, exist_ok=True)
        with whole_file(places[key]) as temporary:
            temporary.write_text(json.dumps(asdict(bound)), encoding="utf-8")
        if progress:
            progress(len(found), len(sets))

    if processes == 1 or len(work) < 2:
        for key, one in zip(missing, work, strict=True):
            note(key, _bound(one))
    else:
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for key, bound in zip(missing, pool.map(_bound, work), strict=True):
                note(key, bound)
    return {key: found[key] for key in sets}


def _place(folder: Path, key: Key, jobs: Sequence[Job], model: ProfiledInterference, gpu: GpuModel) -> Path:
    mark = digest_of([repr(job) for job in jobs], repr(gpu), interference_digest(model), SEGMENTS)[:12]
    return folder / key[0] / f"bound.{key[1]}.{mark}.json"


def _bound(work: tuple[Sequence[Job], ProfiledInterference, GpuModel]) -> TimeBound:
    jobs, model, gpu = work
    return time_bound(jobs, model.profiles, model.speeds, gpu, segments=SEGMENTS)
