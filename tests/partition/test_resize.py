"""Limits of a partition are changed under its processes, on each of its GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, Berth, Card

from berth import partition as partitions
from berth.errors import PartitionError, SettingError
from berth.partition import lifecycle


def test_a_partition_keeps_its_priority_when_it_is_resized(tmp_path: Path) -> None:
    root = tmp_path / "root"
    partitions.create("blue", CARDS[1], partitions.Limit(8192, priority="low"), root=root)
    partitions.resize("blue", core_pct=20, root=root)
    assert [one.priority for one in partitions.find("blue", root)] == ["low"]
    partitions.resize("blue", priority="high", root=root)
    assert [one.priority for one in partitions.find("blue", root)] == ["high"]
    with pytest.raises(SettingError, match="no priority 'urgent'; there are high, normal, low"):
        partitions.Limit(8192, priority="urgent")


def test_a_partition_is_made_listed_resized_and_removed(berth: Berth) -> None:
    assert berth("partition", "create", "blue", "--mem", "4G", "--core-pct", "30", "--fake-gpu")[0] == 0
    listed = json.loads(berth("partition", "list", "--json")[1])
    assert [(one["name"], one["limit_bytes"], one["core_pct"], one["used_bytes"]) for one in listed] == [
        ("blue", 4 << 30, 30, 0)
    ]
    assert berth("partition", "resize", "blue", "--mem", "2G", "--fake-gpu") == (
        0,
        "blue: 2 GiB, 0 B in use\n",
    )
    watched = berth("partition", "watch", "--times", "2", "--every", "0.1")[1].splitlines()
    assert [line.split("  ")[1:5] for line in watched] == [["blue", "b0b7bec5", "2 GiB", "0 B"]] * 2
    assert berth("partition", "remove", "blue") == (0, "")
    assert berth("partition", "remove", "blue") == (2, "berth: no partition 'blue'; there are: none\n")


def limits(root: Path) -> list[tuple[int, int, bool]]:
    return [(one.limit_bytes >> 20, one.core_pct, one.burst) for one in partitions.find("blue", root)]


def test_a_resize_of_one_limit_leaves_the_others_as_they_are_on_every_gpu(berth: Berth, card: Card) -> None:
    root = card.folder / "root"
    partitions.create("blue", CARDS[0], partitions.Limit(4096, 10), root=root)
    partitions.create("blue", CARDS[1], partitions.Limit(8192, burst=True), root=root)
    code, output = berth("partition", "resize", "blue", "--core-pct", "30", "--fake-gpu")
    assert (code, output) == (
        0,
        f"blue: 4 GiB of GPU {CARDS[0].uuid[4:]}, 0 B in use\nblue: 8 GiB of GPU {CARDS[1].uuid[4:]}, 0 B in use\n",
    )
    assert limits(root) == [(4096, 30, False), (8192, 30, True)]
    berth("partition", "resize", "blue", "--mem", "2G", "--fake-gpu")
    assert limits(root) == [(2048, 30, False), (2048, 30, True)]


def test_a_resize_that_one_gpu_has_no_room_for_changes_none(card: Card) -> None:
    root = card.folder / "root"
    for gpu in CARDS:
        partitions.create("blue", gpu, partitions.Limit(4096), root=root)
    partitions.create("red", CARDS[1], partitions.Limit(12288), root=root)
    with pytest.raises(PartitionError, match="of GPU 1, but only 4096 of"):
        partitions.resize("blue", mem_mib=5120, gpus=CARDS, root=root)
    assert limits(root) == [(4096, 0, False), (4096, 0, False)]


@pytest.mark.slow
def test_a_resize_that_cannot_ask_the_card_says_so(card: Card) -> None:
    """In a process of its own: this one has loaded the fake driver."""
    if find_library("nvidia-ml") is not None:
        pytest.skip("this machine has a driver to ask")
    partitions.create("blue", CARDS[0], partitions.Limit(64), root=card.folder / "root")

    def resize(name: str) -> subprocess.CompletedProcess[str]:
        words = ["partition", "resize", name, "--mem", "200G"]
        return subprocess.run(
            [sys.executable, "-c", "from berth.cli import main; main()", *words],
            env=os.environ | {"BERTH_ROOT": str(card.folder / "root")},
            capture_output=True,
            text=True,
            check=False,
        )

    ran = resize("blue")
    assert (ran.returncode, ran.stdout) == (0, "blue: 200 GiB, 0 B in use\n")
    assert ran.stderr.startswith(
        "berth: not checked: the limit of 200G against the GPU's memory and what others are promised of it; "
        "the reason: there is no libnvidia-ml.so.1"
    )
    ran = resize("red")
    assert (ran.returncode, ran.stderr) == (2, "berth: no partition 'red'; there are: blue\n")


def test_a_resize_of_a_card_that_is_not_listed_says_so(berth: Berth, card: Card) -> None:
    partitions.create("blue", CARDS[1], partitions.Limit(64), root=card.folder / "root")
    code, said = berth("partition", "resize", "blue", "--mem", "200G", "--fake-gpu")
    assert code == 0
    uuid = CARDS[1].uuid.removeprefix("GPU-")
    assert f"berth: not checked against the size of GPU {uuid}: NVML does not list it\n" in said


def test_a_resize_to_no_more_than_it_has_needs_no_room(berth: Berth, card: Card) -> None:
    half = ("--mem", "10G", "--core-pct", "60", "--fake-gpu")
    berth("partition", "create", "blue", *half)
    berth("partition", "create", "red", *half, "--overcommit")
    assert berth("partition", "resize", "blue", "--fake-gpu")[0] == 0
    assert berth("partition", "resize", "blue", "--mem", "9G", "--burst", "--fake-gpu")[0] == 0
    assert limits(card.folder / "root") == [(9216, 60, True)]
    assert (
        "MiB are not promised to others"
        in berth("partition", "resize", "blue", "--mem", "10G", "--fake-gpu")[1]
    )


def test_a_partition_is_resized_under_a_running_process(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    region = str(card.folder / "root" / "blue")
    running = card.start(
        "check", "resized", BERTH_REGION=region, BERTH_GPU_MEM_MIB=None, BERTH_FAKE_WATCH=None
    )
    assert running.stdout is not None
    assert running.stdin is not None
    for said, mem in (("held\n", "32M"), ("refused\n", "128M")):
        assert running.stdout.readline() == said
        assert berth("partition", "resize", "blue", "--mem", mem, "--fake-gpu")[0] == 0
        running.stdin.write("\n")
        running.stdin.flush()
    assert running.communicate() == ("", None)
    assert running.returncode == 0


def test_a_partition_is_resized_under_its_processes_and_nothing_ends(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    region = str(card.folder / "root" / "blue")
    holder = card.start("check", "hold", BERTH_REGION=region, BERTH_GPU_MEM_MIB=None)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert berth("partition", "resize", "blue", "--mem", "32M", "--fake-gpu") == (
        0,
        "blue: 32 MiB, 40 MiB in use\n",
    )
    refused = card.run("check", "linear", BERTH_REGION=region, BERTH_GPU_MEM_MIB=None)
    assert refused[0] == 1
    assert holder.poll() is None
    (blue,) = partitions.find("blue", card.folder / "root")
    assert [(one.command, one.held_bytes) for one in blue.processes] == [("check", 40 << 20)]
    assert (blue.refusals[-1].call, blue.refusals[-1].left_bytes, blue.refused) == ("cuMemAlloc", 0, 1)
    assert berth("partition", "remove", "blue")[1].startswith("berth: 1 process uses the partition 'blue'")
    assert berth("partition", "resize", "blue", "--mem", "64M", "--fake-gpu")[0] == 0
    assert holder.communicate("\n")[0] == ""
    assert holder.returncode == 0


def test_two_resizes_at_once_both_count(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads what the other changes, and is kept at that for a while."""
    root = card.folder / "root"
    partitions.create("blue", CARDS[0], partitions.Limit(4096, 10), root=root)
    look = lifecycle.partitions

    def slowly(root: Path | None = None) -> list[partitions.Partition]:
        time.sleep(0.1)
        return look(root)

    monkeypatch.setattr(lifecycle, "partitions", slowly)
    with ThreadPoolExecutor() as pool:
        memory = pool.submit(partitions.resize, "blue", mem_mib=2048, root=root)
        share = pool.submit(partitions.resize, "blue", core_pct=50, root=root)
    assert (len(memory.result()), len(share.result())) == (1, 1)
    assert limits(root) == [(2048, 50, False)]
