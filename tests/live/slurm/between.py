"""Inside the real Slurm's network: one look of a berth, under which jobs and a node change before it has released."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from berth.live.slurm.controller import Change, Controller
from berth.live.slurm.service import Service, Settings


def main(state: Path, cancelled: str, changed: str, drained: str) -> None:
    """Decide on all that waits; before it is told, cancel a job, change another's GPUs and drain a third's node."""

    def meddled(changes: Iterable[Change]) -> dict[str, str]:
        told = {change.job_id: change for change in changes if change.hold is False}
        for words in (
            ["scancel", cancelled],
            ["scontrol", "update", f"NodeName={told[drained].node_list}", "State=DRAIN", "Reason=test"],
        ):
            subprocess.run(words, check=True)
        return Changed().apply(told.values())

    class Changed(Controller):
        """Somebody else gives a job more GPUs after it was told its own."""

        def _send(self, asked: list[tuple[str, str]]) -> dict[str, str]:  # type: ignore[override]
            failed = super()._send(asked)
            if any(line.startswith(f"update JobId={changed} ") for _, line in asked):
                subprocess.run(
                    ["scontrol", "update", f"JobId={changed}", "TresPerNode=gres:gpu:v100_0:1"], check=True
                )
            return failed

    settings = Settings(state, True, frozenset({"gpu"}), policy="fifo+first-fit", card_mib={"v100": 1024})
    Service(settings, Controller(), channel=meddled).step()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
