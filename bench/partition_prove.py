"""Try the ways past a limit against this libberth and against one of another commit, over the strict fake driver.

    python bench/partition_prove.py [--before 893c67c9^] [--mem 64M] [--json FILE]

By default the other one is the last before the six ways past that were closed together: what passed then shows that
the attempts find a hole where there is one.
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
STRICT = {"BERTH_FAKE_STEP_KIB": "2048", "BERTH_FAKE_LIKE": "hmm"}
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", default="893c67c9^", help="the commit of the other library")
    parser.add_argument("--mem", default="64M")
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-prove-", dir="/dev/shm") as scratch:
        folder = Path(scratch)
        library = built_library(words.before, folder / "before")
        (folder / "now").mkdir()
        now = proved(folder / "now", words.mem)
        before = []
        for row in now:  # a region of its own for each way, as `prove` makes one for berth's own
            place = folder / "before" / str(row["way"])
            place.mkdir()
            sets = {
                "LD_PRELOAD": str(library),
                "BERTH_REGION": str(place / "region"),
                "BERTH_GPU_MEM_MIB": words.mem.removesuffix("M"),
            }
            before += proved(place, words.mem, sets, str(row["way"]))
    print(f"{'way':24} {'before':16} now")
    for old, new in zip(before, now, strict=True):
        mark = " (documented)" if new["documented"] and new["verdict"] == "passed" else ""
        print(f"{new['way']:24} {old['verdict']:16} {new['verdict']}{mark}")
    for name, rows in (("before", before), ("now", now)):
        passed = [str(row["way"]) for row in rows if row["verdict"] in ("passed", "refused wrongly")]
        print(f"{name}: {len(passed)} of {len(rows)} ways not held: {', '.join(passed) or 'none'}")
    if words.json:
        words.json.write_text(json.dumps({"before": before, "now": now}, indent=1))


if __name__ == "__main__":
    main()
