"""What is believed of jobs grows while a scheduler runs: the history's folder is read again when it has changed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from berth.errors import BerthError
from berth.knowledge import History, history_folder, make_knowledge
from berth.profiles import IN_HISTORY
from berth.profiles.file import ENDING

log = logging.getLogger(__name__)

LOOK_S = 60.0
"""Time between two looks at the folder."""
MOST_PART = 20
"""Reading takes at most one part in this of the time: a large history is read less often."""


class Renewal:
    """Reads a growing history again; made before the knowledge that it renews, so that nothing is missed."""

    def __init__(self, name: str) -> None:
        """`name` is that of the knowledge; one without a history's folder is never renewed."""
        self._name = name
        self._folder = history_folder(name)
        self._stamp = self._now()
        self._said = ""

    def look(self) -> History | None:
        """The knowledge as the folder has it by now; None if nothing has changed, or while the folder cannot be read,
        which is logged once. Files are read in the caller's thread."""
        if self._folder is None:
            return None
        stamp = self._now()
        if stamp == self._stamp:
            return None
        try:
            found = make_knowledge(self._name, grows=True)
        except (BerthError, OSError) as error:
            if str(error) != self._said:
                log.warning("what is known of jobs stays as it is: %s", error)
            self._said = str(error)
            return None
        self._stamp, self._said = stamp, ""
        return found if isinstance(found, History) else None

    async def follow(self, renew: Callable[[History], None]) -> None:
        """Look every minute until cancelled, and hand over what was read. Nothing waits for a look."""
        if self._folder is None:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        thread = ThreadPoolExecutor(1, "renew")
        try:
            while True:
                began_s = time.monotonic()
                if (found := await loop.run_in_executor(thread, self.look)) is not None:
                    renew(found)
                await asyncio.sleep(max(LOOK_S, MOST_PART * (time.monotonic() - began_s)))
        finally:
            thread.shutdown(wait=False, cancel_futures=True)

    def _now(self) -> tuple[tuple[str, int], ...]:
        """The index of the records and the profiles, by which a change shows. Both are replaced as whole files."""
        if self._folder is None:
            return ()
        files = [self._folder / "index.json", *sorted((self._folder / IN_HISTORY).glob(f"*{ENDING}"))]
        with contextlib.suppress(OSError):  # one that was removed meanwhile is missed at the next look
            return tuple((file.name, file.stat().st_mtime_ns) for file in files if file.exists())
        return ()
