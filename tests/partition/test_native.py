"""Partitions whose limit the driver keeps for a cgroup, over an NVML that does so (native/tests/fake_nvml.c) and the
kernel's own hierarchy of version 2."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, Berth, Card
from tests.partition.runtime import BERTH, GPU_JOB, Container

from berth import partition as partitions
from berth.errors import PartitionError
from berth.partition.native import _groups_of, _mount

GPU = "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219"
UNLIMITED = 2**64 - 1
GIB = 1 << 30
PITCHED = """
import ctypes, sys
cuda, out = ctypes.CDLL("libcuda.so.1"), [ctypes.c_uint64() for _ in range(3)]
assert cuda.cuInit(0) == cuda.cuCtxCreate_v2(ctypes.byref(out[0]), 0, 0) == 0
rows = ctypes.c_size_t(int(sys.argv[1]) << 10)
sys.exit(cuda.cuMemAllocPitch_v2(ctypes.byref(out[1]), ctypes.byref(out[2]), ctypes.c_size_t(1024), rows, 4))
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or _mount() is None, reason="this user has no cgroup of version 2 to make others in"
)


@pytest.fixture
def root(card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The partitions' root, over a driver with limits; whatever cgroups it has left go with it."""
    monkeypatch.setenv("BERTH_FAKE_NVML", "limits")
    folder = card.folder / "root"
    yield folder
    groups = _groups_of(folder)
    assert groups is not None
    for group in [*groups.iterdir(), groups] if groups.exists() else []:
        if group.is_dir():
            (group / "cgroup.kill").write_text("1")
            _until_gone(group)


@pytest.fixture
def containers(root: Path, card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cgroup below which a runtime makes those of its containers."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(card.native / "fake"))
    apart = ["unshare", "--mount", "--cgroup", "true"]
    if shutil.which("unshare") is None or subprocess.run(apart, check=False).returncode != 0:
        pytest.skip("this user may not make namespaces of mounts and cgroups")
    mount = _mount()
    assert mount is not None
    parent = mount / f"test-{card.folder.name}"
    parent.mkdir()
    yield parent
    for group in [*parent.iterdir(), parent]:
        if group.is_dir():
            (group / "cgroup.kill").write_text("1")
            _until_gone(group)


def native_apart(does: str) -> str:
    """What a process of its own prints, since NVML keeps the card that it was started with."""
    program = f"from pathlib import Path\nfrom berth.partition import fake_driver_folder, native\n{does}"
    return subprocess.run(
        [sys.executable, "-c", program], check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def limits_of(group: Path) -> tuple[int, int]:
    """The soft and the hard limit that the driver has of a cgroup, in bytes."""
    soft, hard = native_apart(
        f"print(*native._get(Path({str(group)!r}), {GPU!r}, fake_driver_folder())[1:])"
    ).split()
    return int(soft), int(hard)


def _until_gone(group: Path) -> None:
    end = time.monotonic() + 300
    while True:
        try:
            group.rmdir()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)
        else:
            return


def made(berth: Berth, name: str = "blue", mem: str = "1G") -> dict[str, object]:
    code, said = berth("partition", "create", name, "--native", "--mem", mem, "--fake-gpu", "--json")
    assert code == 0, said
    return dict(json.loads(said))


def run_in(berth: Berth, mib: int, *, preload: bool = True, **variables: str) -> tuple[int, str]:
    """A program in the partition that takes this much; without libberth the driver alone can refuse it."""
    bare = [] if preload else ["env", "-u", "LD_PRELOAD"]
    command = [*bare, sys.executable, str(GPU_JOB), str(mib)]
    return berth("partition", "exec", "blue", "--fake-gpu", "--", *command, **variables)


def test_the_driver_keeps_the_limit_of_a_program_that_unloads_the_library(
    berth_apart: Berth, root: Path, card: Card
) -> None:
    blue = made(berth_apart)
    hardware = blue["hardware"]
    assert isinstance(hardware, dict)
    assert (hardware["kind"], hardware["mem_mib"]) == ("native", 1024)
    group = Path(hardware["group"])
    assert group.is_dir()
    assert " native " in berth_apart("partition", "list")[1]
    assert run_in(berth_apart, 900, preload=False)[0] == 0
    assert run_in(berth_apart, 1100, preload=False)[0] == 1
    assert run_in(berth_apart, 900)[0] == 0
    resized = berth_apart("partition", "resize", "blue", "--mem", "2G", "--fake-gpu")
    assert resized[0] == 0, resized[1]
    assert run_in(berth_apart, 1100, preload=False)[0] == 0
    assert run_in(berth_apart, 2100, preload=False)[0] == 1
    assert berth_apart("partition", "remove", "blue", "--fake-gpu") == (0, "")
    assert not group.exists()
    assert made(berth_apart)["limit_bytes"] == 1 << 30  # nothing of the first is left


def test_where_the_driver_keeps_the_limit_the_library_counts_and_does_not_refuse(
    root: Path, card: Card, native: Path
) -> None:
    """A region that has room for less than the driver gives: what is held is counted, what the driver refuses too."""
    limit = partitions.Limit(1024, witness=True)
    root.mkdir()
    region = partitions.create("blue", CARDS[0], limit, root=root)
    environment = card.environment({"BERTH_REGION": str(region.folder), "BERTH_GPU_MEM_MIB": None})
    environment.pop("BERTH_FAKE_WATCH")
    for command, status in (
        ([str(GPU_JOB), "1100"], 0), ([str(GPU_JOB), "17000"], 1), (["-c", PITCHED, "17000"], 2),
    ):  # fmt: skip
        assert subprocess.run([sys.executable, *command], env=environment, check=False).returncode == status
    (seen,) = partitions.find("blue", root)
    assert (seen.peak_bytes >> 20, seen.used_bytes, seen.limit_bytes >> 30) == (1100, 0, 1)
    assert [(one.call, one.asked_bytes >> 20, one.left_bytes >> 20) for one in seen.refusals] == [
        ("cuMemAlloc", 17000, 1024), ("cuMemAllocPitch", 17000, 1024),
    ]  # fmt: skip


def test_a_limit_that_the_driver_accepts_and_does_not_keep_is_an_error(
    berth_apart: Berth, root: Path
) -> None:
    words = ("partition", "create", "blue", "--native", "--mem", "1G", "--fake-gpu")
    code, said = berth_apart(*words, BERTH_FAKE_NVML="limits,deaf")
    assert (code, "should have a limit of 1024 MiB" in said, "the driver keeps none" in said) == (
        2,
        True,
        True,
    )
    groups = _groups_of(root)
    assert groups is not None
    left = [path for path in groups.iterdir() if path.is_dir()]
    assert (partitions.partitions(root), (root / "blue").exists(), left) == ([], False, [])
    assert "NVML does not set the limits" in berth_apart(*words, BERTH_FAKE_NVML="limits,full")[1]
    old = berth_apart(*words, BERTH_FAKE_VERSION="12080", BERTH_FAKE_CARD=str(root.parent / "old"))
    assert (old[0], "they come with driver 615" in old[1]) == (2, True)


def test_a_limit_that_has_gone_is_set_anew_or_nothing_is_started(berth_apart: Berth, root: Path) -> None:
    group = Path(made(berth_apart)["hardware"]["group"])  # type: ignore[index]
    clear = (
        "from pathlib import Path\n"
        "from berth.partition import fake_driver_folder, native\n"
        f"native._set(Path({str(group)!r}), {GPU!r}, 0, {UNLIMITED}, fake_driver_folder())\n"
    )
    subprocess.run([sys.executable, "-c", clear], check=True)
    code, said = run_in(berth_apart, 100, BERTH_FAKE_NVML="limits,deaf")
    assert (code, "nothing is started in it" in said, "holds" in said) == (2, True, False)
    assert run_in(berth_apart, 1100, preload=False)[0] == 1
    assert limits_of(group) == (GIB, GIB)


def test_what_a_crash_left_is_cleared_when_the_next_is_made(
    berth_apart: Berth, root: Path, card: Card
) -> None:
    group = Path(made(berth_apart)["hardware"]["group"])  # type: ignore[index]
    left = group.with_name("left")
    left.mkdir()
    busy = group.with_name("busy")
    busy.mkdir()
    sleeper = subprocess.Popen(["sleep", "1000"])
    try:
        (busy / "cgroup.procs").write_text(str(sleeper.pid))
        made(berth_apart, "green")
        assert (left.exists(), busy.exists(), group.exists()) == (False, True, True)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_it_is_chosen_where_the_machine_can_and_root_asks_for_itself(
    berth_apart: Berth, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_GPUS", "2")

    def kind(*more: str, **variables: str) -> str | None:
        words = ("--mem", "1G", "--fake-gpu", "--json", *more)
        code, said = berth_apart("partition", "create", *words, **variables)
        assert code == 0, said
        hardware = json.loads(said)["hardware"]
        return hardware and hardware["kind"]

    assert kind("blue") == "native"
    assert kind("blue", "--gpu", "1") == "native"
    assert kind("red", "--no-native") is None
    assert kind("red", "--gpu", "1") is None  # as its first GPU
    assert kind("green", "--group", "0") is None
    assert kind("large", "--overcommit") is None
    assert kind("old", BERTH_FAKE_NVML="total") is None
    blue = partitions.find("blue", root)
    with pytest.raises(PartitionError, match="kept by native, and does not grow"):
        partitions.Granter(blue[0].folder, blue[0].uuid)
    assert len({one.hardware.group for one in blue if one.hardware}) == 1
    assert berth_apart("partition", "remove", "blue", "--fake-gpu") == (0, "")
    assert blue[0].hardware is not None
    assert not Path(blue[0].hardware.group).exists()
    words = ("partition", "create", "red", "--mem", "1G", "--native", "--mps", "--fake-gpu")
    assert "--native, --mps and --mig exclude each other" in berth_apart(*words)[1]


@pytest.mark.slow
def test_a_second_gpu_that_is_refused_leaves_the_first_its_cgroup_and_limit(
    berth_apart: Berth, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_FAKE_GPUS", "2")
    group = Path(made(berth_apart)["hardware"]["group"])  # type: ignore[index]
    more = ("partition", "create", "blue", "--gpu", "1", "--native", "--mem", "1G", "--fake-gpu")
    assert berth_apart(*more, BERTH_FAKE_NVML="limits,deaf")[0] == 2
    resized = berth_apart("partition", "resize", "blue", "--mem", "2G", "--fake-gpu")
    assert resized[0] == 0, resized[1]
    assert (limits_of(group), limits_of(group.parent)[0]) == ((2 * GIB, 2 * GIB), 2 * GIB)


@pytest.mark.slow
def test_a_containers_own_cgroup_has_the_limit_and_leaves_nothing_above_it(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    own = Path(made(berth_apart)["hardware"]["group"])  # type: ignore[index]
    one = Container(containers, card.folder / "one")
    one.make("blue")
    code, said = one.create()
    assert code == 0, said
    assert (one.run(900), one.run(1100)) == (0, 1)  # without libberth: the driver refuses
    assert (limits_of(one.group), limits_of(containers)) == ((GIB, GIB), (GIB, UNLIMITED))
    one.end()
    assert limits_of(containers) == (GIB, UNLIMITED)  # what the driver never saw the end of
    assert one.stopped() == (0, "")
    assert (limits_of(containers)[0], limits_of(own), limits_of(own.parent)[0]) == (0, (GIB, GIB), GIB)


@pytest.mark.slow
def test_an_ended_container_is_cleared_before_its_cgroup_goes_if_it_is_seen_first(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    made(berth_apart)
    one = Container(containers, card.folder / "one")
    one.make("blue")
    with one.holding(100):
        assert one.create()[0] == 0
        berth_apart("partition", "watch", "--times", "1", "--fake-gpu")
        assert limits_of(one.group) == (GIB, GIB)
    berth_apart("partition", "watch", "--times", "1", "--fake-gpu")
    assert (limits_of(one.group), limits_of(containers)[0]) == ((0, UNLIMITED), 0)


@pytest.mark.slow
def test_a_container_that_starts_again_at_its_path_leaves_nothing_above_it(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    made(berth_apart)
    one = Container(containers, card.folder / "one")
    for _ in range(3):  # its runtime is killed before the hook of the end
        one.make("blue")
        assert one.create()[0] == 0
        one.end()
    assert limits_of(containers)[0] == GIB
    one.make("blue")  # and the last one never comes as far as its hook
    berth_apart("partition", "watch", "--times", "1", "--fake-gpu")
    one.end()
    assert limits_of(containers)[0] == 0


@pytest.mark.slow
def test_a_container_at_a_path_that_another_partitions_had_keeps_its_own_limit(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    own = Path(made(berth_apart, "nat", "4G")["hardware"]["group"])  # type: ignore[index]
    made(berth_apart, "red", "1G")
    one = Container(containers, card.folder / "one")
    one.make("nat")
    assert one.create()[0] == 0
    one.end()  # its runtime is killed before the hook of the end
    one.make("red")
    with one.holding(100):
        assert one.create()[0] == 0
        after_red = (limits_of(one.group), limits_of(containers)[0], limits_of(own))
        assert berth_apart("partition", "exec", "nat", "--fake-gpu", "--", "true")[0] == 0
        after_nat = (limits_of(one.group), limits_of(containers)[0], limits_of(own))
    assert after_red == after_nat == ((GIB, GIB), GIB, (4 * GIB, 4 * GIB))


def test_a_program_that_joins_by_mounts_alone_after_the_last_exec_is_limited_by_the_library(
    berth_apart: Berth, root: Path, card: Card
) -> None:
    made(berth_apart)
    assert run_in(berth_apart, 900)[0] == 0
    environment = card.environment({"BERTH_REGION": str(root / "blue"), "BERTH_GPU_MEM_MIB": None})
    for mib, status in ((900, 0), (1100, 1)):
        command = [sys.executable, str(GPU_JOB), str(mib)]
        assert subprocess.run(command, env=environment, check=False).returncode == status


@pytest.mark.slow
def test_of_two_containers_each_has_the_drivers_limit_and_libberth_keeps_the_sum(
    berth_apart: Berth, root: Path, card: Card, containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(berth_apart)
    monkeypatch.setenv("BERTH_REGION", str(root / "blue"))
    library = str(card.native / "libberth.so")
    one, two = (Container(containers, card.folder / name) for name in ("one", "two"))
    one.make("blue")
    two.make("blue")
    with one.holding(600, preload=library), two.holding(1):
        assert one.create()[0] == two.create()[0] == 0
        assert (limits_of(one.group)[1], limits_of(two.group)[1]) == (GIB, GIB)
        assert (two.run(600), two.run(600, preload=library), two.run(300, preload=library)) == (0, 1, 0)
    (seen,) = partitions.find("blue", root)
    assert [refusal.asked_bytes >> 20 for refusal in seen.refusals] == [600]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "linked", "left"),
    [(0, False, (0, UNLIMITED)), (12345, False, (GIB, GIB)), (0, True, (GIB, GIB))],
)
def test_notes_of_another_user_name_no_cgroup_whose_limit_root_takes_away(
    berth_apart: Berth, root: Path, card: Card, owner: int, linked: bool, left: tuple[int, int]
) -> None:
    made(berth_apart)
    (note,) = (root / "blue").glob("*.hardware")
    kept = json.loads(note.read_text())
    others = card.folder / "others"
    shutil.copytree(root / "blue", others / "blue")
    forged = {**kept, "group": kept["group"] + "-other", "groups": [kept["group"]]}
    (others / "blue" / note.name).write_text(json.dumps(forged))
    os.chown(others, owner, -1)
    if linked:
        others = others.rename(card.folder / "tmp")
        (card.folder / "others").symlink_to(others)
        others = card.folder / "others"
    native_apart(f"native.sweep(Path({str(others)!r}), fake_driver_folder())")
    assert limits_of(Path(kept["group"])) == left


def test_a_container_is_not_started_without_its_limit(
    berth_apart: Berth, root: Path, card: Card, containers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(berth_apart)
    one = Container(containers, card.folder / "one")
    one.make("blue")
    monkeypatch.setenv("BERTH_FAKE_NVML", "limits,deaf")
    code, said = one.create()
    assert (code, "the driver keeps none; nothing is started in it" in said) == (2, True)
    monkeypatch.setenv("BERTH_FAKE_NVML", "limits")
    mount = _mount()
    assert mount is not None
    outside = Container(mount.parent, card.folder / mount.name)  # in the hierarchy's root
    outside.make("blue")
    code, said = outside.create()
    assert (code, "no cgroup of version 2 of its own" in said) == (2, True)


def test_a_cdi_device_has_the_container_call_the_hook(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    made(berth_apart)
    code, said = berth_apart("partition", "cdi", "blue", "--fake-gpu")
    assert code == 0, said
    hooks = json.loads(said)["devices"][0]["containerEdits"]["hooks"]
    assert [hook["hookName"] for hook in hooks] == ["createContainer", "poststop"]
    assert hooks[0]["env"] == [f"BERTH_ROOT={root}"]
    one = Container(containers, card.folder / "one", hooks[0]["args"][1:])
    one.make("another")
    code, said = one.create()
    assert code == 0, said
    assert limits_of(one.group) == (GIB, GIB)


@pytest.mark.slow
def test_kills_at_any_moment_leave_no_limit_and_start_nothing_without_one(
    berth_apart: Berth, root: Path, card: Card, containers: Path
) -> None:
    """Of `create`, of a container's start and end, of `exec` and `remove`, killed after a while that is drawn; the next
    `create` mends all.

    BERTH_NATIVE_KILLS says how many.
    """
    inside = Path(__file__).with_name("runtime.py")
    berth = [*BERTH, "partition"]
    over = [sys.executable, str(GPU_JOB), "1100"]
    hook = ["partition", "inject", "--fake-gpu"]
    lines = (
        [*berth, "create", "blue", "--mem", "1G", "--fake-gpu"],
        [sys.executable, str(inside), str(containers), str(card.folder / "one"), "1100", *hook],
        [*berth, "exec", "blue", "--fake-gpu", "--", "env", "-u", "LD_PRELOAD", *over],
        [*berth, "remove", "blue", "--force", "--fake-gpu"],
    )
    held, ends = [], 0
    for turn in range(-(-int(os.environ.get("BERTH_NATIVE_KILLS", "60")) // len(lines))):
        for at, words in enumerate(lines):
            process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                long_s = 0.8 if words[1] == str(inside) else 0.0
                said = process.communicate(
                    timeout=0.05 + long_s * (turn % 3) + (turn * 7 + at * 3) % 40 / 100
                )[0]
                ends += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                if words[1] == str(inside):
                    Container(containers, card.folder / "one").end()  # as the runtime does, but for the hook
                said = process.communicate()[0]
            held.append(b"holds 1100" in said)
    assert not any(held)
    if root.exists() and (root / "blue").exists():
        berth_apart("partition", "remove", "blue", "--force", "--fake-gpu")
    Container(containers, card.folder / "one").end()
    green = Path(made(berth_apart, "green")["hardware"]["group"])  # type: ignore[index]
    assert [path.name for path in green.parent.iterdir() if path.is_dir()] == ["green"]
    assert [one.name for one in partitions.partitions(root)] == ["green"]
    assert (limits_of(containers)[0], limits_of(green.parent)[0]) == (0, GIB)
