"""A region whose path leads elsewhere, whose file system cannot keep it, or which other users may not touch."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.partition.conftest import Card

from berth import partition as partitions
from berth.errors import PartitionError, SettingError
from berth.partition.gpus import Gpu

GPU = Gpu(0, "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219", 16384)
STRANGER = 12345


class Member:
    """A process of a partition that does what it is told (native/tests/member.c)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.state = process.stdout.readline().strip()

    def __call__(self, words: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Member]


@pytest.fixture
def member(card: Card) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(name: str = "blue", **settings: str) -> Member:
            region = str(card.folder / "root" / name)
            limits = {"BERTH_REGION": region, "BERTH_GPU_MEM_MIB": None, "BERTH_FAKE_WATCH": None} | settings
            found = Member(card.start("member", **limits))
            stack.callback(found.kill)
            return found

        yield start


@pytest.fixture
def root(card: Card) -> Path:
    return card.folder / "root"


def in_the_end(answer: Callable[[], str], wanted: str) -> bool:
    """A process is gone a moment after it was killed."""
    until = time.monotonic() + 300
    while (said := answer()) != wanted and time.monotonic() < until:
        time.sleep(0.01)
    return said == wanted


def make(name: str, root: Path, user: int | None = None) -> None:
    access = partitions.Access(uid=user)
    partitions.create(name, GPU, partitions.Limit(64), access=access, root=root)


def test_a_program_that_only_looks_is_shown_the_partition_that_took_the_name(
    member: Start, root: Path
) -> None:
    make("blue", root)
    one = member(BERTH_TEST_NVML="1")
    assert one("card") == "64"
    partitions.remove("blue", force=True, root=root)
    partitions.create("blue", GPU, partitions.Limit(128), root=root)
    assert one("card") == "128"


USERS = pytest.mark.parametrize("user", [None, STRANGER])


@contextmanager
def open_to(card: Card, user: int | None) -> Iterator[dict[str, str]]:
    """The settings of a member that runs as this user, whom the card and the partition let in."""
    if user is None:
        yield {}
        return
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o777)
    yield {"BERTH_TEST_UID": str(user)}


@USERS
def test_a_living_member_is_not_buried_when_another_partition_takes_the_name(
    card: Card, member: Start, root: Path, user: int | None
) -> None:
    with open_to(card, user) as settings:
        make("blue", root, user)
        one, two = member(**settings), member(**settings)
        assert (one("take 40"), two("take 40")) == ("yes", "no")
        partitions.remove("blue", force=True, root=root)
        make("blue", root, user)
        for _ in range(40):  # what lives without a proof is believed for a tenth of a second only
            assert (two("take 40"), two("room")) == ("no", "24")
            time.sleep(0.01)
        assert (one("take 24"), two("room")) == ("yes", "0")


@USERS
@pytest.mark.parametrize("path", ["gone", "taken by another"])
def test_what_a_dead_member_held_is_given_back_whatever_became_of_the_path(
    card: Card, member: Start, root: Path, user: int | None, path: str
) -> None:
    with open_to(card, user) as settings:
        make("blue", root, user)
        one, two = member(**settings), member(**settings)
        assert (one("take 40"), two("take 40")) == ("yes", "no")
        partitions.remove("blue", force=True, root=root)
        if path != "gone":
            make("blue", root, user)
        one.kill()
        assert in_the_end(lambda: two("take 40"), "yes")
        assert two("take 25") == "no"


@USERS
def test_those_who_bury_at_once_bury_each_dead_member_once(
    card: Card, member: Start, root: Path, user: int | None
) -> None:
    with open_to(card, user) as settings:
        make("blue", root, user)
        members = [member(**settings) for _ in range(8)]
        assert [one("take 8") for one in members] == ["yes"] * 8
        partitions.remove("blue", force=True, root=root)
        for one in members[4:]:
            one.process.kill()
        for one in members[4:]:
            one.process.wait()
        survivors = members[:4]

        def taken_and_held() -> str:
            """By the driver's own count, after each has asked for more at the same time as the others."""
            with ThreadPoolExecutor(4) as at_once:
                list(at_once.map(lambda one: one("take 8"), survivors))
            return str(sum(int(one("held")) for one in survivors))

        assert in_the_end(taken_and_held, "64")
        assert taken_and_held() == "64"


def modes(folder: Path) -> tuple[int, int, int, int]:
    """The folder's mode, and the counters' mode, user and group."""
    (use,) = folder.glob("*.use")
    return folder.stat().st_mode & 0o777, use.stat().st_mode & 0o777, use.stat().st_uid, use.stat().st_gid


