"""What the partition library promises, over a second fake driver that shares no line with the first.

It is written from NVIDIA's own header (`apart/`), so the library's declarations of the driver's calls are compared
with the published ones, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import files
from pathlib import Path

import pytest
from tests.partition.conftest import ROOT

from berth.partition.regions import read, regions_in

SOURCE = ROOT / "tests" / "partition" / "apart"
KINDS = ["true", "host", "own", "none"]
LIMIT_MIB = 2000
CONTEXT_MIB = 300  # of the driver; 512 are charged where nothing tells, amid other partitions


@pytest.fixture(scope="module")
def built() -> Iterator[Path]:
    """The driver, its NVML and the program that asks it, in a folder of their own."""
    (header,) = (path for path in files("nvidia-cuda-runtime") or [] if path.name == "cuda.h")
    compiler = [shutil.which("cc") or "cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    compiler += ["-I", str(Path(str(header.locate())).parent)]
    # A driver's own calls of its functions do not come past the library.
    shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic"]
    with tempfile.TemporaryDirectory(prefix="berth-apart-") as name:
        folder = Path(name)
        for library, names in (("libcuda.so.1", ["driver.c", "graphs.c"]), ("libnvidia-ml.so.1", ["nvml.c"])):
            sources = [SOURCE / name for name in names]
            words = [*compiler, *shared, f"-Wl,-soname,{library}", *sources, "-o", folder / library]
            subprocess.run(words, check=True)
        program = folder / "program"
        link = ["-o", program, f"-L{folder}", "-l:libcuda.so.1"]
        subprocess.run([*compiler, SOURCE / "program.c", *link], check=True)
        yield folder


@pytest.fixture
def card() -> Iterator[Path]:
    """A folder of a card and its partitions, in memory."""
    parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="berth-apart-", dir=parent) as name:
        yield Path(name)


def start(
    native: Path, built: Path, card: Path, words: list[str], kind: str, part: int = 0, **limits: str
) -> subprocess.Popen[str]:
    drop = ("BERTH_", "LD_", "CUDA_", "APART_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(drop)}
    environment |= {
        "APART_CARD": str(card / "card"),
        "APART_NVML": kind,
        "APART_PART": str(part),
        "LD_LIBRARY_PATH": str(built),
        "LD_PRELOAD": str(native / "libberth.so"),
        "BERTH_REGION": str(card / f"region{part}"),
        "BERTH_GPU_MEM_MIB": str(LIMIT_MIB),
    } | limits
    return subprocess.Popen(
        [built / "program", *words],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_path_of_memory_gets_past_and_all_that_the_driver_has_is_told(
    native: Path, built: Path, card: Path, kind: str, beside: bool
) -> None:
    with contextlib.ExitStack() as stack:
        if beside:
            holding = start(native, built, card, ["hold", "5000"], kind, part=1, BERTH_GPU_MEM_MIB="8000")
            neighbour = stack.enter_context(holding)
            stack.callback(neighbour.kill)
            assert neighbour.stdout is not None
            assert neighbour.stdout.readline() == "held\n"
        more_mib = 512 - CONTEXT_MIB if beside and kind == "none" else 0
        asking = start(native, built, card, ["memory", str(LIMIT_MIB), str(more_mib)], kind)
        output, _ = asking.communicate(timeout=300)
    assert asking.returncode == 0, output
    modules = "2" if more_mib else "3"
    assert [line for line in output.splitlines() if line[0].isdigit()] == [
        "3 graphs",
        f"{modules} modules",
        f"{modules} modules",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_driver_ran_is_charged_and_a_share_limits_it(
    native: Path, built: Path, card: Path, kind: str
) -> None:
    """Each partition is charged for the time that the driver counts.

    How near a share is kept is asked by a simulated clock (test_shares.py). By this machine's own clock, which other
    programs hold up, it is only asked that a share limits at all: without one each of the two gets half of the card.
    """
    shares = [(10, "2000"), (25, "5000")]
    running = [
        start(native, built, card, ["launch", kernel_us, "0.8"], kind, part, BERTH_GPU_CORE_PCT=str(pct))
        for part, (pct, kernel_us) in enumerate(shares)
    ]
    seen = [[float(word) for word in one.communicate(timeout=300)[0].split()] for one in running]
    for part, (used_ms, passed_ms) in enumerate(seen):
        region = card / f"region{part}"
        (charged_ms,) = (read(region, uuid, "").gpu_ns / 1e6 for uuid in regions_in(region))
        assert charged_ms >= 0.9 * used_ms > 0
        assert used_ms < passed_ms * 1.5 * shares[part][0] / 100
