"""`berth partition prove`: ways past a limit are tried here, and what they came to is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import Berth, Card

from berth.partition.proof import divider
from berth.partition.regions import read, regions_in

Apart = Callable[..., tuple[int, str]]
STRICT = {"BERTH_FAKE_STEP_KIB": "2048", "BERTH_FAKE_LIKE": "hmm,nodes", "BERTH_FAKE_GREEN_KIB": "6144"}
DOCUMENTED = {"no-environment", "counters-restored", "counters-removed"}
BY_CHANCE = {"race-map", "race-retain", "capture-race"}
"""Each needs a moment that does not come in every run."""
FREED = {"ipc-free"}
"""The fake driver frees the memory, whoever has it open."""


def rows_of(text: str) -> list[dict[str, Any]]:
    """The rows of `--json`, which the fork prints after what it says on standard error."""
    return list(json.loads(text[text.index("[") : text.rindex("]") + 1]))


def test_berth_holds_against_every_way_but_those_that_its_documentation_names(berth_apart: Apart) -> None:
    code, text = berth_apart("partition", "prove", "--fake-gpu", "--mem", "64M", "--json", **STRICT)
    rows = rows_of(text)
    passed = {row["way"] for row in rows if row["verdict"] == "passed"}
    assert (code, len(rows), passed) == (0, 80, DOCUMENTED)
    assert [(row["way"], row["why"]) for row in rows if row["verdict"] not in ("held", "passed")] == []
    assert all(row["seen_bytes"] <= 64 << 20 for row in rows if row["way"] not in DOCUMENTED)


def verdicts_where_nothing_limits(
    berth_apart: Apart, *ways: str, mem: str = "64M", **variables: str
) -> dict[str, str]:
    options = [word for way in ways for word in ("--way", way)]
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", mem, "--json")
    code, text = berth_apart(*words, *options, **STRICT, **variables)
    assert code == 1
    return {row["way"]: row["verdict"] for row in rows_of(text)}


def test_ways_pass_where_nothing_limits(berth_apart: Apart) -> None:
    ways = (
        "linear",
        "rounding",
        "async-green",
        "export-release",
        "prefetch",
        "processes",
        "graph",
        "capture",
    )
    assert verdicts_where_nothing_limits(berth_apart, *ways) == dict.fromkeys(ways, "passed")


def test_managed_memory_that_nvml_does_not_show_passes_by_what_the_driver_gave(berth_apart: Apart) -> None:
    options = ("--way", "managed", "--way", "managed-host", "--as-is", "--mem", "64M", "--json")
    like = STRICT | {"BERTH_FAKE_LIKE": "untouched"}
    rows = rows_of(berth_apart("partition", "prove", "--fake-gpu", *options, **like)[1])
    assert [(row["verdict"], row["seen_bytes"]) for row in rows] == [("passed", 0)] * 2


def test_no_array_of_a_limit_of_gigabytes_is_larger_than_a_card_takes(berth_apart: Apart) -> None:
    ways = ("linear-v1", "array", "array-v1", "array-3d", "mipmap", "lookup-old")
    verdicts = verdicts_where_nothing_limits(berth_apart, *ways, mem="16G", BERTH_FAKE_MEM_MIB="65536")
    assert verdicts == dict.fromkeys(ways, "passed")


@pytest.mark.slow
def test_every_way_passes_where_nothing_limits_unless_it_needs_luck_or_another_driver(
    berth_apart: Apart,
) -> None:
    """So a way that is held against is no proof by chance."""
    verdicts = verdicts_where_nothing_limits(berth_apart)
    held = {way for way, verdict in verdicts.items() if verdict == "held"}
    untried = {way for way, verdict in verdicts.items() if verdict == "not tried"}
    assert held - BY_CHANCE == FREED
    assert untried == {"counters", "counters-restored", "counters-removed"}


def test_a_way_that_gets_nothing_or_dies_proves_nothing_and_says_why(berth_apart: Apart) -> None:
    errors = {
        "array": ("cuArrayCreate_v2:0:1", "the driver gave it nothing, with error 1"),
        "array-v1": ("cuArrayCreate:0:201", "a driver of 64 bits refuses calls of 32 bits with error 201"),
        "graph-child": ("cuGraphAddNode:0:801", "the driver has no child graphs with memory"),
        "graph-streams": ("cuGraphLaunch:0:2", "the driver gave it nothing, with error 2"),
        "mapped-twice": ("cuMemUnmap:0:-11", "it was ended by signal 11"),
    }
    options = [word for way in errors for word in ("--way", way)]
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M", "--json", *options)
    injected = ",".join(error for error, _ in errors.values())
    rows = rows_of(berth_apart(*words, **STRICT, BERTH_FAKE_ERRORS=injected)[1])
    assert [(row["way"], row["verdict"], row["why"]) for row in rows] == [
        (way, "not tried", why) for way, (_, why) in errors.items()
    ]


def test_a_card_that_is_full_is_not_taken_for_a_driver_that_refuses_calls_of_32_bits(
    berth_apart: Apart,
) -> None:
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M", "--json", "--way", "array-v1")
    (row,) = rows_of(berth_apart(*words, **STRICT, BERTH_FAKE_ERRORS="cuArrayCreate:0:2")[1])
    assert row["verdict"] == "not tried"
    assert "32 bits" not in row["why"]
    assert "error 2" in row["why"]


def test_a_way_dies_by_a_signal_only_at_the_call_that_is_named(berth_apart: Apart) -> None:
    errors = {"BERTH_FAKE_ERRORS": "cuMemUnmap:1000:-11"}
    assert verdicts_where_nothing_limits(berth_apart, "mapped-twice", **errors) == {"mapped-twice": "passed"}


@pytest.mark.parametrize(
    ("mem", "said"),
    [
        ((), "GPU 0 (cuDevicePrimaryCtxRetain answers 2), so no way past a limit can be tried; see what"),
        (("--mem", "64M"), "GPU 0 under a limit of 64 MiB (cuDevicePrimaryCtxRetain answers 2), so no way"),
    ],
)
def test_a_card_without_a_context_is_told_with_the_limit_only_where_one_holds(
    mem: tuple[str, ...], said: str, berth_apart: Apart
) -> None:
    errors = {"BERTH_FAKE_ERRORS": "cuDevicePrimaryCtxRetain:0:2"}
    code, text = berth_apart("partition", "prove", "--fake-gpu", *mem, **errors)
    assert code == 2
    assert f"a process gets no context on {said}" in " ".join(text.split())


def test_a_way_that_nothing_limits_takes_twice_the_limit_at_most(card: Card, berth_apart: Apart) -> None:
    """Besides its contexts, and what a pool keeps."""
    ways = (
        "contexts-again",
        "reset",
        "capture-race",
        "async-kept",
        "async-mixed",
        "pools",
        "stack",
        "rounding",
    )
    ways += ("mipmap-levels", "processes", "graph", "graph-uploaded", "capture")
    options = [word for way in ways for word in ("--way", way)]
    watch = {"BERTH_FAKE_WATCH": f"0:{(2 * 64 + 32) << 20}", "BERTH_FAKE_CONTEXT_MIB": "0"}
    berth_apart(
        *("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M"),
        *options,
        "--json",
        **STRICT,
        **watch,
    )
    code = "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); cuda.cuInit(0); print(cuda.fake_violations(0))"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(card.native / "fake"),
        "BERTH_FAKE_CARD": str(card.folder / "card"),
    }
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout == "0\n"


def test_a_second_context_is_not_taken_for_memory_beyond_the_limit(berth_apart: Apart) -> None:
    ways = ("second-context", "detached", "async-other-context", "threads-free")
    options = [word for way in ways for word in ("--way", way)]
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M", "--json", *options)
    rows = rows_of(berth_apart(*words, **STRICT, BERTH_FAKE_CONTEXT_MIB="300")[1])
    assert [(row["way"], row["seen_bytes"] >> 20) for row in rows] == [(way, 128) for way in ways]


def test_a_limit_of_others_is_tried_with_the_variables_that_it_needs(card: Card, berth_apart: Apart) -> None:
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M", "--way", "linear")
    sets = {
        "LD_PRELOAD": str(card.native / "libberth.so"),
        "BERTH_REGION": str(card.folder / "other"),
        "BERTH_GPU_MEM_MIB": "64",
    }
    options = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    code, text = berth_apart(*words, *options)
    held = f"berth ({sets['LD_PRELOAD']}): a limit of 64 MiB held against 1 of 1 ways"
    assert (code, held in text) == (0, True)
    code, text = berth_apart(*words)
    assert (code, "held against 0 of 1 ways" in text, "passed: linear." in text) == (1, True, True)


def test_the_partition_whose_limit_is_tried_as_it_is_keeps_its_counters(
    card: Card, berth_apart: Apart
) -> None:
    region = card.folder / "other"
    sets = {
        "LD_PRELOAD": str(card.native / "libberth.so"),
        "BERTH_REGION": str(region),
        "BERTH_GPU_MEM_MIB": "64",
    }
    options = [word for name, value in sets.items() for word in ("--set", f"{name}={value}")]
    ways = ("counters", "counters-restored", "counters-removed")
    options += [word for way in ("linear", *ways) for word in ("--way", way)]
    words = ("partition", "prove", "--fake-gpu", "--as-is", "--mem", "64M", "--json")
    rows = rows_of(berth_apart(*words, *options)[1])
    why = "it would change counters that other programs may use"
    assert [(row["way"], row["verdict"], row["why"]) for row in rows[1:]] == [
        (way, "not tried", why) for way in ways
    ]
    (seen,) = (read(region, uuid, "") for uuid in regions_in(region))
    assert (rows[0]["verdict"], seen.used_bytes, seen.mended) == ("held", 0, 0)


def test_it_says_first_what_it_will_do_and_writes_a_page(berth_apart: Apart, tmp_path: Path) -> None:
    page = tmp_path / "proof.html"
    words = ("--mem", "64M", "--way", "linear", "--way", "no-environment", "--out", str(page))
    code, text = berth_apart("partition", "prove", "--fake-gpu", *words)
    assert code == 0
    assert text.index("2 ways past a limit of 64 MiB on GPU 0") < text.index("held")
    assert "each takes at most 128 MiB, plus contexts and what the driver rounds up, and ends" in text
    assert "Documented ways that passed: no-environment." in text
    shown = page.read_text()
    assert "passed, as documented" in shown
    assert shown.count("<tr>") == 3


def test_what_divides_the_card_is_named(tmp_path: Path) -> None:
    everywhere = tmp_path / "ld.so.preload"
    pipes = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    assert divider(pipes, "GPU-1", everywhere) == "what limits processes here"
    hami = {**pipes, "LD_PRELOAD": "/opt/libfirst.so:/opt/libvgpu.so"}
    assert divider(hami, "GPU-1", everywhere) == "HAMi-core (/opt/libvgpu.so)"
    (tmp_path / "control").touch()
    everywhere.write_text("/usr/lib/libberth.so\n")
    assert divider(pipes, "MIG-1", everywhere) == "berth (/usr/lib/libberth.so) and MIG and MPS"


def test_what_cannot_be_tried_is_refused_before_anything_runs(berth: Berth) -> None:
    prove = ("partition", "prove", "--fake-gpu")
    assert berth(*prove, "--way", "wormhole")[1].startswith("berth: no way 'wormhole'; there are linear, ")
    small = "berth: a limit of 32 MiB to be tried; it must be at least 64 MiB\n"
    assert berth(*prove, "--mem", "32M") == (2, small)
    large = berth(*prove, "--mem", "8G")
    assert (large[0], "is tried with up to 24 GiB; choose a smaller limit" in large[1]) == (2, True)
    assert "--set goes with --as-is" in berth(*prove, "--set", "A=1")[1]
    assert (
        "--set 'A' is no variable; write NAME=VALUE"
        in berth(*prove, "--as-is", "--mem", "64M", "--set", "A")[1]
    )
    assert "name its size with --mem" in berth(*prove, "--as-is")[1]
    gone = berth(*prove, "--as-is", "--mem", "64M", "--set", "LD_PRELOAD=/nothere/libvgpu.so")
    assert (gone[0], "LD_PRELOAD names /nothere/libvgpu.so, and there is no such file" in gone[1]) == (
        2,
        True,
    )
