"""Figures 2 to 5 of Kwon and Hong, for a real Slurm's small samples and for a million made-up jobs.

    python bench/accounting_figures.py OUT

Figure 2 is the use of each server type, 3 usage by application (by run time), 4 parallel coordinates of pytorch and
tensorflow, 5 their cumulative distributions. They are in the reports that the printed commands write.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from accounting_import import write_jobs
from harness import data_folder


def berth(*words: object) -> None:
    """Run a command of berth and show it."""
    print("berth", shlex.join(str(word) for word in words), flush=True)
    subprocess.run(
        [Path(sys.executable).parent / "berth", *map(str, words)], check=True, stdout=subprocess.DEVNULL
    )


def figures(history: Path, out: Path) -> None:
    """The reports of one history that hold all figures."""
    out.mkdir(parents=True, exist_ok=True)
    berth("report", out / "figure-2.html", "--by", "server", "--history", history)
    berth("report", out / "figure-3.html", "--measure", "run-hours", "--history", history)
    for name in ("pytorch", "tensorflow"):
        page = out / f"figures-4-and-5-{name}.html"
        berth("report", page, "--only", f"application={name}", "--history", history)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    samples = data_folder().parent / "slurm" / "samples"
    history = given.out / "history-samples"
    for name in ("sacct_X_us.txt", "sacct_X_D_us_run3.txt"):
        berth("import", "sacct", samples / name, "--cluster", name.split(".")[0], "--history", history)
    figures(history, given.out / "samples")
    jobs, history = given.out / "jobs.psv", given.out / "history-million"
    write_jobs(jobs, given.jobs, measured=True)
    berth("import", "sacct", jobs, "--cluster", "made-up", "--history", history)
    jobs.unlink()
    figures(history, given.out / "million")


if __name__ == "__main__":
    main()
