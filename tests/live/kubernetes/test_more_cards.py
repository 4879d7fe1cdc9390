"""What waits for room says how many more cards of each model would start it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from rich.console import Console

from berth.cli.snapshot_table import snapshot_tables
from berth.cluster import Cluster
from berth.live.driver.more_cards import more_cards
from berth.live.driver.snapshot import MoreCards
from berth.live.kubernetes.viewing import snapshot
from berth.model import GpuModel, Job, Node, Share, gang_of
from tests.live.kubernetes.steered import MODEL, bound, node, pod, steered

A100, V100 = GpuModel("A100", mem_mib=80_000), GpuModel("V100", mem_mib=16_000)
CLUSTER = Cluster([Node("a", 2, A100, 64_000, 256_000, ("zone-1",)), Node("v", 4, V100, 64_000, 256_000)])

PARTS = (300, 700, 300, 700, 400)


def job(name: str, milli: int = 1000, mem_mib: int = 0, gpus: int = 1, **asked: object) -> Job:
    return Job(name, 0, None, share=Share(milli, mem_mib), gpus=gpus, **asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waiting", "cards"),
    [
        ([], []),
        ([job("a"), job("b")], [("A100", 2, 2), ("V100", 2, 2)]),
        # 700 and 300 go together; what is left of a card is used.
        ([job(f"j{at}", milli) for at, milli in enumerate(PARTS)], [("A100", 3, 5), ("V100", 3, 5)]),
        # Memory decides where compute would have room, and which cards will do.
        ([job(f"j{at}", 100, 30_000) for at in range(5)], [("A100", 3, 5)]),
        ([job("small", 100, 1000, models=("V100",))], [("V100", 1, 1)]),
        ([job("zoned", labels=("zone-1",))], [("A100", 1, 1)]),
        # A pod of several GPUs needs different cards, and a node that has so many.
        ([job("half of two", 500, gpus=2), job("half", 500)], [("A100", 2, 2), ("V100", 2, 2)]),
        ([job("four", gpus=4)], [("V100", 4, 1)]),
        ([job("too large", 500, 90_000), job("eight", gpus=8), job("no GPU", gpus=0)], []),
        # A gang counts where all of its tasks can run.
        ([gang_of([job("t0"), job("t1")])], [("A100", 2, 2), ("V100", 2, 2)]),
        ([gang_of([job("t0", gpus=4), job("t1")])], [("V100", 5, 2)]),
        ([gang_of([job("t0", gpus=4), job("t1", models=("A100",))])], []),
    ],
)  # fmt: skip
def test_cards_of_each_model_that_would_start_what_waits(
    waiting: list[Job], cards: list[tuple[str, int, int]]
) -> None:
    assert more_cards(CLUSTER, waiting) == tuple(MoreCards(*each) for each in cards)


def test_pods_that_wait_for_room_are_told_in_cards_and_held_or_impossible_ones_are_not() -> None:
    seen = steered([node("n1", 2)], [pod("runs", 2)])
    seen.pods(0, bound(seen.lifts(0)["runs"], gpus=2))
    seen.pods(
        0,
        *(pod(f"p{at}") for at in range(2)),
        pod("half", gpu_milli=500),
        pod("held", hold="true"),
        pod("too-large", gpus=3),
        pod("other-gate", gates=("berth.dev/gate", "kueue.x-k8s.io/admission")),
    )
    look = snapshot(seen.site, 1000, 1000)
    assert look.more_cards == (MoreCards(MODEL, 3, 3),)
    assert asdict(look)["more_cards"] == ({"model": MODEL, "cards": 3, "jobs": 3},)
    console = Console(width=150)
    with console.capture() as shown:
        console.print(snapshot_tables(look))
    assert f"3 more cards of model {MODEL} would start 3 jobs" in shown.get()


def test_one_card_and_one_job_are_not_several() -> None:
    assert MoreCards("A100", 1, 1).text == "1 more card of model A100 would start 1 job"
