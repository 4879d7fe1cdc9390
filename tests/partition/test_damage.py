"""Regions that are damaged, cut short, linked elsewhere, or have no room: an error that says what to do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import CARDS, Berth, Card

from berth import partition as partitions
from berth.errors import PartitionError
from berth.live.driver.node_tenants import NodeTenants, room_kept
from berth.partition import launch
from berth.partition.library import describe
from berth.partition.native import limits_lock


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
    assert code == 2
    assert "whether processes use the partition 'blue'; end them, and remove it with --force (why: " in output
    assert berth("partition", "remove", "blue", "--force") == (0, "")
    assert [path.name for path in root.iterdir()] == ["green"]


def test_a_library_of_another_version_is_told_with_what_to_do(
    berth: Berth, card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = card.folder / "root"
    berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")

    def older(folder: Path, uuid: str) -> dict[str, Any]:
        found = describe(folder, uuid)
        del found["granted"]
        return found

    monkeypatch.setattr(sys.modules["berth.partition.regions"], "describe", older)
    with pytest.raises(
        PartitionError, match="is of another version than berth; build it anew with `make native`"
    ):
        partitions.find("blue", root)


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
    assert (watched.count("damaged (0 bytes"), watched.count(" red ")) == (1, 2)  # told once, while it lasts
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


@pytest.mark.slow
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


@pytest.mark.parametrize("name", [".limits", ".room"])
def test_no_lock_of_root_makes_a_file_where_a_link_leads(
    card: Card, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of all partitions may be another user's, who made it first."""
    root, elsewhere = card.folder / "root", card.folder / "nologin"
    root.mkdir()
    (root / name).symlink_to(elsewhere)
    monkeypatch.setenv("BERTH_ROOT", str(root))
    with pytest.raises((PartitionError, OSError), match="symbolic links"), limits_lock(root), room_kept():
        pass
    assert not elsewhere.exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_root_trusts_no_folder_of_partitions_that_another_user_made(
    card: Card, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link of theirs may lead to a folder of root's that all may write, such as /tmp."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root, elsewhere = card.folder / "root", card.folder / "elsewhere"
    elsewhere.mkdir(mode=0o1777)
    if kind == "link":
        root.symlink_to(elsewhere)
    else:
        root.mkdir()
    os.chown(root, 12345, -1, follow_symlinks=False)
    monkeypatch.setenv("BERTH_ROOT", str(root))
    refused = pytest.raises(PartitionError, match=r"belongs to the user 12345|is a symbolic link")
    with refused, limits_lock(root):
        pass
    with refused, room_kept():
        pass
    with refused:
        NodeTenants([], lambda *words, **fields: None)
    assert [*root.iterdir()] == []


FORGES = """
import ctypes, glob, os, struct, sys
from pathlib import Path

cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0


def take(mib):
    return cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(mib << 20)) == 0


assert take(40)
(use,) = Path(os.environ["BERTH_REGION"]).glob("*.use")
data = bytearray(use.read_bytes())
slots = len(data) - 1024 * 192
used = struct.pack("<Q", 40 << 20)
assert data[64:72] == used and struct.unpack_from("<II", data, slots) == (1, os.getpid())
for name in sys.argv[1:]:
    at, size = {
        "state": (slots, 4),
        "pid": (slots + 4, 4),
        "start": (slots + 8, 8),
        "namespace": (slots + 16, 8),
        "slot": (slots, 192),
        "used": (64, 8),
        "seen": (152, 4),
    }[name]
    with use.open("r+b") as file:
        file.seek(at)
        file.write(bytes(size))
print(sum(8 for _ in range(16) if take(8)))
assert use.read_bytes()[slots : slots + 24] == data[slots : slots + 24], "the slot names another process"
"""


@pytest.mark.parametrize(
    "names",
    [
        ["state"],
        ["pid"],
        ["start"],
        ["namespace"],
        ["slot"],
        ["state", "used"],
        ["used", "seen"],
        ["slot", "used", "seen"],
    ],
)
def test_a_process_that_writes_itself_out_of_the_counters_keeps_its_limit(
    card: Card, names: list[str]
) -> None:
    environment = card.environment({"BERTH_GPU_MEM_MIB": "64", "BERTH_REGION": str(card.folder / "region")})
    environment.pop("BERTH_FAKE_WATCH", None)
    command = [sys.executable, "-c", FORGES, *names]
    said = subprocess.run(command, env=environment, check=True, text=True, stdout=subprocess.PIPE).stdout
    assert said == "24\n"


def test_limits_are_not_put_where_another_user_could_change_them(card: Card) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    root = card.folder / "root"
    root.mkdir()
    os.chown(root, 12345, -1)
    for by in ("libberth", "mps"):
        with pytest.raises(
            PartitionError, match="root belongs to the user 12345, who could change the limits"
        ):
            partitions.create("blue", CARDS[0], partitions.Limit(64), root=root, by=by)
    assert list(root.iterdir()) == []
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
    (card.folder / "root" / ".hidden").mkdir()
    for name in ("", "..", ".hidden", "other/../other"):
        with pytest.raises(PartitionError, match="no partition"):
            partitions.remove(name, unfinished=True, root=card.folder / "root")
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
        assert list((full / "root").iterdir()) == []


def test_a_partition_on_a_read_only_file_system_says_so(berth: Berth, card: Card) -> None:
    with small_tmpfs(card.folder / "root", "4m") as root:
        berth("partition", "create", "blue", "--mem", "64M", "--fake-gpu")
        subprocess.run(["mount", "-o", "remount,ro", str(root)], check=True)
        said = f"{root}/blue is on a file system that is read-only here; mount it writable\n"
        for words in (("list",), ("exec", "blue", "--", "true"), ("resize", "blue", "--mem", "1G")):
            output = berth("partition", *words)[1]
            assert output.endswith(f"berth: the partition 'blue' cannot be read: {said}")
        assert berth("partition", "remove", "blue") == (
            2,
            f"berth: the partition 'blue' cannot be changed: {said}",
        )


def test_a_run_that_can_write_nowhere_says_so(berth: Berth, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_places", lambda: [Path("/nonexistent")])
    output = berth("run", "--mem", "64M", "--fake-gpu", "--", "true")[1]
    assert "berth: the limits cannot be kept: nothing can be written in /nonexistent (read-only, " in output


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
    with small_tmpfs(card.folder / "full", "1m") as full:
        place = str(full / "card")
        holder = card.start("check", "up", BERTH_FAKE_CARD=place)
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        fill = ["dd", "if=/dev/zero", f"of={full / 'rest'}", "bs=4096"]
        assert "No space left" in subprocess.run(fill, capture_output=True, text=True, check=False).stderr
        code, output = card.run("check", "total", BERTH_FAKE_CARD=place)
        assert (code, "cuInit(0)" in output) == (1, True)
        assert f"the fake card {place} has no room for another process (No space left on device)" in card.log
        assert holder.communicate("\n") == ("", None)  # a process that was there notices nothing
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


def test_a_maker_that_died_half_way_leaves_nothing_in_the_way(card: Card) -> None:
    region = card.folder / "region"
    region.mkdir()
    (region / ".4711-1-0").write_bytes(b"half")
    assert card.run("check", "linear") == (0, "")
