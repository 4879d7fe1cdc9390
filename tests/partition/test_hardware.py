"""Partitions that are instances of MIG or clients of MPS, over an NVML that can cut a card up (native/tests/fake_mig.c)
and a control daemon of MPS that is a script."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.partition.conftest import Berth, Card

from berth import partition as partitions
from berth.partition import cdi

GPU = "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219"


@pytest.fixture
def berth(berth_apart: Berth) -> Berth:
    return berth_apart


@pytest.fixture
def root(card: Card) -> Path:
    return card.folder / "root"


@pytest.fixture
def mig(monkeypatch: pytest.MonkeyPatch) -> None:
    """A card of 80 GiB whose MIG is on."""
    monkeypatch.setenv("BERTH_FAKE_MIG", "1")
    monkeypatch.setenv("BERTH_FAKE_MEM_MIB", "81920")


def made(berth: Berth, name: str, profile: str) -> dict[str, object]:
    code, said = berth("partition", "create", name, "--mig", profile, "--fake-gpu", "--json")
    assert code == 0, said
    return dict(json.loads(said))


@pytest.mark.usefixtures("mig")
def test_an_instance_is_a_partition_from_its_making_to_its_end(berth: Berth, card: Card, root: Path) -> None:
    blue = made(berth, "blue", "2g.20gb")
    assert (blue["name"], blue["limit_bytes"], blue["core_pct"]) == ("blue", 20 << 30, 0)
    (held,) = partitions.find("blue", root)
    assert held.hardware is not None
    assert (held.hardware.kind, held.hardware.profile, held.hardware.gpu) == ("mig", "2g.20gb", GPU)
    assert held.hardware.uuid.removeprefix("MIG-") == held.uuid != GPU[4:]
    assert " MIG 2g.20gb " in berth("partition", "list")[1]
    assert " MIG 2g.20gb " in berth("partition", "watch", "--times", "1")[1]
    check = str(card.native / "check")
    ran = berth("partition", "exec", "blue", "--fake-gpu", "--json", "--", check, "over")
    assert ran[0] == 0, ran[1]
    summary = json.loads(ran[1].splitlines()[-1])
    assert (summary["limit_bytes"], summary["peak_bytes"], summary["refused"]) == (20 << 30, 10 << 30, 1)
    assert berth("partition", "remove", "blue", "--fake-gpu") == (0, "")
    assert not (root / "blue").exists()
    made(berth, "whole", "7g.80gb")  # the slices came back


@pytest.mark.usefixtures("mig")
def test_as_many_instances_as_the_card_has_slices_for_and_no_more(berth: Berth, root: Path) -> None:
    for name in ("one", "two", "three"):
        made(berth, name, "2g.20gb")
    code, said = berth("partition", "create", "four", "--mig", "2g.20gb", "--fake-gpu")
    assert (
        code,
        "an instance 2g.20gb of GPU 0: NVML refuses with error 23; the GPU has no room" in said,
    ) == (2, True)
    assert not (root / "four").exists()
    made(berth, "four", "1g.10gb")
    assert len({one.uuid for one in partitions.partitions(root)}) == 4


@pytest.mark.usefixtures("mig")
def test_what_cannot_be_an_instance_says_why(berth: Berth, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*words: str) -> str:
        code, said = berth("partition", "create", "blue", *words, "--fake-gpu")
        assert code == 2
        return said

    assert "no MIG profile '9g.1gb' on GPU 0; it has: 1g.10gb, 1g.20gb, 2g.20gb" in refused("--mig", "9g.1gb")
    assert "--mig 1g.10gb has the memory and the cores of its profile" in refused(
        "--mig", "1g.10gb", "--mem", "4G"
    )
    assert "no size for the partition; give --mem" in refused()
    monkeypatch.setenv("BERTH_FAKE_MIG", "0")
    assert "MIG is off on GPU 0; turn it on with: nvidia-smi -i 0 -mig 1" in refused("--mig", "1g.10gb")
    monkeypatch.delenv("BERTH_FAKE_MIG")
    assert "GPU 0 or its driver does not support MIG" in refused("--mig", "1g.10gb")


@pytest.mark.usefixtures("mig")
def test_an_instance_that_comes_to_nothing_leaves_nothing(
    berth: Berth, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_MIG_FAILS", "1")
    said = berth("partition", "create", "blue", "--mig", "7g.80gb", "--fake-gpu")[1]
    assert "the compute instance of 7g.80gb on GPU 0: NVML refuses with error 23" in said
    monkeypatch.delenv("BERTH_FAKE_MIG_FAILS")
    assert not (root / "blue").exists()
    made(berth, "blue", "7g.80gb")


@pytest.mark.usefixtures("mig")
def test_an_instance_that_the_driver_keeps_stays_a_partition(
    berth: Berth, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(berth, "blue", "1g.10gb")
    monkeypatch.setenv("BERTH_FAKE_MIG_BUSY", "1")
    said = berth("partition", "remove", "blue", "--fake-gpu")[1]
    assert "NVML refuses with error 19; it is in use; end the programs that use it first" in said
    assert len(partitions.find("blue", root)) == 1
    monkeypatch.delenv("BERTH_FAKE_MIG_BUSY")
    assert berth("partition", "remove", "blue", "--fake-gpu") == (0, "")


@pytest.mark.usefixtures("mig")
def test_a_partition_whose_instance_a_restart_took_can_be_removed(
    berth: Berth, card: Card, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(berth, "blue", "1g.10gb")
    made(berth, "red", "1g.10gb")
    (card.folder / "card.mig").unlink()
    assert berth("partition", "remove", "blue", "--fake-gpu") == (0, "")
    monkeypatch.setenv("BERTH_FAKE_MIG", "0")
    assert berth("partition", "remove", "red", "--fake-gpu") == (0, "")
    assert list(root.iterdir()) == []


@pytest.mark.usefixtures("mig")
def test_an_instance_has_its_size_for_good(berth: Berth) -> None:
    made(berth, "blue", "1g.10gb")
    said = berth("partition", "resize", "blue", "--mem", "4G", "--fake-gpu")[1]
    assert "'blue' is one of MIG 1g.10gb, which has its size for good; remove it and make another" in said
    said = berth("partition", "create", "blue", "--mem", "1G", "--fake-gpu")[1]
    assert "one of MIG or MPS has one GPU" in said


@pytest.mark.usefixtures("mig")
def test_a_container_gets_the_devices_of_its_instance(
    berth: Berth, card: Card, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = made(berth, "blue", "1g.10gb")["uuid"]
    said = berth("partition", "cdi", "blue")[1]
    assert "gi1/access does not name the instance's device (No such file or directory); name its" in said
    instance = card.folder / "caps" / "gpu0" / "mig" / "gi1"
    (instance / "ci0").mkdir(parents=True)
    (instance / "access").write_text("DeviceFileMinor: 12\nDeviceFileMode: 292\n")
    (instance / "ci0" / "access").write_text("DeviceFileMinor: 13\nDeviceFileMode: 292\n")
    monkeypatch.setattr(cdi, "CAPABILITIES", card.folder / "caps")
    specified = cdi.specification("blue", partitions.find("blue", root), card.native / "libberth.so")
    edits = specified["devices"][0]["containerEdits"]
    assert edits["env"] == ["BERTH_REGION=/run/berth/region", f"CUDA_VISIBLE_DEVICES=MIG-{uuid}"]
    caps = [node["path"] for node in edits["deviceNodes"] if "caps" in node["path"]]
    assert caps == ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]


# ---- MPS ----

CONTROL = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $*" >> "$FAKE_MPS_LOG"
if [ "$1" = -d ]; then
    [ -z "$FAKE_MPS_FAILS" ] || { echo "An instance of this daemon is already running"; exit 1; }
    : > "$CUDA_MPS_PIPE_DIRECTORY/control"
    exit 0
fi
read -r command
echo "  $command" >> "$FAKE_MPS_LOG"
[ -e "$CUDA_MPS_PIPE_DIRECTORY/control" ] || { echo "Cannot find MPS control daemon process"; exit 1; }
[ "$command" != quit ] || rm "$CUDA_MPS_PIPE_DIRECTORY/control"
"""


