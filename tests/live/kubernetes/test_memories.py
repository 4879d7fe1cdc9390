"""Pods that run out of GPU memory: it is recognised, told to the knowledge, and the owner's next pod gets more."""

from __future__ import annotations

import json

import msgspec
import pytest

from berth.knowledge import History
from berth.live.kubernetes import names
from berth.live.kubernetes import objects as api
from berth.live.kubernetes.pod_requests import request_of
from berth.live.kubernetes.steps import Lift, PodEvent
from berth.model import RecordState
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.steered import Steered, node, pod, steered
from tests.live.kubernetes.world import World

REFUSED = json.dumps({"peak_mib": 8_000, "refused": 3, "needed_mib": 16_000})


def of_job(
    name: str, *, on: Lift | None = None, phase: str = "Pending", measured: str = "", **said: object
) -> api.Pod:
    """A pod of the Job `train`, as it is on the cluster."""
    if on is not None:
        said = {**said, "placement": on.placement, "placed_uid": f"uid-{name}"}
    if measured:
        said["measured"] = measured
    found = pod(name, on="" if on is None else on.node, gpu_milli=200, gpu_mem_mib=8_000, **said)
    found.metadata.owner_references = [api.Owner("Job", "train", True)]
    found.status.phase = phase
    return found


def given(board: Steered, now: int) -> list[tuple[int, int]]:
    return [
        (gpu["milli"], gpu["mem_mib"])
        for step in board.lifts(now).values()
        for gpu in json.loads(step.placement)["gpus"]
    ]


def run_out(board: Steered, name: str, now: int, *, late: bool = False) -> None:
    """The pod is placed, bound and fails; its agent writes what it used, by then or afterwards."""
    board.pods(now, of_job(name))
    (bind,) = board.lifts(now).values()
    board.pods(now, of_job(name, on=bind, phase="Running"))
    if late:
        board.pods(now, of_job(name, on=bind, phase="Failed"))
    board.pods(now, of_job(name, on=bind, phase="Failed", measured=REFUSED))


@pytest.mark.parametrize("late", [False, True])
def test_the_next_pod_of_an_owner_gets_what_the_last_needed_and_at_last_gpus_alone(late: bool) -> None:
    board = steered([node("n1", 1)], [])
    run_out(board, "a", 1, late=late)
    told = board.told(2)
    assert told == [
        "it ran out of GPU memory: 3 allocations were refused at 8000 MiB; the next pod of Job/train gets 18000 MiB"
        " of each GPU"
    ]
    board.pods(3, of_job("b"))
    assert given(board, 4) == [(200, 18_000)]
    board.gone(5, of_job("b"))
    run_out(board, "c", 6, late=late)
    board.pods(7, of_job("d"))
    assert given(board, 8) == [(200, 22_500)]
    board.gone(9, of_job("d"))
    run_out(board, "e", 10, late=late)
    board.pods(11, of_job("f"))
    assert given(board, 12) == [(1000, 81_920)]
    other = pod("other", gpu_milli=200, gpu_mem_mib=8_000)
    board.gone(13, of_job("f"))
    board.pods(14, other)
    assert given(board, 15) == [(200, 8_000)]


