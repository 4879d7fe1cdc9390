"""What a profile says is enough: told to pods that ask for more, or given to them if the operator wants that."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from berth.knowledge import History
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.names import application_of, controller_name
from berth.live.kubernetes.steps import Lift
from berth.live.kubernetes.viewing import look, snapshot
from berth.model import GpuModel, Job, Profile, Share
from berth.profiles import keep_profile
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.steered import CARD_MIB, MODEL, Steered, bound, indices, node, pod, steered
from tests.live.kubernetes.world import World

POLICY = "easy+priority+best-fit"
ENOUGH = "300 milli and 9792 MiB"
"""Of 0.28 of the compute, and of 8,192 MiB seen once: a sixteenth more, and an eighth."""


def profile(application: str = "n/Job/train", *, model: str = MODEL, mem_mib: int = CARD_MIB) -> Profile:
    usage = np.tile([0.3, 8192 / mem_mib, 0.28, 0.0], (20, 1))
    return Profile(application, "live", 0, "", GpuModel(model, mem_mib=mem_mib), 1000, usage)


def board_of(right_size: str, *pods: api.Pod, known: Profile | None = None) -> Steered:
    kept = profile() if known is None else known
    knowledge = History(profiles={kept.application: kept})
    return steered([node(gpus=2)], pods, knowledge, policy=POLICY, right_size=right_size)


def parts(lift: Lift) -> list[tuple[int, int]]:
    return [(gpu["milli"], gpu["mem_mib"]) for gpu in json.loads(lift.placement)["gpus"]]


@pytest.mark.parametrize(("right_size", "told"), [("off", None), ("advise", ENOUGH)])
def test_without_the_operators_consent_a_pod_gets_what_it_asks_for(right_size: str, told: str | None) -> None:
    board = board_of(right_size, pod("a", owner="Job/train"), pod("b", owner="Job/train"))
    lifts = board.lifts(1)
    assert [(parts(lift), lift.enough) for lift in lifts.values()] == [([(1000, CARD_MIB)], told)] * 2
    assert sorted(indices(lift)[0] for lift in lifts.values()) == [0, 1]


def test_with_it_pods_get_what_is_enough_and_are_counted_so_after_a_restart() -> None:
    waiting = [pod(f"p{at}", owner="Job/train", version=at) for at in range(7)]
    board = board_of("apply", *waiting)
    lifts = board.lifts(1)
    assert len(lifts) == 6  # three on each GPU
    assert {(*parts(lift), lift.enough) for lift in lifts.values()} == {((300, 9792), ENOUGH)}
    again = board_of("apply", *(bound(lift, owner="Job/train") for lift in lifts.values()), waiting[-1])
    assert not again.lifts(2)
    (one, *_) = again.cluster.running.values()
    assert one.share == Share(300, 9792)
    assert not again.driver.unplaced


@pytest.mark.parametrize("right_size", ["off", "advise", "apply"])
def test_pods_that_got_what_is_enough_count_so_for_every_reader_and_after_the_option_changed(
    right_size: str,
) -> None:
    waiting = [pod(f"p{at}", owner="Job/train", version=at) for at in range(4)]
    waiting.append(
        pod("old", on="n1", owner="Job/train", version=9)
    )  # kube-scheduler bound it without a part
    steps = board_of("apply", *waiting).steps(1)
    assert {step.enough for step in steps if isinstance(step, Lift)} == {ENOUGH}
    there = [bound(step, owner="Job/train") for step in steps if isinstance(step, Lift)]
    tenants = [
        each for gpu in snapshot(board_of(right_size, *there).site, 1000, 10).gpus for each in gpu.tenants
    ]
    assert sorted((each.job, each.milli, each.mem_mib) for each in tenants) == [
        (f"n/{name}", 300, 9792) for name in ("old", "p0", "p1", "p2", "p3")
    ]


def test_a_pod_that_asks_for_less_or_runs_on_another_card_gets_what_it_asks_for() -> None:
    small = pod("small", owner="Job/train", gpu_milli=100, gpu_mem_mib=4096)
    (lift,) = board_of("apply", small).lifts(1).values()
    assert (parts(lift), lift.enough) == ([(100, 4096)], None)
    (lift,) = (
        board_of("apply", pod("a", owner="Job/train"), known=profile(model="V100", mem_mib=32_768))
        .lifts(1)
        .values()
    )
    assert (parts(lift), lift.enough) == ([(1000, CARD_MIB)], None)


def test_pods_that_wait_get_what_is_enough_when_it_becomes_known() -> None:
    knowledge = History()
    board = steered(
        [node(gpus=1)],
        [pod(f"p{at}", owner="Job/train", version=at) for at in range(3)],
        knowledge,
        policy=POLICY,
        right_size="apply",
    )
    (first,) = board.lifts(1).values()
    board.pods(2, bound(first, owner="Job/train"))
    knowledge.recorded(profile())
    board.site.profiles_grew()
    board.gone(3, bound(first, owner="Job/train"))
    assert {(*parts(lift), lift.enough) for lift in board.lifts(4).values()} == {((300, 9792), ENOUGH)}


def test_pods_that_came_before_the_nodes_get_what_is_enough() -> None:
    board = steered([], [], History(profiles={"n/Job/train": profile()}), policy=POLICY, right_size="apply")
    board.pods(0, *(pod(f"p{at}", owner="Job/train", version=at) for at in range(3)))
    board.nodes(0, node(gpus=1))
    assert [parts(lift) for lift in board.lifts(1).values()] == [[(300, 9792)]] * 3


def test_policies_are_shown_no_profile_and_run_times_stay_known() -> None:
    knowledge = History(profiles={"n/Job/train": profile()})
    job = Job("a", 0, None, application="n/Job/train", gpus=1)
    before = knowledge.run_ms(job)
    knowledge.show_no_profiles()
    assert (dict(knowledge.profiles), knowledge.profile(job, None), knowledge.run_ms(job)) == (
        {},
        None,
        before,
    )
    knowledge.renew(History(profiles={"n/other": profile("n/other")}))
    assert dict(knowledge.profiles) == {}


@pytest.mark.parametrize(
    ("annotations", "controller", "application"),
    [
        ({}, "", ""),
        ({}, controller_name("Job", "nightly-29012345"), "team/Job/nightly"),
        ({}, controller_name("ReplicaSet", "web-7c9f8d6b5"), "team/ReplicaSet/web"),
        ({}, controller_name("ReplicaSet", "model-trainer"), "team/ReplicaSet/model-trainer"),
        ({}, controller_name("StatefulSet", "db-12345678"), "team/StatefulSet/db-12345678"),
        ({names.APPLICATION: "resnet"}, "Job/x", "team/resnet"),
        ({names.KIND: "ML"}, "Job/x", "ML"),
    ],
)
def test_an_application_is_one_of_its_namespace_over_all_runs_of_its_controller(
    annotations: dict[str, str], controller: str, application: str
) -> None:
    assert application_of("team", annotations, controller) == application


def test_why_says_what_would_have_been_enough() -> None:
    board = board_of("advise", pod("a", owner="Job/train"))
    (lift,) = board.lifts(1).values()
    board.pods(2, bound(lift, owner="Job/train"))
    (job,) = snapshot(board.site, 1000, 10).jobs
    assert job.why == f"{ENOUGH} are enough by its profile"


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_on_a_real_server_a_pod_carries_what_is_enough(play: Played, tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    keep_profile(profile("default/train"), tmp_path / "profiles")

    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("a", annotations={names.APPLICATION: "train"})
        options = {"policy": POLICY, "knowledge": f"history?begin={tmp_path}"}
        async with world.steerer(right_size="advise", **options):
            await world.until_bound("a")
            assert f"{ENOUGH} are enough by its profile" in await world.until_event("Placed", "a")
        said = (await world.pods())["a"]["metadata"]["annotations"]
        assert said[names.ENOUGH] == ENOUGH
        (job,) = (await look(world.api)).jobs
        assert ENOUGH in job.why
        async with world.steerer(right_size="apply", **options):
            await world.delete("a")
            for name in ("b", "c"):
                await world.pod(name, annotations={names.APPLICATION: "train"})
            await world.until_bound("b", "c")
        await world.check()

    play(test)
