"""How soon the first picture of a page is seen, in a real Chromium without a graphics card.

Of a report of a million jobs: makes the history and the page, opens it several times, each time in a browser that
starts anew, and prints the page's size (asked: below 8 MB) and medians, from the navigation on: when the first picture
is in the page, and when a frame with it has been painted (asked: within 1 s). With `--compare`, of the page of
the demo's comparison: its size (asked: at most 5 MB) and the same times (asked: painted within 0.5 s).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from accounting_import import IMPORT, write_jobs
from harness import BENCH, as_installed, save

sys.path.insert(0, str(BENCH.parent))

from tests.report.chromium import Chromium, find_chromium

BERTH = Path(sys.executable).parent / "berth"
MARKS = """
    window.marks = {};
    (function look() {
        const pictures = [...document.querySelectorAll("svg, canvas")];
        if (!marks.there && pictures.some((one) => one.getBoundingClientRect().width > 200)) {
            marks.there = performance.now();
            // The callback after the next frame: what was there at this one has been painted.
            requestAnimationFrame(() => requestAnimationFrame(() => { marks.painted = performance.now(); }));
        }
        requestAnimationFrame(look);
    })();
"""

NAMES = ("there", "painted")
DEMO = ("synthetic:demo", "--policies", "fifo+whole-gpus,easy+fifo+best-fit,easy+sjf+best-fit", "--knowledge", "user",
        "--seeds", "5")  # fmt: skip


def marks_of(program: str, page: Path) -> dict[str, float]:
    """Milliseconds from the navigation on, of one opening of the page."""
    with Chromium(program, 1400, 900) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=MARKS)
        browser.open(page, "marks.painted")
        return {name: float(browser.evaluate(f"marks.{name}")) for name in NAMES}


def report_page(folder: Path, jobs: int) -> Path:
    """The page of a history of `jobs` jobs."""
    write_jobs(folder / "jobs.txt", jobs, measured=True)
    subprocess.run([sys.executable, "-c", IMPORT, folder / "jobs.txt", folder / "h"], check=True)
    words: list[str | Path] = [BERTH, "report", folder / "report.html", "--history", folder / "h"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=as_installed())
    return folder / "report.html"


def compare_page(folder: Path) -> Path:
    """The page of the comparison that `make demo` runs."""
    words: list[str | Path] = [BERTH, "compare", *DEMO, "--out", folder / "demo"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=as_installed())
    return folder / "demo" / "report.html"


def main() -> None:
    """Make the page, open it, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--compare", action="store_true", help="open the page of the demo's comparison instead"
    )
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="write the page here, too")
    chosen = parser.parse_args()
    program = find_chromium()
    if program is None:
        raise SystemExit("no Chromium or Chrome on the PATH")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = compare_page(folder) if chosen.compare else report_page(folder, chosen.jobs)
        if chosen.keep:
            shutil.copy(page, chosen.keep)
        found = [marks_of(program, page) for _ in range(chosen.runs)]
        size = page.stat().st_size
    results = {
        **({} if chosen.compare else {"jobs": chosen.jobs}),
        "page_mb": size / 1e6,
        "load": os.getloadavg()[0],
        **{f"{name}_s": statistics.median(each[name] for each in found) / 1000 for name in found[0]},
    }
    for key, value in results.items():
        print(f"{key}: {value:.2f}" if isinstance(value, float) else f"{key}: {value:,}")
    save("compare_page" if chosen.compare else "accounting_page", results)


if __name__ == "__main__":
    main()
