"""`berth run` and `berth partition`, as a person types them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes.util import find_library
from pathlib import Path

import pytest

from berth import partition as partitions
from berth.cli import main
from berth.errors import PartitionError, SettingError
from berth.partition.gpus import Gpu, gpus
from conftest import Card

Berth = Callable[..., tuple[int, str]]


@pytest.fixture
def berth(card: Card, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Berth:
    """Runs a command; its exit status and everything that it printed."""
    monkeypatch.setenv("BERTH_ROOT", str(card.folder / "root"))
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "card"))
    monkeypatch.setenv("BERTH_TEST_FDS", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["berth", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out + captured.err

    return command


def test_run_keeps_a_process_tree_to_its_limit_and_sums_up(berth: Berth, card: Card) -> None:
    code, output = berth("run", "--mem", "64M", "--fake-gpu", "--", str(card.native / "check"), "linear")
    assert (code, output) == (
        0,
        "berth: peak 64 MiB of 64 MiB, 2 refused calls, GPU time not measured without --core-pct\n",
    )


def test_a_limit_of_the_environment_counts_where_run_names_none(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = str(card.native / "check")
    monkeypatch.setenv("BERTH_GPU_MEM_MIB", "64")
    assert " of 64 MiB" in berth("run", "--core-pct", "50", "--fake-gpu", "--", check, "linear")[1]
    assert " of 32 MiB" in berth("run", "--mem", "32M", "--fake-gpu", "--", check, "linear")[1]
    monkeypatch.setenv("BERTH_GPU_MEM_MIB", "4GB")
    assert (
        "no GPU: BERTH_GPU_MEM_MIB"
        in berth("run", "--core-pct", "50", "--fake-gpu", "--", check, "linear")[1]
    )


def test_run_in_a_partition_tells_of_this_run_and_whose_peak_it_is(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--core-pct", "50", "--fake-gpu")
    command = (
        "partition",
        "exec",
        "blue",
        "--fake-gpu",
        "--json",
        "--",
        str(card.native / "check"),
        "launch",
    )
    first, again = (json.loads(berth(*command)[1]) for _ in range(2))
    (blue,) = partitions.find("blue", card.folder / "root")
    assert (first["exit_status"], again["exit_status"], first["partition"]) == (0, 0, "blue")
    assert first["gpu_ns"] > 0
    assert first["gpu_ns"] + again["gpu_ns"] == blue.gpu_ns
    said = berth("partition", "exec", "blue", "--fake-gpu", "--", str(card.native / "check"), "linear")[1]
    assert said.startswith("berth: peak of the partition 'blue' so far 64 MiB of 64 MiB, 2 refused calls, ")


def test_run_prints_why_there_is_no_gpu(berth: Berth, card: Card) -> None:
    (card.folder / "lib").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", str(card.folder / "lib"))
        code, output = berth("run", "--mem", "64M", "--", str(card.native / "routes"), "no_driver")
    assert code == 0
    assert output == "berth: no GPU was used\n"


def test_run_passes_the_exit_status_on(berth: Berth) -> None:
    assert berth("run", "--mem", "64M", "--fake-gpu", "--", "sh", "-c", "exit 7")[0] == 7
    assert berth("run", "--mem", "64M", "--fake-gpu", "--", "sh", "-c", "kill -9 $$")[0] == 137


@pytest.mark.parametrize("size", ["4GB", "4", "0G", "-1G", "4 G", "G", "0.0001M"])
def test_a_size_that_is_none_is_refused(berth: Berth, size: str) -> None:
    code, output = berth("run", f"--mem={size}", "--fake-gpu", "--", "true")
    assert code == 2
    said = f"berth: '{size}' is not a size of GPU memory; write a number above zero and M, G or T, such as"
    assert output == f"{said} 512M, 4G or 1.5G\n"


def test_a_partition_keeps_its_priority_when_it_is_resized(tmp_path: Path) -> None:
    root = tmp_path / "root"
    partitions.create("blue", CARDS[1], partitions.Limit(8192, priority="low"), root=root)
    partitions.resize("blue", core_pct=20, root=root)
    assert [one.priority for one in partitions.find("blue", root)] == ["low"]
    partitions.resize("blue", priority="high", root=root)
    assert [one.priority for one in partitions.find("blue", root)] == ["high"]
    with pytest.raises(SettingError, match="no priority 'urgent'; there are high, normal, low"):
        partitions.Limit(8192, priority="urgent")


def test_run_without_a_limit_or_a_command_says_what_to_give(berth: Berth) -> None:
    assert (
        berth("run", "--fake-gpu", "--", "true")[1]
        == "berth: no limit to run under; give --mem, --core-pct or --priority, or join one with: "
        "berth partition exec NAME\n"
    )
    assert (
        berth("run", "--mem", "1G", "--fake-gpu", "--", "/no/such")[1]
        == "berth: '/no/such' cannot be run (No such file or directory)\n"
    )


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
    watched = berth("partition", "watch", "--times", "2", "--every", "0.1")[1]
    assert "blue" in watched
    assert watched.endswith("┘\n")
    assert berth("partition", "remove", "blue") == (0, "")
    assert berth("partition", "remove", "blue") == (2, "berth: no partition 'blue'; there are: none\n")


CARDS = [
    Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384),
    Gpu(1, "GPU-c0c7ced5-dce3-eaf1-f8ff-060d141b2229", 16384),
]


def test_the_table_can_be_read_in_a_narrow_terminal(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    berth("partition", "create", "training", "--mem", "12.5G", "--core-pct", "30", "--burst", "--fake-gpu")
    monkeypatch.setenv("COLUMNS", "80")
    output = berth("partition", "list")[1]
    assert "…" not in output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    assert rows == [["training", "b0b7bec5", "12.5 GiB", "0 B", "30 % +", "0.0 s", "0"]]
    monkeypatch.setenv("COLUMNS", "200")
    assert "last refused" in berth("partition", "list")[1]


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


def test_a_resize_that_cannot_ask_the_card_says_so(card: Card) -> None:
    """In a process of its own: this one has loaded the fake driver."""
    if find_library("nvidia-ml") is not None:
        pytest.skip("this machine has a driver to ask")
    partitions.create("blue", CARDS[0], partitions.Limit(64), root=card.folder / "root")
    words = ["partition", "resize", "blue", "--mem", "200G"]
    ran = subprocess.run(
        [sys.executable, "-c", "from berth.cli import main; main()", *words],
        env=os.environ | {"BERTH_ROOT": str(card.folder / "root")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "blue: 200 GiB, 0 B in use\n")
    assert ran.stderr.startswith("berth: not checked against the GPU's size: there is no libnvidia-ml.so.1")


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


def test_two_partitions_of_one_name_are_refused(berth: Berth) -> None:
    berth("partition", "create", "blue", "--mem", "4G", "--fake-gpu")
    again = berth("partition", "create", "blue", "--mem", "4G", "--fake-gpu")
    assert again == (
        2,
        "berth: there is a partition 'blue' of GPU 0 already; resize or remove it, or take another name\n",
    )


def test_more_than_the_card_has_is_refused_unless_asked_for(berth: Berth) -> None:
    assert "ask for that or less" in berth("partition", "create", "all", "--mem", "17G", "--fake-gpu")[1]
    berth("partition", "create", "blue", "--mem", "10G", "--core-pct", "60", "--fake-gpu")
    code, output = berth("partition", "create", "red", "--mem", "10G", "--fake-gpu")
    assert code == 2
    assert "only 6144 of its 16384 MiB are not promised to others" in output
    assert (
        "60 % are promised"
        in berth("partition", "create", "red", "--mem", "1G", "--core-pct", "50", "--fake-gpu")[1]
    )
    assert (
        berth("partition", "create", "red", "--mem", "10G", "--core-pct", "50", "--overcommit", "--fake-gpu")[
            0
        ]
        == 0
    )


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


def test_a_container_cannot_raise_a_limit_that_the_agent_made(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    region = str(card.folder / "root" / "blue")
    assert card.run("check", "linear", BERTH_REGION=region, BERTH_GPU_MEM_MIB="8192") == (0, "")
    assert card.run("check", "none", BERTH_REGION=region + "/..", BERTH_GPU_MEM_MIB=None) == (0, "")


def test_a_gpu_that_is_not_in_the_partition_has_nothing(berth: Berth, card: Card) -> None:
    card.settings = {"BERTH_FAKE_GPUS": "2"}
    card.run("check", "total")
    berth("partition", "create", "blue", "--mem", "64M", "--gpu", "0", "--fake-gpu")
    region = str(card.folder / "root" / "blue")
    assert card.run("check", "total", BERTH_REGION=region, CUDA_VISIBLE_DEVICES="1") == (0, "0\n")


@pytest.mark.parametrize(
    ("offset", "value", "said"),
    [
        (0, b"\0" * 8, "is not a berth region or is damaged"),
        (8, b"\x09\0\0\0", "is of version 9 and this library reads version 1"),
        (12, b"\1\0\0\0", "is damaged"),
        (16, b"\xff" * 16, "belongs to another GPU"),
        (72, b"\xff\xff", "a slot that is not there"),
    ],
)
def test_a_damaged_region_gives_no_gpu_and_says_what_to_do(
    card: Card, offset: int, value: bytes, said: str
) -> None:
    assert card.run("check", "total")[0] == 0
    (use,) = (card.folder / "region").glob("*.use")
    with use.open("r+b") as file:
        file.seek(offset)
        file.write(value)
    assert card.run("check", "none") == (0, "")
    assert said in card.log
    assert "make the partition anew" in card.log


def test_a_damaged_region_hides_no_other_partition_and_can_be_removed(berth: Berth, card: Card) -> None:
    root = card.folder / "root"
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    berth("partition", "create", "red", "--mem", "64M", "--fake-gpu")
    (use,) = (root / "blue").glob("*.use")
    os.truncate(use, 100)
    assert [one.name for one in partitions.partitions(root)] == ["red"]
    (bad,) = (one for one in partitions.regions(root) if isinstance(one, partitions.Unreadable))
    assert (bad.name, bad.folder, bad.uuid) == ("blue", root / "blue", use.stem)
    code, output = berth("partition", "list")
    assert code == 1
    assert " red " in output
    assert f"berth: the partition 'blue' cannot be read: {use}: is damaged (100 bytes" in output
    assert berth("partition", "create", "green", "--mem", "64M", "--fake-gpu")[0] == 0
    assert berth("partition", "resize", "red", "--mem", "32M", "--fake-gpu")[0] == 0
    assert berth("partition", "remove", "red") == (0, "")
    for command in (("resize", "blue", "--mem", "1G"), ("cdi", "blue")):
        code, output = berth("partition", *command)
        assert (code, "the partition 'blue' cannot be read" in output) == (2, True)
    code, output = berth("partition", "remove", "blue")
    assert (code, "cannot be told whether processes use the partition 'blue'" in output) == (2, True)
    assert berth("partition", "remove", "blue", "--force") == (0, "")
    assert [path.name for path in root.iterdir()] == ["green"]


def test_a_region_cut_short_ends_its_own_processes_and_no_others(berth: Berth, card: Card) -> None:
    """Whoever may write the counters may cut them short: docs/partition.md says what that does."""
    root = card.folder / "root"
    running = {}
    for name in ("blue", "red"):
        berth("partition", "create", name, "--mem", "64M", "--fake-gpu")
        settings = {"BERTH_REGION": str(root / name), "BERTH_GPU_MEM_MIB": None, "BERTH_FAKE_WATCH": None}
        running[name] = card.start("check", "hold", **settings)
        assert running[name].stdout.readline() == "held\n"  # type: ignore[union-attr]
    (use,) = (root / "blue").glob("*.use")
    os.truncate(use, 0)
    running["blue"].communicate("\n")
    assert running["blue"].returncode == -signal.SIGBUS
    said = f"the partition 'blue' cannot be read: {use}: is damaged (0 bytes, not "
    code, output = berth("partition", "list")
    assert (code, f"berth: {said}" in output, " red " in output) == (1, True, True)
    watched = berth("partition", "watch", "--times", "2", "--every", "0.1")[1]
    assert (watched.count("damaged (0 bytes"), " red " in watched) == (1, True)
    watched = berth("partition", "watch", "--times", "1", "--json")[1]
    assert (f"berth: {said}" in watched, '"name": "red", ' in watched) == (True, True)
    code, output = berth("partition", "resize", "blue", "--mem", "32M", "--fake-gpu")
    assert (code, said in output) == (2, True)
    assert berth("partition", "remove", "blue")[0] == 2
    assert berth("partition", "remove", "blue", "--force") == (0, "")
    assert berth("partition", "resize", "red", "--mem", "48M", "--fake-gpu")[0] == 0
    assert berth("partition", "resize", "red", "--mem", "64M", "--fake-gpu")[0] == 0
    assert running["red"].communicate("\n") == ("", None)
    assert running["red"].returncode == 0


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("list",), 1),
        (("watch", "--times", "1"), 0),
        (("resize", "blue", "--mem", "32M"), 2),
        (("remove", "blue"), 2),
    ],
)
def test_a_region_cut_short_while_it_is_looked_at_ends_no_command(
    berth: Berth, card: Card, words: tuple[str, ...], status: int
) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    blue = card.folder / "root" / "blue"
    holder = card.start("check", "hold", BERTH_REGION=str(blue), BERTH_GPU_MEM_MIB=None)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    answer = subprocess.run(
        [sys.executable, "-c", "from berth.cli import main; main()", "partition", *words],
        env=os.environ | {"LD_PRELOAD": str(card.native / "libcut.so"), "BERTH_ROOT": str(blue.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    holder.kill()
    holder.communicate()
    output = answer.stdout + answer.stderr
    assert (answer.returncode, "was cut short while it was looked at; stop its" in output) == (status, True)


def test_half_a_region_is_told_of_and_can_be_removed(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    (limit,) = (card.folder / "root" / "blue").glob("*.limit")
    limit.unlink()
    assert f"{limit} is missing; remove it" in berth("partition", "list")[1]
    assert berth("partition", "remove", "blue", "--force") == (0, "")


def test_a_process_on_two_gpus_is_one_that_uses_the_partition(card: Card) -> None:
    root = card.folder / "root"
    for gpu in CARDS:
        partitions.create("blue", gpu, partitions.Limit(64), root=root)
    settings = {"BERTH_FAKE_GPUS": "2", "BERTH_REGION": str(root / "blue"), "BERTH_GPU_MEM_MIB": None}
    holder = card.start("check", "up", **settings)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "up\n"
    with pytest.raises(PartitionError, match=r"^1 process uses the partition 'blue'"):
        partitions.remove("blue", root=root)
    assert holder.communicate("\n") == ("", None)


@pytest.mark.parametrize("linked", ["root", "root/blue", "root/blue/use"])
def test_limits_are_not_put_where_a_link_leads(card: Card, linked: str) -> None:
    root, elsewhere = card.folder / "root", card.folder / "elsewhere"
    (root / "blue").mkdir(parents=True)
    elsewhere.mkdir(mode=0o700)
    link = root / "blue" / "GPU-of-another.use" if linked.endswith("use") else card.folder / linked
    if link.is_dir():
        shutil.rmtree(link)
    link.symlink_to(elsewhere)
    with pytest.raises(PartitionError, match=f"{link.name} is a symbolic link"):
        partitions.create("blue", CARDS[0], partitions.Limit(64), root=root)
    assert list(elsewhere.iterdir()) == []


def test_limits_are_not_put_where_another_user_could_change_them(card: Card) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root = card.folder / "root"
    root.mkdir()
    os.chown(root, 12345, -1)
    with pytest.raises(PartitionError, match="root belongs to the user 12345, who could change the limits"):
        partitions.create("blue", CARDS[0], partitions.Limit(64), root=root)
    os.chown(root, 0, -1)
    (root / "blue").mkdir()
    os.chown(root / "blue", 12345, -1)
    with pytest.raises(PartitionError, match="blue belongs to the user 12345"):
        partitions.create("blue", CARDS[0], partitions.Limit(64), root=root)


def test_one_who_may_not_remove_a_partition_is_told(card: Card) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o755)
    root = card.folder / "root"
    mine = partitions.Access(uid=12345)
    partitions.create("blue", CARDS[0], partitions.Limit(64), access=mine, root=root)
    partitions.create("red", CARDS[0], partitions.Limit(64), root=root)
    os.seteuid(12345)
    try:
        with pytest.raises(
            PartitionError, match=r"'blue' cannot be removed \(Permission denied: .*its maker may"
        ):
            partitions.remove("blue", root=root)
        with pytest.raises(PartitionError, match="'red' is not open to this user"):
            partitions.remove("red", root=root)
    finally:
        os.seteuid(0)
    assert len(partitions.find("blue", root)) == 1


def test_a_folder_that_is_no_partition_is_not_removed(berth: Berth, card: Card) -> None:
    other = card.folder / "root" / "other"
    other.mkdir(parents=True)
    for name in ("other", "..", "."):
        assert berth("partition", "remove", name, "--force")[0] == 2
    assert other.is_dir()


def test_a_truncated_region_gives_no_gpu(card: Card) -> None:
    assert card.run("check", "total")[0] == 0
    for path in (card.folder / "region").iterdir():
        os.truncate(path, 100)
    assert card.run("check", "none") == (0, "")
    assert "is damaged (100 bytes" in card.log


def test_a_full_folder_is_an_error_and_no_crash(card: Card) -> None:
    with small_tmpfs(card.folder / "full", "64k") as full:
        assert card.run("check", "none", BERTH_REGION=str(full / "region")) == (0, "")
        assert "No space left on device" in card.log
        assert "free some space there or name another folder with BERTH_REGION" in card.log
        with pytest.raises(
            PartitionError, match="free some space there or name another folder with BERTH_ROOT"
        ):
            partitions.create("blue", CARDS[0], partitions.Limit(64), root=full / "root")


@contextmanager
def small_tmpfs(folder: Path, size: str) -> Iterator[Path]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a small tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_fake_card_that_has_no_room_is_an_error_and_no_crash(card: Card) -> None:
    with small_tmpfs(card.folder / "full", "64k") as full:
        place = str(full / "card")
        holder = card.start("check", "up", BERTH_FAKE_CARD=place)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        fill = ["dd", "if=/dev/zero", f"of={full / 'rest'}", "bs=4096"]
        assert "No space left" in subprocess.run(fill, capture_output=True, text=True, check=False).stderr
        code, output = card.run("check", "total", BERTH_FAKE_CARD=place)
        assert (code, "cuInit(0)" in output) == (1, True)
        assert f"the fake card {place} has no room for another process (No space left on device)" in card.log
        assert holder.communicate("\n") == ("", None)  # who was there notices nothing
        holder.wait()
        assert card.run("check", "total", BERTH_FAKE_CARD=place) == (0, "64\n")
        (full / "card").unlink()
        fill[2] = f"of={full / 'more'}"
        assert subprocess.run(fill, capture_output=True, check=False).returncode == 1
        assert card.run("check", "total", BERTH_FAKE_CARD=place)[0] == 1
        assert f"the fake card {place} cannot be made (No space left on device); free some room" in card.log
        create = ["-c", "from berth.cli import main; main()", "partition", "create", "blue", "--mem", "64M"]
        words = [sys.executable, *create, "--fake-gpu"]
        variables = os.environ | {"BERTH_FAKE_CARD": place, "BERTH_ROOT": str(card.folder / "root")}
        answer = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
        assert (answer.returncode, "elsewhere with BERTH_FAKE_CARD" in answer.stderr) == (2, True)


def in_a_full_shm(card: Card, *words: str, **variables: str) -> tuple[int, str]:
    """A command where /dev/shm has 64 KiB; its exit status and all that it printed."""
    berth = [sys.executable, "-c", "from berth.cli import main; main()", *words]
    mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], check=False).returncode != 0:
        pytest.skip("this user may not mount a small tmpfs")
    answer = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount, "sh", *berth],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.returncode, answer.stdout + answer.stderr


def test_run_in_a_full_shm_keeps_its_limits_elsewhere(card: Card, tmp_path: Path) -> None:
    command = ("run", "--mem", "64M", "--fake-gpu", "--", str(card.native / "check"), "linear")
    code, output = in_a_full_shm(card, *command, TMPDIR=str(tmp_path), BERTH_TEST_FDS="1")
    assert (code, output) == (
        0,
        "berth: peak 64 MiB of 64 MiB, 2 refused calls, GPU time not measured without --core-pct\n",
    )
    code, output = in_a_full_shm(card, *command, TMPDIR="/dev/shm")
    assert (code, output) == (
        2,
        "berth: there are not 4 MiB left for the limits to be kept in, in /dev/shm; "
        "free some there, or name another folder with TMPDIR\n",
    )


@pytest.mark.parametrize("asked", [("--mem", "128M"), ("--mem", "32M"), ("--core-pct", "50")])
def test_a_run_inside_a_run_does_not_get_other_limits(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, str]
) -> None:
    inner = [sys.executable, "-c", "from berth.cli import main; main()", "run", *asked, "--fake-gpu", "--"]
    monkeypatch.setenv("BERTH_LOG", "")
    answer = subprocess.run(
        [*inner[:3], "run", "--mem", "64M", "--fake-gpu", "--", *inner, str(card.native / "check"), "total"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = {"128M": "128 MiB of GPU memory", "32M": "32 MiB of GPU memory", "50": "50 % of the GPU's time"}
    assert (answer.returncode, answer.stdout) == (2, "")
    assert (
        f"berth: {said[asked[1]]} cannot be given here, under a limit already: BERTH_GPU_MEM_MIB=64; "
        "run the command as it is" in answer.stderr
    )


def test_a_run_inside_a_partition_joins_no_other(berth: Berth, card: Card) -> None:
    for name in ("blue", "red"):
        berth("partition", "create", name, "--mem", "64M", "--fake-gpu")
    inner = [sys.executable, "-c", "from berth.cli import main; main()", "partition", "exec", "--fake-gpu"]

    def nested(name: str) -> subprocess.CompletedProcess[str]:
        check = [str(card.native / "check"), "total"]
        words = [*inner, "blue", "--", *inner, name, "--", *check]
        return subprocess.run(words, capture_output=True, text=True, check=False)

    assert nested("blue").returncode == 0  # it is in it already
    other = nested("red")
    assert other.returncode == 2
    said = (
        "another partition cannot be given here, under a limit already: 64 MiB of GPU memory; run the command"
    )
    assert said in other.stderr


def test_a_maker_that_died_half_way_leaves_nothing_in_the_way(card: Card) -> None:
    region = card.folder / "region"
    region.mkdir()
    (region / ".4711-1-0").write_bytes(b"half")
    assert card.run("check", "linear") == (0, "")


def test_the_python_api_says_what_a_value_may_be() -> None:
    with pytest.raises(SettingError, match="a share of 101 %"):
        partitions.Limit(1, 101)
    with pytest.raises(SettingError, match="at least 1"):
        partitions.Limit(0)
    with pytest.raises(SettingError, match="is not a name for a partition"):
        partitions.create("../x", Gpu(0, "GPU-0", 1), partitions.Limit(1))


def test_a_machine_without_nvml_says_so(tmp_path: Path) -> None:
    with pytest.raises(PartitionError, match=r"there is no libnvidia-ml\.so\.1 on this machine"):
        gpus(tmp_path)


def test_the_cdi_specification_mounts_the_limits_read_only(berth: Berth, card: Card) -> None:
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    specification = json.loads(berth("partition", "cdi", "blue")[1])
    (device,) = specification["devices"]
    access = {
        Path(mount["containerPath"]).suffix: mount["options"][0]
        for mount in device["containerEdits"]["mounts"]
    }
    assert access == {".so": "ro", ".preload": "ro", ".limit": "ro", ".use": "rw"}
    assert (specification["kind"], device["name"]) == ("berth.dev/gpu", "blue")


def test_the_cli_prints_the_librarys_path(berth: Berth) -> None:
    code, output = berth("partition", "library")
    assert code == 0
    assert Path(output.strip()).name == "libberth.so"
    subprocess.run(
        [sys.executable, "-c", "pass"], env=os.environ | {"LD_PRELOAD": output.strip()}, check=True
    )


def test_a_partition_may_have_memory_of_the_host_beyond_its_limit(berth: Berth, card: Card) -> None:
    check = str(card.native / "check")
    code, output = berth(
        "partition", "create", "blue", "--mem", "64M", "--oversubscribe", "32M", "--fake-gpu"
    )
    assert code == 0, output
    assert "64 MiB + 32 MiB" in berth("partition", "list")[1]
    assert berth("partition", "exec", "blue", "--fake-gpu", "--", check, "swap")[0] == 0
    assert berth("partition", "resize", "blue", "--oversubscribe", "0", "--fake-gpu")[0] == 0
    assert "+ 32 MiB" not in berth("partition", "list")[1]
    assert berth("partition", "exec", "blue", "--fake-gpu", "--", check, "swap")[0] == 1
    assert berth("run", "--mem", "64M", "--oversubscribe", "32M", "--fake-gpu", "--", check, "swap")[0] == 0
    code, output = berth(
        "run", "--core-pct", "50", "--oversubscribe", "32M", "--fake-gpu", "--", check, "swap"
    )
    assert code != 0
    assert "--oversubscribe is memory beyond a limit; give --mem too" in output
