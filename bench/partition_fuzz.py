"""Fuzz what reads bytes that others wrote: a region's files, and the accounting on whatever they say; a limit's text.

    python bench/partition_fuzz.py [--seconds 600] [--json FILE]

libFuzzer with the address and undefined-behaviour sanitizers (clang). A finding ends the run with a failure, and the
input that made it is kept beside where it was run.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).parents[1] / "native"
FLAGS = [
    "-std=c11", "-g", "-O1", "-mcx16", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=undefined",
]  # fmt: skip
COMPILERS = ("clang", "clang-19", "clang-16", "clang-14")


def build(folder: Path) -> Path | None:
    """The fuzzer; None, and a line that says why, where there is no clang with libFuzzer."""
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        print("not run: no clang here; Debian has it as clang with libclang-rt-14-dev")
        return None
    sources = [
        NATIVE / "tests" / "fuzz_region.c",
        *(NATIVE / name for name in ("clock.c", "account.c", "members.c", "region_files.c", "settings.c")),
    ]
    program = folder / "fuzz"
    built = subprocess.run(
        [compiler, *FLAGS, *sources, "-o", program], capture_output=True, text=True, check=False
    )
    if built.returncode != 0:
        print(f"not run: clang has no libFuzzer here: {built.stderr[-200:]}")
        return None
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--json", type=Path)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-fuzz-") as scratch:
        folder = Path(scratch)
        program = build(folder)
        if program is None:
            return
        (folder / "corpus").mkdir()
        command = [str(program), f"-max_total_time={words.seconds}", "-max_len=300000", "-rss_limit_mb=4096"]
        command += ["-print_final_stats=1", f"-artifact_prefix={Path.cwd()}/", str(folder / "corpus")]
        answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        corpus = len(list((folder / "corpus").iterdir()))
    if answer.returncode != 0:
        sys.exit(f"a finding:\n{answer.stderr[-4000:]}")
    units = re.search(r"number_of_executed_units: (\d+)", answer.stderr)
    covered = re.findall(r"cov: (\d+)", answer.stderr)
    figures = {
        "seconds": words.seconds,
        "inputs": int(units[1]) if units else 0,
        "edges_covered": int(covered[-1]) if covered else 0,
        "corpus": corpus,
        "findings": 0,
    }
    print(
        f"{figures['inputs']:,} inputs in {words.seconds} s, {figures['edges_covered']} edges covered, "
        f"{corpus} kept, no finding"
    )
    if words.json:
        words.json.parent.mkdir(parents=True, exist_ok=True)
        words.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
