"""How busy a GPU's cores are, as DCGM tells it: NVML does not know.

`dcgmi dmon` prints a line an interval; field 1002 is `DCGM_FI_PROF_SM_ACTIVE`, the part of the time in which a warp was
on a multiprocessor, the mean over all of them (NVIDIA, *DCGM User Guide*, "Profiling Metrics").
"""

from __future__ import annotations

import subprocess
import threading
import weakref

FIELD = 1002
INTERVAL_MS = 100


class SmActivity:
    """The last value that DCGM printed of one GPU; `open` asks it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.latest: float | None = None
        """0…1; None: there was none yet."""
        self._process = process
        self._answered = threading.Event()
        self._end = weakref.finalize(self, process.kill)  # at the latest when this process ends
        threading.Thread(target=self._follow, daemon=True).start()

    @classmethod
    def open(cls, index: int = 0, command: str = "dcgmi", *, wait_s: float = 3.0) -> SmActivity | None:
        """That of the GPU of this number; None where there is no DCGM, or it prints no number within this time."""
        asked = [command, "dmon", "-i", str(index), "-e", str(FIELD), "-d", str(INTERVAL_MS)]
        try:
            process = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return None
        made = cls(process)
        made._answered.wait(wait_s)
        if made.latest is not None:
            return made
        made.close()
        return None

    def close(self) -> None:
        self._end()
        self._process.wait()

    def _follow(self) -> None:
        """Take over each number; a line reads `GPU 0    0.532`, others are headings or say N/A."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                words = line.split()
                value = words[-1].replace(".", "", 1) if len(words) >= 3 and words[0] == "GPU" else ""
                if value.isdecimal() and float(words[-1]) <= 1:
                    self.latest = float(words[-1])
                    self._answered.set()
        self._answered.set()