def test_the_counters_are_open_to_users_who_may_join_and_to_no_others(root: Path) -> None:
    """Without a name, a container of any user may write the file that is mounted into it, and no user of the host may
    come to it: the folder is its maker's."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    opened = {
        "mine": partitions.Access(),
        "user": partitions.Access(uid=STRANGER),
        "group": partitions.Access(gid=54321),
        "both": partitions.Access(STRANGER, 54321),
    }
    for name, access in opened.items():
        partitions.create(name, GPU, partitions.Limit(64), access=access, root=root)
    assert {name: modes(root / name) for name in opened} == {
        "mine": (0o700, 0o666, 0, 0),
        "user": (0o755, 0o600, STRANGER, 0),
        "group": (0o755, 0o660, 0, 54321),
        "both": (0o755, 0o660, STRANGER, 54321),
    }


def as_stranger(*words: str) -> str:
    """What a command says that another user of the host runs."""
    return subprocess.run(
        words, user=STRANGER, group=STRANGER, extra_groups=[], capture_output=True, text=True, check=False
    ).stderr


@pytest.mark.parametrize("owner", [None, 23456])
def test_another_user_of_the_host_can_neither_write_the_counters_nor_cut_them(
    card: Card, member: Start, root: Path, owner: int | None
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o755)
    make("blue", root, owner)
    one = member()
    (use,) = (root / "blue").glob("*.use")
    assert "Permission denied" in as_stranger("truncate", "-s", "100", str(use))
    assert "Permission denied" in as_stranger("dd", "if=/dev/zero", f"of={use}", "conv=notrunc", "count=1")
    assert one("take 64") == "yes"


def test_a_user_whom_the_partition_is_not_open_to_is_told_so(card: Card, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o755)
    make("blue", root)
    os.seteuid(STRANGER)
    try:
        with pytest.raises(
            PartitionError, match=r"'blue' is not open to this user \(uid 12345\); .* --owner or"
        ):
            partitions.find("blue", root)
    finally:
        os.seteuid(0)


def test_a_program_of_a_user_whom_the_partition_is_not_open_to_gets_no_gpu(card: Card, root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    card.folder.chmod(0o777)
    make("blue", root)
    words = [str(card.native / "check"), "none"]
    limits = {"BERTH_REGION": str(root / "blue"), "BERTH_GPU_MEM_MIB": None}
    ran = subprocess.run(words, env=card.environment(limits), user=STRANGER, extra_groups=[], check=False)
    assert ran.returncode == 0
    assert "blue is not open to this user; make the partition with --owner or --group" in card.log


def test_the_gpus_of_a_partition_are_open_to_the_same_users(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    second = Gpu(1, "GPU-c0c7ced5-dce3-eaf1-f8ff-060d141b2229", 16384)
    third = Gpu(2, "GPU-d0c7ced5-dce3-eaf1-f8ff-060d141b2229", 16384)
    make("blue", root, STRANGER)
    partitions.create("blue", second, partitions.Limit(64), root=root)
    assert {use.stat().st_uid for use in (root / "blue").glob("*.use")} == {STRANGER}
    other = partitions.Access(uid=777)
    with pytest.raises(PartitionError, match="open to user 12345, group None; name the same"):
        partitions.create("blue", third, partitions.Limit(64), access=other, root=root)


def test_a_user_or_group_that_is_not_there_is_refused() -> None:
    assert partitions.access_of("root", "54321") == partitions.Access(0, 54321)
    with pytest.raises(SettingError, match="no user 'nobody-of-that-name'"):
        partitions.access_of("nobody-of-that-name", None)
    with pytest.raises(SettingError, match="no group 'none-of-that-name'"):
        partitions.access_of(None, "none-of-that-name")


# ---- file systems ----


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", options, "none", str(folder)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_region_in_memory_that_may_not_be_executed_holds(card: Card, member: Start) -> None:
    with mounted(card.folder / "shm", "noexec,nosuid,nodev,size=4m") as place:
        make("blue", place / "root")
        two = [member(BERTH_REGION=str(place / "root" / "blue")) for _ in range(2)]
        assert (two[0]("take 40"), two[1]("take 40"), two[1]("take 24")) == ("yes", "no", "yes")
        for one in two:
            one.kill()


def test_a_region_on_a_disk_holds(member: Start, tmp_path: Path) -> None:
    make("blue", tmp_path)
    one, two = (member(BERTH_REGION=str(tmp_path / "blue")) for _ in range(2))
    assert (one("take 40"), two("take 40")) == ("yes", "no")
    one.kill()
    assert in_the_end(lambda: two("take 40"), "yes")


@pytest.mark.parametrize(
    ("strange", "said"),
    [
        ("nfs", "is on NFS, where what one machine writes another may not see"),
        (
            "lockless",
            "its file system keeps no locks (No locks available), which tell whether a process lives",
        ),
    ],
)
def test_a_file_system_that_cannot_keep_a_region_is_named(
    card: Card, native: Path, root: Path, strange: str, said: str
) -> None:
    make("blue", root)
    libraries = f"{native / 'libstrange.so'} {native / 'libberth.so'}"
    settings = {"BERTH_TEST_STRANGE": strange, "LD_PRELOAD": libraries, "BERTH_GPU_MEM_MIB": None}
    assert card.run("check", "none", BERTH_REGION=str(root / "blue"), **settings) == (0, "")
    assert said in card.log
    assert "name a folder in memory or on a local disk" in card.log
