"""The pictures of a history of 5, 500 and 500,000 made-up jobs: how long each page takes, and how large it is.

The jobs are the synthetic trace `philly-like`, simulated by `easy+fifo+best-fit`; the simulator measures no use of
GPUs, so that each attempt is given one by its number. Prints wall times and kilobytes, of the console's pages as a
browser gets them; with `--shots DIR` it draws each at 1,280 and 390 pixels, light and dark, for a person to look at.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from berth.console.roles import Role
from harness import BENCH, save

sys.path.insert(0, str(BENCH.parent))

from tests.console.browser import chromium, logged_in
from tests.console.serving import served
from tests.console.world import World

SIZES = (5, 500, 500_000)
WHOLE = "from=1970-01-01&to=1971-01-01"
PAGES = {
    "use": f"/then?{WHOLE}",
    "waits": f"/then?{WHOLE}&measure=waits",
    "failures": f"/then?{WHOLE}&measure=failures",
    "efficiency": f"/then?{WHOLE}&measure=efficiency",
    "lines": f"/then/lines?{WHOLE}",
}
MEASURED = """
    COPY (SELECT * REPLACE (
        'user' || hash(virtual_cluster, job_id) % 60 AS "user",
        ['pytorch', 'vasp', 'lammps', 'tensorflow', 'gromacs'][(1 + hash(job_id) % 5)::INT] AS application,
        (hash(job_id, 1) % 1000) / 1000.0 AS gpu_use_mean, (hash(job_id, 2) % 1000) / 1000.0 AS gpu_mem_mean)
    FROM '{given}') TO '{out}' (FORMAT parquet)
"""
DRAWN = """
    [...document.querySelectorAll("[data-plot]")].filter((place) => !place.closest("details:not([open])")).every(
        (place) => place.querySelector(".main-svg, canvas") !== null)
"""


def berth(*words: object) -> None:
    """Run a command of berth's own."""
    code = "from berth.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def made(folder: Path, jobs: int) -> Path:
    """A history of that many jobs."""
    history = folder / f"history-{jobs}"
    if not history.exists():
        records, measured = folder / f"{jobs}.parquet", folder / f"{jobs}-measured.parquet"
        trace = f"synthetic:philly-like?jobs={jobs}&seed=1"
        if not records.exists():
            berth("simulate", trace, "--policy", "easy+fifo+best-fit", "--records", records)
        with duckdb.connect() as database:
            database.execute(MEASURED.format(given=records, out=measured))
        berth("import", "records", measured, "--cluster", "made", "--history", history)
    return history


def timed(history: Path, state: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the seconds and kilobytes of each page, the first one with the history opened already."""
    world = World(state, history=history)
    client = world.browser("olga", Role.OPERATOR)
    client.get("/then?from=1980-01-01&to=1980-01-02")
    for name, address in PAGES.items():
        begin = time.perf_counter()
        answer = client.get(address)
        assert answer.status_code == 200, answer.text
        yield name, {"s": time.perf_counter() - begin, "kb": len(answer.content) / 1000}
    world.app.state.history.close()


def shoot(history: Path, state: Path, out: Path, jobs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Draw each page in a browser; yield the seconds until its pictures are there."""
    world = World(state, history=history)
    with served(world) as address, chromium() as browser:
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
            context: dict[str, Any] = {"viewport": {"width": width, "height": 900}, "color_scheme": scheme}
            window = logged_in(browser, world, address, "olga", Role.OPERATOR, **context)
            for name, path in PAGES.items():
                page = window.new_page()
                begin = time.perf_counter()
                page.goto(f"{address}{path}")
                page.wait_for_function(DRAWN, timeout=120_000)
                yield f"{name} drawn, {width} px, {scheme}", {"s": time.perf_counter() - begin}
                page.screenshot(path=out / f"{jobs}-{name}-{width}-{scheme}.png", full_page=True)
                page.close()
            window.close()
    world.app.state.history.close()


def report(history: Path, out: Path) -> dict[str, float]:
    """The seconds and kilobytes of `berth report`."""
    begin = time.perf_counter()
    berth("report", out, "--history", history)
    return {"s": time.perf_counter() - begin, "kb": out.stat().st_size / 1000}


def main() -> None:
    """Make the histories or take them, ask for each page, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="a folder in which the histories stay")
    parser.add_argument("--shots", type=Path, help="a folder for screenshots")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    chosen = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = chosen.keep or Path(name)
        for jobs in chosen.sizes:
            history = made(folder, jobs)
            found = dict(timed(history, Path(name) / f"state-{jobs}"))
            found["report"] = report(history, (chosen.shots or Path(name)) / f"{jobs}-report.html")
            if chosen.shots is not None:
                found |= dict(shoot(history, Path(name) / f"shots-{jobs}", chosen.shots, jobs))
            results[str(jobs)] = found
            for what, told in found.items():
                size = f"{told['kb']:10,.0f} kB" if "kb" in told else ""
                print(f"{jobs:9,}  {what:32}{told['s']:8.2f} s{size}", flush=True)
    save("history_pictures", results)


if __name__ == "__main__":
    main()
