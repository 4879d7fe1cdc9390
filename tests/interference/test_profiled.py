"""The simulator under profiles: rows in order, speeds that change with them, memory that runs out."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berth import Cluster, Job, Node, Share, simulate
from berth.errors import SettingError
from berth.interference import Outlook, Tenant, make_interference, make_speeds
from berth.interference.contention import Contention, cells_of
from berth.interference.profiled import ProfiledInterference, thesis_mps
from berth.interference.speeds import unhindered
from berth.model import FOREVER_MS, EventKind, GpuModel, Profile
from berth.profiles import THESIS_GPU, Profiles, thesis_profiles, workload_jobs

CARD = GpuModel("card", "", 1_000, 1_000, 1_000)
ONE_CARD = Cluster([Node("node", 1, CARD)])


def profile(name: str, rows: list[tuple[int, int]], interval_ms: int = 1000) -> Profile:
    """Rows of GPU per mille and MiB."""
    usage = np.array([[gpu / 1000, mem / 1000, gpu / 2000, 0] for gpu, mem in rows])
    return Profile(name, "", 0, "", CARD, interval_ms, usage)


def job(name: str, seconds: int, at_ms: int = 0, **more: int) -> Job:
    return Job(f"{name}@{at_ms}", at_ms, seconds * 1000, application=name, share=Share(250, 0), **more)


def half(usage: np.ndarray, present: np.ndarray, capacity_mem_mib: int, *, xp: object = np) -> np.ndarray:
    """Half speed beside anybody who uses the GPU."""
    busy = (usage[..., 0] > 0) & present
    others = busy.sum(axis=-1, keepdims=True) - busy
    return np.where(present, np.where(busy & (others > 0), 500, 1000), 0).astype(np.int32)


def log(events: object) -> list[tuple[int, str, str, str]]:
    return [(e.time_ms, e.job.id, str(e.kind), str(e.reason)) for e in events if e.kind != EventKind.SUBMIT]


def test_speeds_change_where_a_tenant_enters_its_next_row() -> None:
    profiles = Profiles([profile("a", [(500, 0), (0, 0)]), profile("b", [(500, 0)] * 4)])
    model = ProfiledInterference(profiles, half)
    a, b = job("a", 2), job("b", 4)
    assert model([Tenant(a, a.share, 0), Tenant(b, b.share, 0)], CARD) == Outlook((500, 500), 2_000)
    assert model([Tenant(a, a.share, 999, 999), Tenant(b, b.share, 0)], CARD) == Outlook((500, 500), 1)
    assert model([Tenant(a, a.share, 1_000), Tenant(b, b.share, 999)], CARD) == Outlook((1000, 1000), 1)
    assert model([Tenant(b, b.share, 3_500)], CARD) == Outlook((1000,), FOREVER_MS)
    # a: one second of work at half speed, then one that does not use the GPU; b: 1 s at half, 3 s alone
    assert log(simulate([a, b], ONE_CARD, "first-fit", interference=model)) == [
        (0, "a@0", "start", ""),
        (0, "b@0", "start", ""),
        (3_000, "a@0", "finish", ""),
        (5_000, "b@0", "finish", ""),
    ]


def test_who_crosses_the_memory_fails_and_is_queued_again() -> None:
    profiles = Profiles(
        [profile("grows", [(0, 100), (0, 300), (0, 600), (0, 700)]), profile("still", [(0, 500)] * 3)]
    )
    model = ProfiledInterference(profiles, unhindered)
    events = simulate([job("grows", 4), job("still", 3)], ONE_CARD, "first-fit", interference=model)
    assert log(events) == [
        (0, "grows@0", "start", ""),
        (0, "still@0", "start", ""),
        (2_000, "grows@0", "fail", "out-of-memory"),  # 600 beside 500
        (2_000, "grows@0", "start", ""),
        (3_000, "still@0", "finish", ""),
        (6_000, "grows@0", "finish", ""),
    ]


def test_a_newcomer_that_does_not_fit_fails_at_once_until_its_retries_are_used_up() -> None:
    profiles = Profiles([profile("big", [(0, 700)] * 5)])
    model = ProfiledInterference(profiles, unhindered)
    jobs = [job("big", 5), job("big", 5, 1_500, retries=1)]
    assert log(simulate(jobs, ONE_CARD, "first-fit", interference=model)) == [
        (0, "big@0", "start", ""),
        (1_500, "big@1500", "start", ""),
        (1_500, "big@1500", "fail", "out-of-memory"),
        (1_500, "big@1500", "start", ""),
        (1_500, "big@1500", "fail", "out-of-memory"),
        (5_000, "big@0", "finish", ""),
    ]


def test_an_application_without_a_profile_needs_the_whole_gpu() -> None:
    profiles = Profiles([profile("a", [(500, 400)])])
    model = ProfiledInterference(profiles, make_speeds("time-sliced"))
    known, unknown = job("a", 1), replace(job("mine", 1), share=Share(250, 601))
    whole = ProfiledInterference(
        Profiles([*profiles.values(), profile("mine", [(1000, 601)])]), make_speeds("time-sliced")
    )
    found = model([Tenant(known, known.share, 0), Tenant(unknown, unknown.share, 0)], CARD)
    assert found.out_of_memory == 1
    assert (
        found.speeds_milli
        == whole([Tenant(known, known.share, 0), Tenant(unknown, unknown.share, 0)], CARD).speeds_milli
    )
    assert model([Tenant(unknown, unknown.share, 0)], None) == Outlook((1000,))


def test_pairs_known_by_name_alone_are_as_gavel_measured_them() -> None:
    model = make_interference("mps")
    v100 = GpuModel("V100", "Volta", 16_384, 5_120, 15_754)
    tenants = [
        Tenant(Job(f"{at}", 0, 1, application=name), Share(), 0)
        for at, name in enumerate(("ResNet-18 (batch size 16)", "A3C"))
    ]
    assert isinstance(model, ProfiledInterference)
    assert model.named is not None
    assert model(tenants, v100).speeds_milli == model.named.speeds_milli(
        ("ResNet-18 (batch size 16)", "A3C"), "V100"
    )


def test_a_fitted_file_tells_the_speeds_of_applications_that_it_names(tmp_path: Path) -> None:
    profiles = Profiles([profile(name, [(500, 0)]) for name in "abc"])
    centre = cells_of(np.array([[500, 0, 250, 0]], np.int32))
    stress, named = np.array([[250]], np.int32), np.array([[1000]], np.int32)
    fitted = Contention("mps", 700, centre, stress, {"a": 0, "b": 0}, named)
    (tmp_path / "mine.json").write_text(fitted.to_json())
    model = make_interference(f"{tmp_path / 'mine.json'}", profiles)

    def speeds(names: str) -> tuple[int, ...]:
        tenants = [Tenant(job(name, 1, at), Share(250, 0), 0) for at, name in enumerate(names)]
        return model(tenants, CARD).speeds_milli

    assert speeds("ab") == (500, 500)
    assert speeds("ac") == speeds("cc") == (800, 800)  # of these their use alone is known
    assert speeds("abc") == (444, 444, 666)
    assert speeds("a") == (1000,)
    assert pickle.loads(pickle.dumps(model))([Tenant(job("a", 1), Share(250, 0), 0)], CARD).speeds_milli == (
        1000,
    )
    assert repr(model) != repr(ProfiledInterference(profiles, replace(fitted, names={})))


APPLICATIONS = st.lists(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=3),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("name", ["mps", "time-sliced"])
@given(series_of=APPLICATIONS, gap_ms=st.integers(0, 1_700))
@example(
    series_of=[[(437, 924), (0, 0), (0, 723)], [(0, 278), (0, 0), (0, 77)]], gap_ms=0
)  # by turns, for ever
def test_every_job_ends_once_or_uses_up_its_tries_and_no_sooner_than_alone(
    name: str, series_of: list[list[tuple[int, int]]], gap_ms: int
) -> None:
    # Without memory in its first second, nobody fails at the instant at which it starts.
    made = [profile(f"app{at}", [(100, 0), *rows]) for at, rows in enumerate(series_of)]
    jobs = [job(one.application, len(one.usage), at * gap_ms, retries=60) for at, one in enumerate(made)]
    model = ProfiledInterference(Profiles(made), make_speeds(name))
    running: dict[str, int] = {}
    ended = []
    for event in simulate(jobs, ONE_CARD, "first-fit", interference=model):
        if event.kind == EventKind.START:
            running[event.job.id] = event.time_ms
        elif event.kind == EventKind.FAIL:
            assert event.time_ms - running.pop(event.job.id) >= 1_000
            if event.attempt == 61:
                ended.append(event.job.id)
        elif event.kind == EventKind.FINISH:
            assert event.time_ms - running.pop(event.job.id) >= event.job.work_ms
            ended.append(event.job.id)
    assert sorted(ended) == sorted(one.id for one in jobs)


@pytest.mark.parametrize("name", ["mps", "time-sliced"])
def test_a_registered_model_knows_the_thesis_s_applications(name: str) -> None:
    jobs = [replace(one, share=Share(500, 0)) for one in workload_jobs("GPU_light", seed=1)]
    cluster = Cluster([Node("node", 1, THESIS_GPU)])
    end_ms = list(simulate(jobs, cluster, "first-fit", interference=make_interference(name)))[-1].time_ms
    alone_ms = sum(one.work_ms for one in jobs)
    assert alone_ms / 2 < end_ms < 0.6 * alone_ms  # the thesis: 1,214 s of 2,295


def test_other_profiles_take_the_place_of_the_thesis_s() -> None:
    mine = Profiles([profile("vgg16", [(1, 1)])])
    model = make_interference("mps", mine)
    assert isinstance(model, ProfiledInterference)
    assert model.profiles is mine
    assert repr(model) != repr(make_interference("mps"))
    again = pickle.loads(pickle.dumps(model))
    assert repr(again) == repr(model)
    one = job("vgg16", 1)
    assert again([Tenant(one, one.share, 0)], CARD) == model([Tenant(one, one.share, 0)], CARD)
    with pytest.raises(
        SettingError, match="no interference model 'fast'; there are none, time-sliced, mps, mig"
    ):
        make_interference("fast", thesis_profiles())


def test_nothing_is_read_or_made_before_it_is_asked_for() -> None:
    asked = (
        "from berth.interference.mps import mps\n"
        "from berth.interference.named import published_names\n"
        "from berth.interference.profiled import thesis_mps, thesis_time_sliced\n"
        "for made in (mps, published_names, thesis_mps, thesis_time_sliced):\n"
        "    assert made.cache_info().currsize == 0, made\n"
        "    assert made() is made()\n"
    )
    subprocess.run([sys.executable, "-c", asked], check=True)


def test_a_model_tells_whether_it_knows_pairs_by_name() -> None:
    known = thesis_mps()
    without = ProfiledInterference(known.profiles, known.speeds)
    assert known.named is not None
    assert repr(known) == repr(without)[:-1] + f", {known.named})"
