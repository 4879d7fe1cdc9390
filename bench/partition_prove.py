"""Try the ways past a limit against this libberth and against other libraries, over the strict fake driver.

    python bench/partition_prove.py [--before 893c67c9^] [--hami build/libvgpu.so] [--mem 64M] [--json FILE]

`--before` is a commit of berth: by default the last before six ways past were closed together, so that what passed then
shows that the attempts find a hole where there is one. `--hami` is the library that you built from HAMi-core.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
STRICT = {"BERTH_FAKE_STEP_KIB": "2048", "BERTH_FAKE_LIKE": "hmm,nodes"}
COMMAND = "from berth.cli import main; main()"


def built_library(commit: str, folder: Path) -> Path:
    """libberth.so as it was at a commit."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", commit, "native"], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    out = folder / "out"
    subprocess.run(
        ["make", "-s", "-j2", "-C", folder / "native", f"OUT={out}", f"{out}/libberth.so"], check=True
    )
    return out / "libberth.so"


def proved(
    folder: Path, mem: str, sets: dict[str, str] | None = None, way: str = ""
) -> list[dict[str, object]]:
    """The rows of `berth partition prove --json`, on a fake card of its own."""
    words = [word for name, value in (sets or {}).items() for word in ("--set", f"{name}={value}")]
    command = [sys.executable, "-c", COMMAND, "partition", "prove", "--fake-gpu", "--mem", mem, "--json"]
    environment = os.environ | STRICT | {"BERTH_FAKE_CARD": str(folder / "card")}
    answer = subprocess.run(
        [*command, *(["--as-is", "--way", way, *words] if sets else [])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode not in (0, 1):
        raise SystemExit(answer.stderr)
    return list(json.loads(answer.stdout))


def proved_apart(
    folder: Path, mem: str, ways: list[str], variables: Callable[[Path], dict[str, str]]
) -> list[dict[str, object]]:
    """The same of another library, each way with counters of its own, as `prove` does it for berth's."""
    rows = []
    for way in ways:
        place = folder / way
        place.mkdir(parents=True)
        rows += proved(place, mem, variables(place), way)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="893c67c9^", help="a commit of berth; '' leaves it out")
    parser.add_argument("--hami", type=Path, help="HAMi-core's libvgpu.so")
    parser.add_argument("--mem", default="64M")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-prove-", dir="/dev/shm") as scratch:
        folder = Path(scratch)
        (folder / "now").mkdir()
        found = {"now": proved(folder / "now", words.mem)}
        ways = [str(row["way"]) for row in found["now"]]
        if words.before:
            library = built_library(words.before, folder / "before")

            def of_berth(place: Path) -> dict[str, str]:
                limit = words.mem.removesuffix("M")
                return {
                    "LD_PRELOAD": str(library),
                    "BERTH_REGION": str(place / "region"),
                    "BERTH_GPU_MEM_MIB": limit,
                }

            found["before"] = proved_apart(folder / "before", words.mem, ways, of_berth)
        if words.hami:

            def of_hami(place: Path) -> dict[str, str]:
                return {
                    "LD_PRELOAD": str(words.hami.resolve()),
                    "CUDA_DEVICE_MEMORY_LIMIT": words.mem.lower(),
                    "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(place / "cache"),
                }

            found["HAMi-core"] = proved_apart(folder / "hami", words.mem, ways, of_hami)
    print(f"{'way':24}", *(f"{name:18}" for name in found))
    for of_way in zip(*found.values(), strict=True):
        marks = [
            f"{row['verdict']}{' (documented)' if row['documented'] and row['verdict'] == 'passed' else ''}"
            for row in of_way
        ]
        print(f"{of_way[0]['way']:24}", *(f"{mark:18}" for mark in marks))
    for name, rows in found.items():
        untried = [row for row in rows if row["verdict"] == "not tried"]
        passed = [str(row["way"]) for row in rows if row["verdict"] in ("passed", "refused wrongly")]
        tried = len(rows) - len(untried)
        print(f"{name}: {len(passed)} of {tried} ways not held: {', '.join(passed) or 'none'}")
    if words.json:
        words.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
