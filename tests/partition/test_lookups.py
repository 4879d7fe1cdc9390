"""What cuGetProcAddress answers through the library, as bench/partition_lookups.py resolves it."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import ROOT, hooks

SCRIPT = ROOT / "bench" / "partition_lookups.py"
DATA = Path(os.environ.get("BERTH_TEST_DATA", ROOT.parent / "shared" / "data")) / "cuda_lookups"
Resolve = Callable[[Path], list[Any]]


@pytest.fixture
def resolve(native: Path, monkeypatch: pytest.MonkeyPatch) -> Resolve:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    found: Resolve = importlib.import_module(SCRIPT.stem).resolve
    return found


def bench(*words: str | Path) -> tuple[int, str]:
    answer = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True, check=False)
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.parametrize("version", ["12.9", "13.0"])
def test_every_lookup_of_the_runtime_gets_the_drivers_own_variant(resolve: Resolve, version: str) -> None:
    path = DATA / f"gpa_{version}.tsv"
    if not path.exists():
        pytest.skip(f"{path} is not here; BERTH_TEST_DATA names the folder with the recorded lookups")
    found = resolve(path)
    assert [lookup for lookup in found if not lookup.same] == []
    hooked = {lookup.name for lookup in found if lookup.hooked}
    assert {"cuMemAlloc", "cuMemAllocAsync", "cuLaunchKernel", "cuGetProcAddress", "cuMemGetInfo"} <= hooked


def test_every_entry_point_is_looked_up_at_and_between_and_beyond_its_versions(
    resolve: Resolve, tmp_path: Path
) -> None:
    """As other runtimes than the recorded ones will: each name just before, at and after each of its versions,
    and far beyond, with either default stream."""
    table = (ROOT / "native" / "entry_points.h").read_text()
    entries = re.findall(r"^ENTRY\((\w+), (\d+), ([01]), (\w+)\)", table, re.MULTILINE)
    asked = {
        (name, version, flags)
        for name, at, _, _ in entries
        for version in (int(at) - 10, int(at), int(at) + 10, 99000)
        for flags in (0, 1, 2)
    }
    path = tmp_path / "all.tsv"
    path.write_text("".join(f"{name}\t{version}\t{flags}\n" for name, version, flags in sorted(asked)))
    found = resolve(path)
    assert [lookup for lookup in found if not lookup.same] == []
    wrapped = hooks("cu")
    assert [
        lookup
        for lookup in found
        if lookup.symbol is not None and lookup.hooked != (lookup.symbol in wrapped)
    ] == []
    # What the table says itself, by a rule written anew: of the variants that the version has, the newest, and the
    # per-thread one where it is asked for and there.
    for lookup in found:
        fitting = [
            (int(thread), int(at), symbol)
            for name, at, thread, symbol in entries
            if name == lookup.name and int(at) <= lookup.version and int(thread) <= (lookup.flags & 2) // 2
        ]
        assert lookup.symbol == (max(fitting)[2] if fitting else None)


def test_a_file_of_lookups_that_is_none_says_where(native: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_text("cuInit\t2000\t0\ncuInit 2000 0\n")
    code, output = bench(tmp_path / "bad.tsv")
    assert code == 1
    assert "line 2: 'cuInit 2000 0'; expected name, version and flags, with tabs between them" in output


def test_lookups_of_versions_and_flags(native: Path, tmp_path: Path) -> None:
    asked = [
        ("cuMemAlloc", 2000, 0),
        ("cuMemAlloc", 3020, 0),
        ("cuLaunchKernel", 7000, 2),
        ("cuLaunchKernel", 7000, 1),
        ("cuNo", 1, 0),
    ]
    (tmp_path / "few.tsv").write_text(
        "".join(f"{name}\t{version}\t{flags}\n" for name, version, flags in asked)
    )
    found = json.loads(bench(tmp_path / "few.tsv", "--json")[1])
    assert [one["symbol"] for one in found] == [
        "cuMemAlloc",
        "cuMemAlloc_v2",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernel",
        None,
    ]
    assert all(one["same"] for one in found)
