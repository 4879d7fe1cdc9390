"""Inside the real Slurm's network: what a console of it shows, and one hold and release; as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from berth.console.roles import Role
from tests.console.world import World

LOOKS_S = 3.0
"""Of berth between a change and what is seen of it."""


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
        time.sleep(LOOKS_S)
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
        time.sleep(LOOKS_S)
        seen["with_room"] = job(held)["state"]
        act("release")
    out.write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
