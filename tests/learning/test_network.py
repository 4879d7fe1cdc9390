"""What decides is what was trained: the same numbers from NumPy and JAX, and files that are whole or refused."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from berth.arrays import BoolArray
from berth.errors import ModelError
from berth.interference import Speeds, make_speeds
from berth.learning.jobsets import JobSets, thesis_sets, thesis_task
from berth.learning.queue_kernels import NONE, SEEN
from berth.learning.rollouts import Rollouts
from berth.network.catalogue import NEVER_MS, Catalogue
from berth.network.combinations import combinations
from berth.network.features import (
    COMBINATION_FEATURES,
    JOB_FEATURES,
    LONG_MS,
    Features,
    Int32,
    Scene,
    features,
)
from berth.network.model_file import Model, archive_bytes, model_bytes, read_model
from berth.network.scores import new_network, scores
from tests.learning.plain_features import combination_features, job_features

MODEL = Model(new_network(3), "rollouts", 5, 32, 5000, ("measured",), ("random",), figures={"seed": 3.0})


def moments(mode: str, horizon: int, step_ms: int) -> Iterator[Scene]:
    """What the network is shown of six queues at their beginning and later, when jobs run beside one another."""
    task = thesis_task(horizon=horizon, step_ms=step_ms)
    rollouts = Rollouts(task, make_speeds(mode))
    worlds = rollouts.begin(thesis_sets(task, "random", 0, 6, jobs=12))
    for turn in range(4):
        yield rollouts.scene(worlds, task.catalogue())
        allowed = worlds.allowed[:, ::-1] if turn % 2 else worlds.allowed
        first = allowed.argmax(axis=1)
        action = allowed.shape[1] - 1 - first if turn % 2 else first
        worlds = rollouts.advance(worlds, np.where(worlds.over, NONE, action))


@pytest.mark.parametrize("mode", ["mps", "time-sliced"])
@pytest.mark.parametrize(("horizon", "step_ms"), [(32, 5000), (8, 20_000)])
def test_the_compiled_features_are_those_of_the_definition(mode: str, horizon: int, step_ms: int) -> None:
    speeds, members = make_speeds(mode), combinations(SEEN)
    beside = slowed = 0
    for scene in moments(mode, horizon, step_ms):
        found = checked(scene, members, speeds)
        beside += int((found.present.sum(axis=-1) > 2).sum())
        slowed += int((found.combination[..., 7] < 1).sum())
    assert beside
    assert slowed


def checked(scene: Scene, members: BoolArray, speeds: Speeds) -> Features:
    """The features, which are those of the definition."""
    found = features(scene, members, speeds)
    assert found.job.shape[-1] == JOB_FEATURES
    assert found.combination.shape[-1] == COMBINATION_FEATURES
    cells = np.concatenate([scene.running, scene.waiting], axis=1)
    left_ms = np.concatenate([scene.running_left_ms, scene.waiting_left_ms], axis=1)
    each = np.broadcast_to(members, (len(cells), *members.shape[-2:]))
    for row in range(len(cells)):
        jobs = [
            job_features(*one, scene.step_ms, int(scene.mem_mib[row]))
            for one in zip(cells[row], left_ms[row].tolist(), strict=True)
        ]
        np.testing.assert_allclose(found.job[row], jobs, rtol=1e-5, atol=1e-6)
        plain = [combination_features(scene, row, member, speeds) for member in each[row]]
        np.testing.assert_allclose(found.combination[row], plain, rtol=1e-5, atol=1e-6)
        there = left_ms[row] > 0
        runs = np.ones((each.shape[1], scene.running_left_ms.shape[1]), np.bool_)
        assert np.array_equal(found.present[row], np.hstack([runs, each[row]]) & there)
        assert np.array_equal(found.waiting[row], scene.waiting_left_ms[row] > 0)
    return found


@pytest.mark.parametrize(("scenes", "tenants", "horizon"), [(0, 2, 8), (1, 0, 1), (5, 3, 8), (4, 6, 40)])
def test_services_unknown_cards_and_members_of_each_scene_are_those_of_the_definition(
    scenes: int, tenants: int, horizon: int
) -> None:
    draw = np.random.default_rng(scenes)
    step_ms, waiting = 20_000, 4

    def drawn(jobs: int) -> tuple[Int32, Int32, Int32, Int32]:
        shape = scenes, jobs
        left_ms = draw.integers(1, 400_000, shape)
        longest = draw.choice([0, LONG_MS - 1, LONG_MS, NEVER_MS - 1], shape)  # none, long, and a service's
        left_ms = np.where(draw.random(shape) < 0.5, longest, left_ms)
        cells = draw.integers(0, 1000, (*shape, horizon, 4))
        cells[..., 1] *= 8
        cells *= (np.arange(horizon) * step_ms < left_ms[..., None])[..., None]
        same_ms = np.where(draw.random(shape) < 0.5, draw.integers(1, 200_000, shape), NEVER_MS)
        parts = cells, cells[:, :, 0], same_ms, left_ms
        return tuple(part.astype(np.int32) for part in parts)

    behind = draw.integers(0, 50, scenes).astype(np.int32), np.full(scenes, 2**31 - 1, np.int32)
    mem_mib = np.where(np.arange(scenes) % 2, 12_288, NEVER_MS).astype(np.int32)
    scene = Scene(*drawn(tenants), *drawn(waiting), *behind, mem_mib, step_ms)
    for mode in ("mps", "time-sliced"):
        checked(scene, draw.random((scenes, 7, waiting)) < 0.5, make_speeds(mode))


def test_numpy_and_jax_score_the_same() -> None:
    network, speeds = new_network(1), make_speeds("time-sliced")
    compiled = jax.jit(lambda given: scores(network, given, jnp))
    for scene in moments("time-sliced", 32, 5000):
        seen = features(scene, combinations(SEEN), speeds)
        np.testing.assert_allclose(np.asarray(compiled(seen)), scores(network, seen, np), atol=1e-4)


def test_combinations_of_another_number_of_jobs_are_refused() -> None:
    scene = next(moments("mps", 32, 5000))
    with pytest.raises(ValueError, match="broadcast"):
        features(scene, combinations(SEEN - 1), make_speeds("mps"))


def test_the_order_of_the_waiting_jobs_changes_no_score() -> None:
    task = thesis_task(horizon=32, step_ms=5000)
    rollouts = Rollouts(task, make_speeds("time-sliced"))
    jobs, network = thesis_sets(task, "random", 5, 1), new_network(2)
    members = combinations(SEEN)

    def scored(order: list[int]) -> np.ndarray:
        turned = JobSets(
            *(np.concatenate([part[:, :SEEN][:, order], part[:, SEEN:]], axis=1) for part in jobs)
        )
        scene = rollouts.scene(rollouts.begin(turned), task.catalogue())
        return np.asarray(scores(network, features(scene, members, rollouts.speeds), np))[0]

    order = [2, 0, 1, 4, 3]
    straight, turned = scored([0, 1, 2, 3, 4]), scored(order)
    for action, member in enumerate(members):
        there = [order.index(slot) for slot in np.flatnonzero(member)]
        assert turned[sum(1 << slot for slot in there)] == pytest.approx(straight[action], abs=1e-4)


def test_a_model_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(MODEL))
    assert model_bytes(MODEL) == path.read_bytes()
    found = read_model(path)
    assert jax.tree.all(jax.tree.map(np.array_equal, found.network, MODEL.network))
    assert (found.learner, found.slots, found.horizon, found.step_ms) == ("rollouts", 5, 32, 5000)
    assert (found.interference, found.workloads, found.figures) == (("measured",), ("random",), {"seed": 3.0})


def damaged(what: str) -> bytes:
    whole = model_bytes(MODEL)
    if what == "truncated":
        return whole[: len(whole) // 2]
    if what == "text":
        return b"not a model\n"
    if what == "bits":
        middle = len(whole) // 2
        return whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    arrays = {name: array for name, array in np.load(io.BytesIO(whole)).items() if name != "header"}
    header = {"format": "berth-model", "version": 1, "job_features": JOB_FEATURES}
    header["combination_features"] = COMBINATION_FEATURES
    if what == "foreign":
        return archive_bytes({"format": "other"}, arrays)
    if what == "version":
        return archive_bytes(header | {"version": 99}, arrays)
    if what == "features":
        return archive_bytes(header | {"job_features": 7}, arrays)
    if what == "header":
        return archive_bytes(header, arrays)
    if what == "sizes":
        theirs = json.loads(np.load(io.BytesIO(whole))["header"].tobytes())
        return archive_bytes(theirs | {"sizes": {"job": [], "combination": []}}, arrays)
    if what == "demand":
        theirs = json.loads(np.load(io.BytesIO(whole))["header"].tobytes())
        return archive_bytes(theirs | {"demand": ["series"]}, arrays)
    if what == "claim":
        out, member = io.BytesIO(), io.BytesIO()
        claimed = {"descr": "<f4", "fortran_order": False, "shape": (10**14,)}
        np.lib.format.write_array_header_1_0(member, claimed)
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr("job0.weight.npy", member.getvalue())
        return out.getvalue()
    if what == "encrypted":
        content = bytearray(whole)
        content[content.find(b"PK\x03\x04") + 6] |= 1
        content[content.find(b"PK\x01\x02") + 8] |= 1
        return bytes(content)
    out = io.BytesIO()
    np.savez(out, header=np.array([object()], dtype=object), allow_pickle=True)
    return out.getvalue()


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("truncated", "not a whole berth-model"),
        ("text", "not a whole berth-model"),
        ("bits", "not a whole berth-model"),
        ("foreign", "format 'other', version None; expected 'berth-model', version 1"),
        ("version", "version 99; expected 'berth-model', version 1"),
        ("features", f"sees 7 job features; expected {JOB_FEATURES}"),
        ("header", "its header is not that of a model"),
        ("pickle", "not a whole berth-model"),
        ("sizes", "its header is not that of a model"),
        ("demand", "expected one of series"),
        ("claim", "which is 400000000000000 bytes; it has 0"),
        ("encrypted", "not a whole berth-model"),
    ],
)
def test_what_is_no_model_is_refused_with_what_was_expected(tmp_path: Path, what: str, expected: str) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(damaged(what))
    with pytest.raises(ModelError, match=expected):
        read_model(path)


@pytest.mark.parametrize("change", ["shape", "type", "nan", "missing"])
def test_arrays_that_are_not_the_networks_are_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "model.npz"
    path.write_bytes(model_bytes(MODEL))
    with zipfile.ZipFile(path) as archive:
        header = archive.read("header.npy")
    arrays = dict(np.load(path).items())
    del arrays["header"]
    name = "job0.weight"
    if change == "missing":
        del arrays[name]
    else:
        arrays[name] = {
            "shape": arrays[name][:-1],
            "type": arrays[name].astype(np.float64),
            "nan": arrays[name] * np.nan,
        }[change]
    out = io.BytesIO()
    np.savez(out, **arrays)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("header.npy", header)
    path.write_bytes(out.getvalue())
    with pytest.raises(ModelError, match=r"job0\.weight|missing: job0"):
        read_model(path)


def test_a_catalogue_is_for_whole_rows_of_every_demand() -> None:
    task = thesis_task()
    lammps = task.applications.index("LAMMPS")
    series, peak, mean = (task.catalogue(demand) for demand in ("series", "peak", "mean"))
    assert isinstance(series, Catalogue)
    assert series.cells[lammps, 0].tolist()[1] < peak.cells[lammps, 0].tolist()[1] == 8499
    assert mean.cells[lammps, 0, 1] == round(float(task.series[lammps].usage[:, 1].mean()))
    assert np.array_equal(series.usage, mean.usage), "what happens does not depend on what is shown"
