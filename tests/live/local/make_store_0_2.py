"""Makes `stores/queue_0.2.db`: the store of a queue of 0.2 with waiting, held, running and ended jobs.

It runs in a checkout of `COMMIT` with the code of that:
`python -m tests.live.local.make_store_0_2 FILE`.
"""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import replace
from pathlib import Path

from berth.live.local.entry import End
from berth.live.local.request import Request, Tasks
from berth.live.local.store import of_meta
from tests.live.local.fake_world import FakeWorld

COMMIT = "d594b878"
"""The last of 0.2."""

ONE = Tasks(None, ((),))


def main(path: Path) -> None:
    """Write the store."""
    world = FakeWorld(path, cards=4)
    asked = Request(argv=("train", "a.py"), milli=500, mem_mib=400, name="train", retries=3)
    ended = world.submit(asked, ONE)[0]  # 1
    failed = world.submit(replace(asked, name="bad"), ONE)[0]  # 2
    world.decide()
    world.commit()
    world.now_ms += 1000
    world.end(ended, End(0, peak_mib=350, cpu_ms=900, mem_peak_mib=80))
    world.end(failed, End(3))
    world.commit()
    ran_out = world.submit(replace(asked, name="big"), ONE)[0]  # 3
    running = world.submit(replace(asked, milli=1000, mem_mib=0, name="runs", time_limit_ms=3_600_000), ONE)[
        0
    ]  # 4
    world.decide()
    world.commit()
    world.now_ms += 1000
    world.end(ran_out, End(1, refused=1, needed_mib=600, peak_mib=390))
    world.commit()
    starts = world.submit(replace(asked, gpus=0, milli=1000, mem_mib=0, name="cpu"), ONE)[0]  # 5
    held = world.submit(replace(asked, name="held"), ONE)[0]  # 6
    world.submit(replace(asked, name="later", after=(("ok", running.id),)), ONE)  # 7
    world.submit(
        replace(asked, name="array"), Tasks((1, 2, 3), ((("x", "1"),), (("x", "2"),), (("x", "3"),)), 1)
    )  # 8
    world.submit(replace(asked, name="pinned", pins=(1,), milli=1000), ONE)  # 9
    world.book.hold(held, world.now_ms)
    fails = world.submit(replace(asked, name="fails"), ONE)[0]  # 10
    world.book.placed(fails.id, fails.version, (2,), (500, 400), world.now_ms)
    world.book.ended(fails, End(None, "no room for a process", never_ran=True), world.now_ms)
    world.book.placed(starts.id, starts.version, (), (1000, 0), world.now_ms)
    world.book.dirty[starts.id] = starts
    world.store.write([of_meta("policy", "easy+priority+best-fit"), of_meta("knowledge", "history"),
                       of_meta("drained", [3])])  # fmt: skip
    world.commit()
    world.store.close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
        connection.execute("VACUUM")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
