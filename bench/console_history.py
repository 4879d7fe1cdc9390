"""The console's pages on a history of five million jobs: how long a bar's jobs and a page of figures take.

Every question is asked of the console itself through ASGI, of another group each time, so that nothing is remembered.
Prints medians in wall time and processor time (asked: the jobs behind a bar within 0.5 s).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fastapi.testclient import TestClient

from accounting_import import IMPORT, write_jobs
from berth.console.roles import Role
from berth.console.server import create_app
from berth.console.settings import Settings
from harness import save

WHOLE = "from=2020-01-01&to=2021-03-01"
QUESTIONS = {
    "jobs of a user, four weeks": "/api/v1/history/jobs?by=user&pick=user{}",
    "jobs of a user, 14 months": f"/api/v1/history/jobs?{WHOLE}&by=user&pick=user{{}}",
    "jobs of an account, 14 months, by wait": f"/api/v1/history/jobs?{WHOLE}&measure=waits&by=account&pick=account{{}}",
    "jobs of a day": "/api/v1/history/jobs?at=2021-02-{:02d}",
    "page of figures, four weeks": "/then?by=application&user=user{}",
    "page of all figures, 14 months": f"/then?{WHOLE}&measure={{}}",
    "parallel coordinates, 14 months": "/then/lines?from=2020-01-{:02d}&to=2021-03-01",
}
"""What is asked; each time with another number, or of the last another measure."""
MEASURES = ("use", "waits", "failures", "efficiency")


def timed(client: TestClient, address: str) -> tuple[float, float]:
    """Wall and processor time of an answer, in s."""
    begin, cpu = time.perf_counter(), time.process_time()
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - begin, time.process_time() - cpu


def main() -> None:
    """Make the history or take one, ask, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--history", type=Path, help="a history that this script made before")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history = chosen.history or folder / "h"
        if chosen.history is None:
            write_jobs(folder / "jobs.txt", chosen.jobs, measured=True)
            subprocess.run([sys.executable, "-c", IMPORT, folder / "jobs.txt", history], check=True)
            (folder / "jobs.txt").unlink()
        app = create_app(Settings(folder / "state", history=history))
        client = TestClient(app)
        token = app.state.doorkeeper.tokens.add("olga", Role.OPERATOR, None)
        client.headers["Authorization"] = f"Bearer {token}"
        results = dict(measured(client, chosen.runs))
        app.state.history.close()
    save("console_history", {"jobs": chosen.jobs, **results})


def measured(client: TestClient, runs: int) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield and print each question with its medians."""
    client.get("/then")  # the first question opens the history
    print(f"{'':42}{'wall, s':>10}{'processor, s':>14}")
    for name, address in QUESTIONS.items():
        asked = (
            [address.format(each) for each in MEASURES]
            if "measure={}" in address
            else [address.format(at + 1) for at in range(runs)]
        )
        pairs = [timed(client, each) for each in asked]
        wall, cpu = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
        print(f"{name:42}{wall:10.2f}{cpu:14.2f}", flush=True)
        yield name, {"wall_s": wall, "processor_s": cpu}


if __name__ == "__main__":
    main()
