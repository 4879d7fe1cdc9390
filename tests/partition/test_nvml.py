"""What contexts and modules are charged, and how compute is shared, whatever NVML says (native/tests/fake.h).

In a container NVML tells of pids of the host, or of the own process with no memory; elsewhere it may be missing, of an
old version, or wrong.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.partition.conftest import Card

from berth.partition.regions import read, regions_in

KINDS = ["", "host", "own", "hidden", "hidden,ghost", "next", "old", "total", "missing", "lies"]
CONTEXT_MIB, NEIGHBOUR_MIB, KNOWN_MIB = 300, 1500, 512
UNTOLD = {"missing", "lies"}
"""Where NVML does not tell what a context takes, so that what is known of contexts is charged."""


@pytest.fixture
def big(card: Card) -> Card:
    """A card of 16 GiB with contexts and modules as large as real ones."""
    card.settings = {
        "BERTH_FAKE_CONTEXT_MIB": str(CONTEXT_MIB),
        "BERTH_FAKE_MODULE_KIB": str(500 << 10),
        "BERTH_FAKE_WATCH": "",
        "BERTH_GPU_MEM_MIB": "2300",
    }
    return card


@contextmanager
def neighbour(card: Card) -> Iterator[subprocess.Popen[str]]:
    """Another partition's process, which holds memory of the same card."""
    with card.start(
        "taken", "hold", str(NEIGHBOUR_MIB), BERTH_REGION=str(card.folder / "other"), BERTH_LOG=None
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.communicate("\n")


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_is_charged_what_it_takes(big: Card, kind: str) -> None:
    assert big.run("taken", "context", BERTH_FAKE_NVML=kind) == (0, f"{CONTEXT_MIB} {CONTEXT_MIB}\n")


@pytest.mark.parametrize("made", [("primary", 1), ("contexts", 6)], ids=["primary", "contexts"])
@pytest.mark.parametrize("context_ms", ["0", "20"])
@pytest.mark.parametrize("kind", KINDS)
def test_contexts_that_threads_make_at_once_are_charged_no_less_than_they_take(
    big: Card, kind: str, context_ms: str, made: tuple[str, int]
) -> None:
    word, contexts = made
    limits = {"BERTH_FAKE_CONTEXT_MS": context_ms, "BERTH_GPU_MEM_MIB": "4000"}
    code, said = big.run("taken", word, BERTH_FAKE_NVML=kind, **limits)
    charged_mib, own_mib = map(int, said.split())
    assert (code, own_mib) == (0, contexts * CONTEXT_MIB)
    assert own_mib <= charged_mib <= contexts * KNOWN_MIB


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_neighbour_holds_is_not_taken_for_a_contexts(big: Card, kind: str) -> None:
    charged = KNOWN_MIB if kind in UNTOLD else CONTEXT_MIB
    with neighbour(big):
        said = big.run("taken", "context", BERTH_FAKE_NVML=kind, BERTH_GPU_MEM_MIB="1000")
    assert said == (0, f"{charged} {CONTEXT_MIB}\n")


@pytest.mark.parametrize(
    ("kind", "most_mib"),
    [
        ("", CONTEXT_MIB),
        ("host", CONTEXT_MIB),
        ("next", CONTEXT_MIB),
        ("hidden", 340),
        ("own", 640),
        ("missing", 512),
    ],
)
def test_a_neighbour_that_begins_meanwhile_makes_a_context_seem_larger_and_never_smaller(
    big: Card, kind: str, most_mib: int
) -> None:
    """It makes its own context and holds 40 MiB more while this one is made; at most its memory is charged, too."""
    other = {"BERTH_REGION": str(big.folder / "other"), "BERTH_LOG": None}
    with big.start("taken", "context", BERTH_FAKE_NVML=kind, BERTH_FAKE_CONTEXT_MS="400") as making:
        region = big.folder / "region"
        end = time.monotonic() + 120
        while not [uuid for uuid in regions_in(region) if read(region, uuid, "").used_bytes]:
            assert time.monotonic() < end, "the process charges nothing for its context"
            time.sleep(0.005)
        with big.start("taken", "hold", "40", **other) as neighbour:
            answer, _ = making.communicate(timeout=300)
            neighbour.communicate()
    charged_mib, own_mib = map(int, answer.split())
    assert own_mib == CONTEXT_MIB
    assert CONTEXT_MIB <= charged_mib <= most_mib


def test_a_context_that_cannot_be_measured_fits_in_a_partition_that_is_smaller(big: Card) -> None:
    with neighbour(big):
        said = big.run("taken", "context", BERTH_FAKE_NVML="missing", BERTH_GPU_MEM_MIB="400")
    assert said == (0, f"400 {CONTEXT_MIB}\n")


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_modules_are_charged_where_nvml_says_that_they_take_nothing(
    big: Card, kind: str, beside: bool
) -> None:
    words = ("taken", "modules")
    if beside:
        with neighbour(big):
            code, said = big.run(*words, BERTH_FAKE_NVML=kind)
    else:
        code, said = big.run(*words, BERTH_FAKE_NVML=kind)
    charged = KNOWN_MIB if beside and kind in UNTOLD else CONTEXT_MIB
    granted = (2300 - charged) // 500
    assert (code, said) == (0, f"{granted} {charged + granted * 500}\n")


@pytest.mark.parametrize(
    ("kind", "way"),
    [
        ("", "by NVML's list, in which this process is "),
        ("host", "by NVML's list, in which this process is 4"),
        ("own", "by what the card as a whole lost meanwhile"),
        ("missing", "by what a context is known to take: NVML does not tell"),
    ],
)
def test_the_log_says_how_a_context_was_measured(big: Card, kind: str, way: str) -> None:
    big.run("taken", "context", BERTH_FAKE_NVML=kind)
    assert f"a context on GPU 0: {CONTEXT_MIB} MiB charged, {way}" in big.log


def test_a_process_that_measures_is_not_waited_for(big: Card) -> None:
    """The first of a partition is ten minutes about it; what both hold is charged all the same."""
    slow = big.start("taken", "context", BERTH_FAKE_NVML="own", BERTH_FAKE_CONTEXT_MS="600000")
    try:
        region = big.folder / "region"
        end = time.monotonic() + 120
        while [read(region, uuid, "").used_bytes >> 20 for uuid in regions_in(region)] != [KNOWN_MIB]:
            assert time.monotonic() < end, "the first process charges nothing for its context"
            time.sleep(0.01)
        second = big.start("taken", "context", BERTH_FAKE_NVML="own")
        answer, _ = second.communicate(timeout=300)
        assert slow.poll() is None
    finally:
        slow.kill()
        slow.communicate()
    charged_mib, own_mib = map(int, answer.split())
    assert own_mib == CONTEXT_MIB
    assert 2 * CONTEXT_MIB <= charged_mib <= 2 * KNOWN_MIB
