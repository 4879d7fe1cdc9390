"""Built with sanitizers every family runs without a finding; the region's parser takes any bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from test_calls import FAMILIES

from conftest import ROOT, Card


def build(variant: str) -> Path:
    subprocess.run(
        ["make", "-s", "-C", str(ROOT / "native"), "tests", f"VARIANT={variant}"],
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


@pytest.mark.slow
def test_address_and_undefined_behaviour_sanitizers_find_nothing(card: Card) -> None:
    card.native = build("asan")
    preload = f"{runtime('libasan.so')} {card.native / 'libberth.so'}"
    for family in FAMILIES:
        shutil.rmtree(card.folder / "region", ignore_errors=True)
        answer = card.run("check", family, LD_PRELOAD=preload, ASAN_OPTIONS="detect_leaks=0")
        assert (family, *answer) == (family, 0, "")


@pytest.mark.slow
def test_thread_sanitizer_finds_nothing(card: Card) -> None:
    card.native = build("tsan")
    preload = f"{runtime('libtsan.so')} {card.native / 'libberth.so'}"
    environment = card.environment({"LD_PRELOAD": None}) | {"TSAN_OPTIONS": "exitcode=66"}
    for family in ("threads", "linear", "async", "pool", "fork"):
        shutil.rmtree(card.folder / "region", ignore_errors=True)
        command = ["setarch", "-R", "env", f"LD_PRELOAD={preload}", str(card.native / "check"), family]
        answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert (family, answer.returncode, answer.stdout + answer.stderr) == (family, 0, "")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "vmm"])
def test_valgrind_finds_nothing(card: Card, family: str) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("valgrind is not installed")
    environment = card.environment({"LD_PRELOAD": None, "BERTH_FAKE_WATCH": None}) | {
        "BERTH_FAKE_HEAP_GIB": "8"
    }
    program = str(card.native / "check")
    command = ["valgrind", "-q", "--error-exitcode=9", "--trace-children=no", program, family]
    environment["LD_PRELOAD"] = str(card.native / "libberth.so")
    answer = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=100
    )
    assert (answer.returncode, answer.stdout) == (0, ""), answer.stderr


@pytest.mark.slow
def test_the_regions_parser_takes_any_bytes(tmp_path: Path) -> None:
    """A few seconds of bench/partition_fuzz.py, which fuzzes for ten minutes."""
    seconds = os.environ.get("BERTH_FUZZ_SECONDS", "5")
    command = [sys.executable, str(ROOT / "bench" / "partition_fuzz.py"), "--seconds", seconds]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    if answer.stderr.startswith("not run:"):
        pytest.skip(answer.stderr.strip())
    assert answer.returncode == 0, answer.stderr
    assert "no finding" in answer.stdout
