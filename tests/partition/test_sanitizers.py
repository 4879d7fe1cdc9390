"""Built with sanitizers every family runs without a finding; the region's parser takes any bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from tests.partition.conftest import ROOT, Card
from tests.partition.test_calls import FAMILIES


@cache
def build(variant: str) -> Path:
    subprocess.run(
        ["make", "-s", "-j2", "-C", str(ROOT / "native"), "sanitized", f"VARIANT={variant}"],
        check=True,
        capture_output=True,
    )
    return ROOT / "build" / f"native-{variant}"


def runtime(name: str) -> str:
    path = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    if not Path(path).is_absolute():
        pytest.skip(f"the compiler has no {name}")
    return path


def finds_nothing(card: Card, variant: str, library: str, options: dict[str, str], *words: str) -> None:
    """Runs one snippet under a sanitizer, without the random addresses that its shadow may collide with."""
    card.native = build(variant)
    shutil.rmtree(card.folder / "region", ignore_errors=True)
    preload = f"{runtime(library)} {card.native / 'libberth.so'}"
    environment = card.environment({"LD_PRELOAD": None}) | options
    program, *rest = words
    command = ["setarch", "-R", "env", f"LD_PRELOAD={preload}", str(card.native / program), *rest]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout + answer.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_address_and_undefined_behaviour_sanitizers_find_nothing(card: Card, family: str) -> None:
    finds_nothing(card, "asan", "libasan.so", {"ASAN_OPTIONS": "detect_leaks=0"}, "check", family)


@pytest.mark.slow
@pytest.mark.parametrize("route", ["dlsym", "lookup", "global", "dlclose", "dlmopen_shares"])
def test_the_routes_have_no_finding_either(card: Card, route: str) -> None:
    finds_nothing(card, "asan", "libasan.so", {"ASAN_OPTIONS": "detect_leaks=0"}, "routes", route)


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["threads", "linear", "async", "pool", "fork", "start_beside", "capture_beside"]
)
def test_thread_sanitizer_finds_nothing(card: Card, family: str) -> None:
    options = {"TSAN_OPTIONS": "exitcode=66"}
    if family == "capture_beside":
        options["BERTH_GPU_CORE_PCT"] = "50"
    finds_nothing(card, "tsan", "libtsan.so", options, "check", family)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "vmm"])
def test_valgrind_finds_nothing(card: Card, family: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    environment = card.environment({"LD_PRELOAD": None, "BERTH_FAKE_WATCH": None}) | {
        "BERTH_FAKE_HEAP_GIB": "8"
    }
    program = str(card.native / "check")
    # Leaks are not asked for: valgrind would look through 8 GiB of the fake card's addresses for pointers.
    command = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=no", program, family]
    environment["LD_PRELOAD"] = str(card.native / "libberth.so")
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr


@pytest.mark.slow
def test_the_regions_parser_takes_any_bytes(tmp_path: Path) -> None:
    """Two seconds of bench/partition_fuzz.py, which fuzzes for ten minutes."""
    seconds = os.environ.get("BERTH_FUZZ_SECONDS", "2")
    command = [sys.executable, str(ROOT / "bench" / "partition_fuzz.py"), "--seconds", seconds]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if answer.stdout.startswith("not run:"):
        pytest.skip(answer.stdout.strip())
    assert answer.returncode == 0, answer.stderr
    assert "no finding" in answer.stdout
