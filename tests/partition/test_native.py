"""Partitions whose limit the driver keeps for a cgroup, over an NVML that does so (native/tests/fake_nvml.c) and the
kernel's own hierarchy of version 2."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.partition.conftest import CARDS, ROOT, Berth, Card

from berth import partition as partitions
from berth.partition.native import _groups_of, _mount

GPU_JOB = ROOT / "tests" / "live" / "local" / "gpu_job.py"
GPU = "GPU-b0b7bec5-ccd3-dae1-e8ef-f6fd040b1219"
UNLIMITED = 2**64 - 1
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
def root(card: Card) -> Iterator[Path]:
    """The partitions' root; whatever cgroups it has left go with it."""
    folder = card.folder / "root"
    yield folder
    groups = _groups_of(folder)
    assert groups is not None
    for group in [*groups.iterdir(), groups] if groups.exists() else []:
        if group.is_dir():
            (group / "cgroup.kill").write_text("1")
            _until_gone(group)


def _until_gone(group: Path) -> None:
    end = time.monotonic() + 60
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
    code, said = berth_apart(*words, BERTH_FAKE_NVML="deaf")
    assert (code, "should have a limit of 1024 MiB" in said, "the driver keeps none" in said) == (
        2,
        True,
        True,
    )
    groups = _groups_of(root)
    assert groups is not None
    assert (root.exists() and list(root.iterdir()), [path for path in groups.iterdir() if path.is_dir()]) == (
        [] if root.exists() else False,
        [],
    )
    assert "NVML does not set the limits" in berth_apart(*words, BERTH_FAKE_NVML="full")[1]
    old = berth_apart(*words, BERTH_FAKE_VERSION="12080", BERTH_FAKE_CARD=str(root.parent / "old"))
    assert (old[0], "this needs root, driver 615" in old[1]) == (2, True)


def test_nothing_is_started_where_the_limit_has_gone(berth_apart: Berth, root: Path) -> None:
    group = Path(made(berth_apart)["hardware"]["group"])  # type: ignore[index]
    clear = (
        "import ctypes, sys\n"
        "from pathlib import Path\n"
        "from berth.partition import native\n"
        "from berth.partition.library import fake_driver_folder\n"
        f"native._set(Path({str(group)!r}), {GPU!r}, 0, {UNLIMITED}, fake_driver_folder())\n"
    )
    subprocess.run([sys.executable, "-c", clear], check=True)
    code, said = run_in(berth_apart, 100)
    assert (code, "nothing is started in it" in said, "holds" in said) == (2, True, False)


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


def test_a_container_is_told_how_to_get_there(berth_apart: Berth, root: Path) -> None:
    made(berth_apart)
    code, said = berth_apart("partition", "cdi", "blue")
    assert (code, "start the program with: berth partition exec blue -- COMMAND" in said) == (2, True)
    words = ("partition", "create", "red", "--mem", "1G", "--native", "--mps", "--fake-gpu")
    assert "--native, --mps and --mig exclude each other" in berth_apart(*words)[1]


@pytest.mark.slow
def test_kills_at_any_moment_leave_no_limit_and_start_nothing_without_one(
    berth_apart: Berth, root: Path, card: Card
) -> None:
    """Of `create`, `exec` and `remove`, killed after a while that is drawn; the next `create` mends all.

    BERTH_NATIVE_KILLS says how many commands.
    """
    environment = os.environ | {"BERTH_ROOT": str(root), "BERTH_FAKE_CARD": str(card.folder / "card")}
    command = [sys.executable, "-c", "from berth.cli import main; main()", "partition"]
    over = [sys.executable, str(GPU_JOB), "1100"]
    lines = (
        ["create", "blue", "--native", "--mem", "1G", "--fake-gpu"],
        ["exec", "blue", "--fake-gpu", "--", "env", "-u", "LD_PRELOAD", *over],
        ["remove", "blue", "--force", "--fake-gpu"],
    )
    held = []
    for turn in range(-(-int(os.environ.get("BERTH_NATIVE_KILLS", "60")) // len(lines))):
        for at, words in enumerate(lines):
            process = subprocess.Popen(
                [*command, *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            try:
                said = process.communicate(timeout=0.05 + (turn * 7 + at * 3) % 40 / 100)[0]
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                said = process.communicate()[0]
            held.append(b"holds 1100" in said)
    assert not any(held)
    if root.exists() and (root / "blue").exists():
        berth_apart("partition", "remove", "blue", "--force", "--fake-gpu")
    made(berth_apart, "green")
    groups = _groups_of(root)
    assert groups is not None
    assert [path.name for path in groups.iterdir() if path.is_dir()] == ["green"]
    assert [one.name for one in partitions.partitions(root)] == ["green"]
