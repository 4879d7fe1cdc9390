"""`berth run` and `berth partition`, as a person types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, Berth, Card

from berth import partition as partitions
from berth.errors import PartitionError, SettingError
from berth.partition import launch
from berth.partition.gpus import Gpu, gpu_named, gpus


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


@pytest.mark.parametrize("size", ["4KB", "4", "0G", "-1G", "4  G", "G", "0.0001M"])
def test_a_size_that_is_none_is_refused(berth: Berth, size: str) -> None:
    code, output = berth("run", f"--mem={size}", "--fake-gpu", "--", "true")
    assert code == 2
    said = f"berth: --mem '{size}' is not a size of memory; write a number above zero and M, G or T, such as"
    assert output == f"{said} 512M, 4G or 1.5G\n"


def test_run_without_a_limit_or_a_command_says_what_to_give(berth: Berth, tmp_path: Path) -> None:
    assert (
        berth("run", "--fake-gpu", "--", "true")[1]
        == "berth: no limit to run under; give --mem, --core-pct or --priority, or join one with: "
        "berth partition exec NAME\n"
    )
    run = ("run", "--mem", "1G", "--fake-gpu", "--")
    assert berth(*run, "/no/such") == (127, "berth: '/no/such' cannot be run (No such file or directory)\n")
    (tmp_path / "text").touch(mode=0o644)
    said = f"berth: '{tmp_path}/text' cannot be run (Permission denied); make it executable with chmod +x, or name "
    said += "the program that runs it, such as python\n"
    assert berth(*run, str(tmp_path / "text")) == (126, said)


def test_watch_without_a_partition_says_so_once_and_waits(berth: Berth) -> None:
    said = "berth: there is no partition yet; make one with: berth partition create NAME --mem 8G\n"
    assert berth("partition", "watch", "--every", "0.1", "--times", "3") == (0, said)


def test_the_table_can_be_read_in_a_narrow_terminal(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    berth("partition", "create", "training", "--mem", "12.5G", "--core-pct", "30", "--burst", "--fake-gpu")
    monkeypatch.setenv("COLUMNS", "80")
    output = berth("partition", "list")[1]
    assert "…" not in output
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in output.splitlines() if "│" in line]
    assert rows == [["training", "b0b7bec5", "12.5 GiB", "0 B", "30 % +", "0.0 s", "0"]]
    assert output.rstrip().endswith("\n+: may use time that no other partition wants (--burst)")
    berth("partition", "resize", "training", "--no-burst", "--priority", "low", "--fake-gpu")
    output = berth("partition", "list")[1]
    assert ("30 %, low" in output, "--burst" in output) == (True, False)
    monkeypatch.setenv("COLUMNS", "200")
    assert "last refused" in berth("partition", "list")[1]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("1.5M", "--mem '1.5M' is not a whole number of MiB; write 1M or 2M instead"),
        ("99999T", "--mem '99999T' is more than a limit can be; write at most 1024T"),
    ],
)
def test_a_size_that_a_limit_cannot_be_says_which_can(berth: Berth, size: str, said: str) -> None:
    assert berth("run", "--mem", size, "--fake-gpu", "--", "true") == (2, f"berth: {said}\n")


def test_run_refuses_a_gpu_that_is_not_there_and_takes_the_short_name_of_a_list(berth: Berth) -> None:
    def run(gpu: str) -> tuple[int, str]:
        command = ("sh", "-c", "echo $CUDA_VISIBLE_DEVICES >&2")
        return berth("run", "--mem", "64M", "--gpu", gpu, "--fake-gpu", "--", *command)

    for wrong in ("foo", "3", "", "MIG-foo"):
        assert run(wrong) == (2, f"berth: no GPU '{wrong}'; there are: 0 ({CARDS[0].uuid})\n")
    for right in ("0", "b0b7bec5", "GPU-b0b7bec5", CARDS[0].uuid):
        assert run(right)[0] == 0


def test_a_short_name_of_two_gpus_is_refused() -> None:
    twins = [Gpu(0, "GPU-b0b7bec5-0", 1), Gpu(1, "GPU-b0b7bec5-1", 1)]
    assert gpu_named("b0b7bec5-1", twins) == twins[1]
    with pytest.raises(PartitionError, match="more than one GPU begins with 'b0b7bec5'; write more of it"):
        gpu_named("b0b7bec5", twins)


def test_exec_makes_only_the_gpus_of_the_partition_visible(berth_apart: Berth, card: Card) -> None:
    partitions.create("blue", CARDS[1], partitions.Limit(64), root=card.folder / "root")
    command = ("partition", "exec", "blue", "--fake-gpu", "--", str(card.native / "check"), "total")
    two = {"BERTH_FAKE_GPUS": "2"}
    code, said = berth_apart(*command, **two)
    assert (code, said.splitlines()[0]) == (0, "64")
    assert berth_apart(*command, **two, CUDA_VISIBLE_DEVICES="1")[1].splitlines()[0] == "64"
    said = berth_apart(*command, **two, CUDA_VISIBLE_DEVICES="0")[1]
    warning = "no GPU: CUDA_VISIBLE_DEVICES=0 leaves out the partition's GPU 1 (GPU-c0c7ced5"
    assert warning in said


def test_a_root_that_is_no_folder_from_the_root_is_refused(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = ("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    monkeypatch.chdir(card.folder)
    monkeypatch.setenv("BERTH_ROOT", "parts")
    said = "berth: BERTH_ROOT='parts' is not the name of a folder from the root; begin it with /, such as "
    assert berth(*create) == (2, f"{said}{card.folder}/parts\n")
    file = card.folder / "file"
    file.touch()
    monkeypatch.setenv("BERTH_ROOT", str(file))
    said = f"berth: BERTH_ROOT='{file}' is a file; name a folder for the partitions\n"
    assert berth("partition", "list") == berth(*create) == (2, said)


def test_a_partition_of_others_is_listed_as_theirs(berth: Berth, card: Card) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o755)
    access = partitions.Access(12345, 12346)
    partitions.create("blue", CARDS[0], partitions.Limit(64), access=access, root=card.folder / "root")
    os.seteuid(12347)
    try:
        code, said = berth("partition", "list")
        refused = berth("partition", "exec", "blue", "--fake-gpu", "--", "true")
    finally:
        os.seteuid(0)
    to = "it is open to user 12345, group 12346\n"
    assert code == 0
    assert said.endswith(f"berth: the partition 'blue' of GPU b0b7bec5 is not open to this user: {to}")
    assert refused == (2, f"berth: the partition 'blue' is not open to this user (uid 12347): {to}")


def test_an_exec_does_not_report_the_partition_that_replaced_its_own(berth: Berth, card: Card) -> None:
    root = card.folder / "root"
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
    script = f"mv {root}/blue {root}/red && cp -a {root}/red {root}/blue"  # another file of the same name
    output = berth("partition", "exec", "blue", "--fake-gpu", "--", "sh", "-c", script)[1]
    said = "the partition 'blue' was removed or replaced while the command ran; what it used is not known"
    assert output.endswith(f"berth: {said}\n")
    assert "peak" not in output


def test_what_a_killed_run_left_is_swept_once_its_program_has_ended(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = card.folder / "berth-run-left"
    (left / "region").mkdir(parents=True)
    monkeypatch.setattr(launch, "_places", lambda: [card.folder])
    with subprocess.Popen(["sleep", "60"], env={"BERTH_REGION": str(left / "region")}) as program:
        berth("partition", "list")
        assert left.is_dir()  # the run's program goes on without it
        program.kill()
    with launch.run_folder() as running:
        berth("partition", "list")
        assert (running.is_dir(), left.exists()) == (True, False)
    assert not running.exists()


def test_two_partitions_of_one_name_are_refused(berth: Berth) -> None:
    assert berth("partition", "create", "blue", "--mem", "4G", "--fake-gpu")[0] == 0
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


@pytest.mark.slow
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


def test_a_partition_of_0_2_with_oversubscription_opens_as_one_without(berth: Berth, card: Card) -> None:
    assert berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")[0] == 0
    (limit,) = (card.folder / "root" / "blue").glob("*.limit")
    with limit.open("r+b") as file:  # as `--oversubscribe 32M` left it: bytes of the host's memory
        file.seek(120)
        file.write((32 << 20).to_bytes(8, "little"))
    assert " 64 MiB " in berth("partition", "list")[1]
    check = str(card.native / "check")
    assert berth("partition", "exec", "blue", "--fake-gpu", "--", check, "linear") == (
        0,
        "berth: peak of the partition 'blue' so far 64 MiB of 64 MiB, 2 refused calls, GPU time not measured "
        "without --core-pct\n",
    )
    assert berth("partition", "resize", "blue", "--mem", "32M", "--fake-gpu")[0] == 0
