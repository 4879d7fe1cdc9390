"""Keeps the broker's tasks running: one that fails is logged and started again, so that none ends unnoticed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable

PAUSE_S = 1.0
LONGEST_PAUSE_S = 30.0
STEADY_S = 60.0


async def supervised(
    name: str, work: Callable[[], Awaitable[None]], log: Callable[..., None], *, pause_s: float = PAUSE_S
) -> None:
    """Run `work` until it returns or is cancelled. If it raises, log why and run it again after `pause_s`, and after
    twice as long each time it fails again within a minute, at most 30 s."""
    loop = asyncio.get_running_loop()
    failures = 0
    while True:
        began_s = loop.time()
        try:
            await work()
            return
        except Exception as error:  # noqa: BLE001  whatever it is, the task must go on
            failures = 1 if loop.time() - began_s > STEADY_S else failures + 1
            log("task-failed", task=name, why=repr(error), trace=traceback.format_exc()[-2000:])
        await asyncio.sleep(min(pause_s * 2 ** min(failures - 1, 10), LONGEST_PAUSE_S))
