"""Inside the real Slurm's network: what a console of it shows, and one hold and release; as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from berth.console.roles import Role
from berth.live.slurm.agent import STATUS
from berth.live.slurm.decisions import ENDED, read_decisions
from berth.live.slurm.service import DECISIONS
from tests.console.world import World

PATIENCE_S = 90.0
"""How long what is waited for may take on a busy machine."""


def wait_for(what: str, is_so: Callable[[], bool]) -> None:
    """Wait until something is so; ends the story if it never is."""
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end, f"for {PATIENCE_S:.0f} s it was not so: {what}"
        time.sleep(0.05)


def has_decided_since(state: Path, ended: str) -> bool:
    """Whether berth has seen the end of a job, and has decided what is to start in its place."""
    at_ms = [
        line.at_ms for line in read_decisions(state / DECISIONS) if line.event == ENDED and line.job == ended
    ]
    looked_ms = json.loads((state / STATUS).read_text())["at_ms"]
    return bool(at_ms) and looked_ms > at_ms[0]


def main(state: Path, out: Path, whole: str, part: str, large: str, held: str) -> None:
    """Look, hold the job `held`, look again, and release it."""
    with tempfile.TemporaryDirectory() as folder:
        console = World(Path(folder), slurm_state=state, actions=True)
        olga = console.program("olga", Role.OPERATOR)

        def job(name: str) -> dict[str, Any]:
            return dict(olga.get(f"/api/v1/jobs/{name}").json())

        def act(action: str) -> str:
            answer = olga.post("/api/v1/actions", json={"source": "slurm", "action": action, "id": held})
            assert answer.status_code == 200, answer.text
            return str(answer.json()["command"])

        gpus = olga.get("/api/v1/gpus").json()["gpus"]
        jobs = {"whole": job(whole), "part": job(part), "large": job(large)}
        hold = act("hold")
        wait_for("the job is held", lambda: job(held)["state"] == "held")
        seen = {
            "gpus": gpus,
            "jobs": jobs,
            "hold": hold,
            "while_held": job(held)["state"],
            "pages": [olga.get(page).status_code for page in ("/now", "/queue", f"/job/{large}")],
        }
        assert olga.post(
            "/api/v1/actions", json={"source": "slurm", "action": "cancel", "id": whole}
        ).is_success  # so that there is room for it
        wait_for("berth has seen the end", lambda: has_decided_since(state, whole))
        seen["with_room"] = job(held)["state"]
        act("release")
    out.write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
