"""`berth job ID` on a history of five million jobs: how long one answer takes, from the shell's point of view.

Prints the median of several ids in wall time and processor time (asked: at most 0.3 s), and of a command that only
imports what every command needs, which is part of both.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accounting_import import IMPORT, write_jobs
from harness import as_installed, save

BERTH = Path(sys.executable).parent / "berth"


def timed(words: list[str]) -> tuple[float, float]:
    """Wall and processor time of a command, in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=as_installed())
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Make the history, ask for jobs, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=7)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_jobs(folder / "jobs.txt", chosen.jobs)
        subprocess.run([sys.executable, "-c", IMPORT, folder / "jobs.txt", folder / "h"], check=True)
        (folder / "jobs.txt").unlink()
        history = ["--history", str(folder / "h")]
        ids = [1000 + chosen.jobs * at // chosen.runs for at in range(chosen.runs)]
        timed([str(BERTH), "job", str(ids[0]), *history])  # the first start compiles modules
        answers = [timed([str(BERTH), "job", str(job), *history]) for job in ids]
        nothing = [timed([str(BERTH), "--version"]) for _ in ids]
    results = {
        "jobs": chosen.jobs,
        "wall_s": statistics.median(wall for wall, _ in answers),
        "processor_s": statistics.median(cpu for _, cpu in answers),
        "command_alone_wall_s": statistics.median(wall for wall, _ in nothing),
        "command_alone_processor_s": statistics.median(cpu for _, cpu in nothing),
    }
    for key, value in results.items():
        print(f"{key}: {value:.2f}" if isinstance(value, float) else f"{key}: {value:,}")
    save("accounting_job", results)


if __name__ == "__main__":
    main()
