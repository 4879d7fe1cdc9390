"""An agent of a node for tests: does what a folder of orders says, and writes what became of its tenants.

Its driver is believed to move jobs at once, so that interactive ones need to idle for a moment only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from berth.files import whole_file
from berth.live.driver import suspending
from berth.live.driver.node_tenants import NodeTenants
from berth.partition import fake_driver_folder
from berth.partition.gpus import gpus


async def serve(folder: Path, grow: str, uncounted: str = "report") -> None:
    with (folder / "log").open("a") as log:

        def say(event: str, /, **values: object) -> None:
            log.write(json.dumps({"event": event, **values}) + "\n")
            log.flush()

        card = os.environ["BERTH_FAKE_CARD"]
        tenants = NodeTenants(
            gpus(fake_driver_folder()), say, grow=grow, fake=True, fake_card=card, uncounted=uncounted
        )
        while True:
            orders = {path.name for path in (folder / "orders").iterdir()}
            for tenant in tenants.tenants():
                (tenants.suspend if tenant.id in orders else tenants.resume)(tenant.id)
            tenants.look()
            with whole_file(folder / "shown") as new:
                new.write_text(json.dumps({each.job: each._asdict() for each in tenants.shown()}))
            with (folder / "looks").open("a") as looks:
                looks.write(".")
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    suspending.START_S, suspending.LEAST_MIB = 1e-3, 1 << 40
    suspending.MIB_PER_S.update(dict.fromkeys(suspending.MIB_PER_S, 800_000.0))
    asyncio.run(serve(Path(sys.argv[1]), *sys.argv[2:]))