@pytest.mark.parametrize("late", [False, True])
def test_the_knowledge_learns_that_it_ran_out(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    ended: list[RecordState] = []
    monkeypatch.setattr(History, "ran_out_of_memory", lambda self, job, held_mib: told.append(held_mib))
    real = History.observe

    def observe(self: History, record: object) -> None:
        ended.append(record.state)  # type: ignore[attr-defined]
        real(self, record)  # type: ignore[arg-type]

    monkeypatch.setattr(History, "observe", observe)
    board = steered([node("n1", 1)], [], knowledge="history")
    run_out(board, "a", 1, late=late)
    board.steps(2)
    assert told == [16_000]
    assert ended == [RecordState.FAILED if late else RecordState.OUT_OF_MEMORY]


def test_it_is_known_after_a_restart_from_the_pods_that_are_there() -> None:
    (bind,) = steered([node("n1", 1)], [of_job("a")]).lifts(1).values()
    failed = of_job("a", on=bind, phase="Failed", measured=REFUSED)
    board = steered([node("n1", 1)], [failed, of_job("b")])
    assert given(board, 2) == [(200, 18_000)]


def test_pods_that_wait_already_get_more() -> None:
    board = steered([node("n1", 1)], [])
    board.pods(1, of_job("a"))
    (bind,) = board.lifts(1).values()
    blocker = pod("blocker")
    board.pods(2, blocker)
    board.pods(2, of_job("b", version=2))
    assert given(board, 3) == []
    board.pods(4, of_job("a", on=bind, phase="Failed", measured=REFUSED))
    board.gone(5, blocker)
    assert given(board, 6) == [(200, 18_000)]


def test_more_than_any_card_has_is_a_whole_card() -> None:
    board = steered([node("n1", 1)], [])
    much = json.dumps({"peak_mib": 80_000, "refused": 1, "needed_mib": 100_000})
    board.pods(1, of_job("a"))
    (bind,) = board.lifts(1).values()
    board.pods(2, of_job("a", on=bind, phase="Failed", measured=much), of_job("b"))
    assert given(board, 3) == [(1000, 81_920)]


@pytest.mark.parametrize("measured", ["{", "[]", '{"refused":-1}', '{"refused":1,"peak_mib":1e99}', ""])
def test_what_makes_no_sense_is_no_measurement(measured: str) -> None:
    board = steered([node("n1", 1)], [])
    board.pods(1, of_job("a", phase="Failed", measured=measured or "x"))
    board.pods(2, of_job("b"))
    assert given(board, 3) == [(200, 8_000)]


def test_a_container_over_its_own_limit_is_told_so_and_gets_no_more_of_the_gpu() -> None:
    board = steered([node("n1", 1)], [of_job("a")])
    (bind,) = board.lifts(1).values()
    board.pods(1, of_job("a", on=bind, phase="Running"))
    failed = of_job("a", on=bind, phase="Failed")
    status = {"state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}
    failed.status.container_statuses = [
        msgspec.json.decode(msgspec.json.encode(status), type=api.ContainerStatus)
    ]
    board.pods(2, failed)
    board.pods(3, of_job("b"))
    steps = board.steps(4)
    assert [
        "raise resources.limits.memory" in step.message for step in steps if isinstance(step, PodEvent)
    ] == [True]
    board.pods(5, failed)
    assert [step for step in board.steps(6) if isinstance(step, PodEvent)] == []  # reported once
    assert [json.loads(step.placement)["gpus"][0]["mem_mib"] for step in steps if isinstance(step, Lift)] == [
        8_000
    ]


def test_a_pod_is_known_by_its_application_else_its_kind_else_its_controller() -> None:
    bare, owned = pod("a"), of_job("b")
    assert (request_of(bare).application, request_of(bare).owner) == ("", "")
    assert (request_of(owned).application, request_of(owned).owner) == ("n/Job/train", "Job/train")
    owned.metadata.annotations[names.KIND] = "ML"
    assert (request_of(owned).application, request_of(owned).owner) == ("ML", "Job/train")
    owned.metadata.annotations[names.APPLICATION] = "resnet50"
    assert (request_of(owned).application, request_of(owned).owner) == ("n/resnet50", "resnet50")


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_on_a_real_server_the_next_pod_of_an_application_gets_more(play: Played) -> None:
    async def test(world: World) -> None:
        said = {names.APPLICATION: "resnet50"}
        await world.node("n1", 1)
        await world.pod("first", milli=200, mem=8_000, annotations=said)
        async with world.steerer(knowledge="history"):
            await world.until_bound("first")
            await world.ended("first", "Failed")
            path = "/api/v1/namespaces/default/pods/first"
            await world.patch(path, {"metadata": {"annotations": {names.MEASURED: REFUSED}}})
            assert "gets 18000 MiB" in await world.until_event("OutOfMemory", "first")
            await world.pod("second", milli=200, mem=8_000, annotations=said)
            await world.until_bound("second")
        placed = json.loads((await world.pods())["second"]["metadata"]["annotations"][names.PLACEMENT])
        assert placed["gpus"][0]["mem_mib"] == 18_000

    play(test)