@pytest.fixture
def mps(card: Card, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nvidia-cuda-mps-control that writes down what it was asked; the file of that."""
    program = card.folder / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_MPS_LOG", str(card.folder / "mps.log"))
    return card.folder / "mps.log"


def create_mps(berth: Berth, name: str, *more: str) -> None:
    code, said = berth("partition", "create", name, "--mps", "--mem", "64M", *more, "--fake-gpu")
    assert code == 0, said


def test_a_daemon_that_does_not_start_leaves_nothing(
    berth: Berth, mps: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS_FAILS", "1")
    assert (
        "does not start for" in berth("partition", "create", "blue", "--mps", "--mem", "64M", "--fake-gpu")[1]
    )
    assert list(root.iterdir()) == []


def test_a_daemon_lives_from_its_first_partition_to_its_last(berth: Berth, mps: Path, root: Path) -> None:
    create_mps(berth, "blue", "--core-pct", "25")
    create_mps(berth, "red")
    control = root / f".mps-{GPU}" / "pipe" / "control"
    assert control.exists()
    assert " MPS 25 % " in berth("partition", "list")[1]
    assert mps.read_text().count(f"{GPU} -d") == 1
    berth("partition", "remove", "blue")
    assert control.exists()
    berth("partition", "remove", "red")
    assert not control.exists()
    assert [one.name for one in partitions.partitions(root)] == []


def test_a_program_in_it_is_a_client_under_both_limits(
    berth: Berth, card: Card, mps: Path, root: Path
) -> None:
    create_mps(berth, "blue", "--core-pct", "25")
    show = "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT $CUDA_VISIBLE_DEVICES; "
    show += "echo $CUDA_MPS_PIPE_DIRECTORY"
    shown = berth("partition", "exec", "blue", "--fake-gpu", "--", "sh", "-c", show)[1]
    assert shown.split("\n")[:2] == [f"25 0=64M {GPU}", f"{root}/.mps-{GPU}/pipe"]
    check = str(card.native / "check")
    code, said = berth("partition", "exec", "blue", "--fake-gpu", "--", check, "linear")
    assert (code, "peak of the partition 'blue' so far 64 MiB of 64 MiB, 2 refused calls" in said) == (
        0,
        True,
    )
    (blue,) = partitions.find("blue", root)
    assert blue.core_pct == 0  # the library does not take a quarter of the time of a quarter of the cores


def test_a_container_gets_the_pipes_and_the_limits(berth: Berth, mps: Path, root: Path) -> None:
    create_mps(berth, "blue")
    (device,) = json.loads(berth("partition", "cdi", "blue")[1])["devices"]
    folder = str(root / f".mps-{GPU}")
    assert folder in [mount["containerPath"] for mount in device["containerEdits"]["mounts"]]
    assert f"CUDA_MPS_PIPE_DIRECTORY={folder}/pipe" in device["containerEdits"]["env"]
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=64M" in device["containerEdits"]["env"]


@pytest.mark.slow
@pytest.mark.parametrize("note", ["", "{}", "[]", '{"kind": "mgi"}', '{"kind": "mps"}'])
def test_a_damaged_note_is_named_and_its_partition_can_be_removed(
    berth: Berth, mps: Path, root: Path, note: str
) -> None:
    create_mps(berth, "blue")
    (root / "blue" / f"{GPU.removeprefix('GPU-')}.hardware").write_text(note)
    code, said = berth("partition", "remove", "blue")
    assert (code, "hardware: is damaged (" in said, "remove the partition with --force" in said) == (
        2,
        True,
        True,
    )
    assert "hardware: is damaged (" in berth("partition", "list")[1]
    assert berth("partition", "remove", "blue", "--force") == (0, "")
    assert not (root / "blue").exists()


@pytest.mark.parametrize("command", [("exec", "blue", "--fake-gpu", "--", "true"), ("cdi", "blue")])
def test_nothing_is_started_that_mps_would_not_limit(
    berth: Berth, mps: Path, root: Path, command: tuple[str, ...]
) -> None:
    create_mps(berth, "blue")
    note = root / "blue" / f"{GPU.removeprefix('GPU-')}.hardware"
    whole = note.read_text()
    note.write_text(whole.replace('"mem_mib": 64', '"mem_mib": "64M"'))
    code, said = berth("partition", *command)
    assert (code, "MPS cannot read the limit '0=64MM', and would keep none" in said) == (2, True)
    note.write_text(whole)
    assert berth("partition", *command)[0] == 0
    (root / f".mps-{GPU}" / "pipe" / "control").unlink()  # the daemon has ended
    code, said = berth("partition", *command)
    assert (code, "without it MPS limits nothing; nothing is started" in said) == (2, True)


def test_what_cannot_be_a_client_says_why(
    berth: Berth, mps: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("partition", "create", "blue", "--mps", "--mem", "64M", "--fake-gpu")
    monkeypatch.setenv("FAKE_MPS_FAILS", "1")
    assert "does not start for" in berth(*words)[1]
    assert "An instance of this daemon is already running" in berth(*words)[1]
    assert not (root / "blue").exists()
    assert "MPS has no --burst" in berth(*words, "--burst")[1]
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "there is no nvidia-cuda-mps-control on this machine; it comes with" in berth(*words)[1]


def test_its_share_of_the_cores_is_promised_to_it(berth: Berth, mps: Path) -> None:
    create_mps(berth, "blue", "--core-pct", "60")
    said = berth("partition", "create", "red", "--mem", "64M", "--core-pct", "50", "--fake-gpu")[1]
    assert "but 60 % are promised to others" in said
