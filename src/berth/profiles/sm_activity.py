"""How busy a GPU's cores are, as DCGM tells it: NVML does not know.

`dcgmi dmon` prints a line an interval; field 1002 is `DCGM_FI_PROF_SM_ACTIVE`, the part of the time in which a warp was
on a multiprocessor, the mean over all of them (NVIDIA, *DCGM User Guide*, "Profiling Metrics").
"""

from __future__ import annotations

import subprocess
import threading
import weakref
from typing import IO

FIELD = 1002
INTERVAL_MS = 100


class SmActivity:
    """The last value that DCGM told of one GPU; `open` asks it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.latest = 0.0
        """0…1."""
        self.told = threading.Event()
        """Something was told, or nothing will be."""
        self.tells = False
        """Whether a number was told."""
        assert process.stdout is not None
        self._end = weakref.finalize(self, _stop, process)
        threading.Thread(target=_follow, args=(weakref.ref(self), process.stdout), daemon=True).start()

    @classmethod
    def open(cls, index: int = 0, command: str = "dcgmi", *, wait_s: float = 3.0) -> SmActivity | None:
        """That of the GPU of this number; None where there is no DCGM, or it tells nothing within this time."""
        asked = [command, "dmon", "-i", str(index), "-e", str(FIELD), "-d", str(INTERVAL_MS)]
        try:
            process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        made = cls(process)
        made.told.wait(wait_s)
        if made.tells:
            return made
        made.close()
        return None

    def close(self) -> None:
        """Stop asking."""
        self._end()


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _follow(of: weakref.ref[SmActivity], lines: IO[str]) -> None:
    """Take over each number; a line reads `GPU 0    0.532`, others are headings or say N/A."""
    try:
        for line in lines:
            activity = of()
            if activity is None:
                return
            words = line.split()
            try:
                value = float(words[-1]) if len(words) >= 3 and words[0] == "GPU" else -1.0
            except ValueError:
                continue
            if 0 <= value <= 1:
                activity.latest, activity.tells = value, True
                activity.told.set()
            del activity
    except ValueError:  # closed while it was read
        pass
    activity = of()
    if activity is not None:
        activity.told.set()
