"""The demo of a fresh clone after the install: seconds of the first `make demo` and of later ones.

    python bench/demo.py [--runs N] [--compiled] [--clone FOLDER]

Processor time is that of the commands; the queue and the console go on in processes of their own. The clone gets an
empty home and an installation of its own, so nothing of berth is in a cache. `--compiled` runs the same with Numba's
compiler, as `make demo` did before. `--clone` takes an installed clone instead of a new one: `git clean` removes
everything in it but `.venv` and `build`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import save

ROOT = Path(__file__).parents[1]


def demo(clone: Path, environment: dict[str, str], words: list[str]) -> tuple[float, float]:
    """Seconds and processor time of one `make demo`, which must print the console's address."""
    began_s, before = time.monotonic(), os.times()
    done = subprocess.run(
        ["make", "demo", *words], cwd=clone, env=environment, check=True, stdout=subprocess.PIPE, text=True
    )
    wall_s, after = time.monotonic() - began_s, os.times()
    if "/login?token=" not in done.stdout.splitlines()[-1]:
        raise SystemExit("make demo did not end with the console's address")
    used_s = after.children_user + after.children_system - before.children_user - before.children_system
    subprocess.run([clone / "examples/local_queue/demo.sh", "--stop"], env=environment, check=True)
    return wall_s, used_s


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3, help="Runs, the first one included.")
    parser.add_argument("--compiled", action="store_true", help="With Numba's compiler.")
    parser.add_argument(
        "--clone", type=Path, help="An installed clone; `git clean` leaves only its .venv and build."
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-demo-") as folder:
        clone, home = options.clone or Path(folder, "clone"), Path(folder, "home")
        home.mkdir()
        path = f"/usr/bin:/bin:/usr/local/bin:{Path(sys.executable).resolve().parent}"
        environment = {"HOME": str(home), "PATH": path}
        if options.clone:
            subprocess.run(["git", "clean", "-xdfq", "-e", ".venv", "-e", "build"], cwd=clone, check=True)
        else:
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
            subprocess.run(["make", "-s", "install"], cwd=clone, env=environment, check=True)
        words = ["NUMBA_DISABLE_JIT=0"] if options.compiled else []
        runs = [demo(clone, environment, words) for _ in range(options.runs)]
    for number, (wall_s, used_s) in enumerate(runs, 1):
        print(f"run {number}: {wall_s:5.1f} s, {used_s:5.1f} s of processor time")
    save(
        "demo",
        {
            "compiled": options.compiled,
            "wall_s": [run[0] for run in runs],
            "processor_s": [run[1] for run in runs],
        },
    )


if __name__ == "__main__":
    main()
