"""Figures 2 to 5 of Kwon and Hong, for a real Slurm's small samples and for a million made-up jobs.

    python bench/accounting_figures.py OUT

Figure 2 is the use of each server type, 3 usage by application (by run time), 4 parallel coordinates of pytorch and
tensorflow, 5 their cumulative distributions. Each is written as PNG where there is a browser, else as HTML, by the
commands that it prints; the whole report besides.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from accounting_import import write_jobs
from berth.report.image import BROWSERS
from harness import data_folder

VARIABLES = ("nNODE", "nGPU", "WAIT_h", "RUN_h", "uGPUcore", "uGPUmem")


def berth(*words: object) -> None:
    """Run a command of berth and show it."""
    print("berth", shlex.join(str(word) for word in words), flush=True)
    subprocess.run(
        [Path(sys.executable).parent / "berth", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def figures(history: Path, out: Path, ending: str, variables: tuple[str, ...]) -> None:
    """All figures of one history."""
    out.mkdir(parents=True, exist_ok=True)
    berth("plot", "servers", out / f"figure-2-over-time.{ending}", "--history", history)
    berth("plot", "usage", out / f"figure-2.{ending}", "--by", "server", "--history", history)
    berth("plot", "usage", out / f"figure-3.{ending}", "--measure", "run-hours", "--history", history)
    for name in ("pytorch", "tensorflow"):
        berth("plot", "pcc", out / f"figure-4-{name}.{ending}", "--application", name, "--history", history)
        for variable in variables:
            target = out / f"figure-5-{name}-{variable}.{ending}"
            berth("plot", "ecdf", target, "--application", name, "--variable", variable, "--history", history)
    berth("report", out / "report.html", "--measure", "run-hours", "--history", history)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    ending = "png" if any(map(shutil.which, BROWSERS)) else "html"
    samples = data_folder().parent / "slurm" / "samples"
    history = given.out / "history-samples"
    for name in ("sacct_X_us.txt", "sacct_X_D_us_run3.txt"):
        berth("import", "sacct", samples / name, "--cluster", name.split(".")[0], "--history", history)
    figures(history, given.out / "samples", ending, VARIABLES[:4])
    jobs, history = given.out / "jobs.psv", given.out / "history-million"
    write_jobs(jobs, given.jobs, measured=True)
    berth("import", "sacct", jobs, "--cluster", "made-up", "--history", history)
    jobs.unlink()
    figures(history, given.out / "million", ending, VARIABLES)


if __name__ == "__main__":
    main()
