"""What a job needs after it ran out of GPU memory: the one rule of the simulator and of every site."""

from __future__ import annotations

from typing import NamedTuple

EIGHTHS = 8
COMPANY = {2: 2, 3: 1}
"""By times out of memory, the most jobs on its GPU, itself included; fewer times set no limit."""
ALONE = next(times for times, company in COMPANY.items() if company == 1)
"""After how many times a job has its GPUs to itself."""


class MemoryNeed(NamedTuple):
    """What is known of jobs that ran out of GPU memory."""

    times: int = 0
    """How often they did."""
    mib: int = 0
    """What the next attempt needs of each GPU; 0: nothing is known."""

    @property
    def company(self) -> int | None:
        """The most jobs on its GPU, itself included; None: as many as fit."""
        return COMPANY.get(min(self.times, max(COMPANY)))

    @property
    def alone(self) -> bool:
        """Whether the next attempt gets whole GPUs."""
        return self.company == 1


NO_NEED = MemoryNeed()


def need_after(before: MemoryNeed, held_mib: int) -> MemoryNeed:
    """The need after an attempt ran out of memory that held `held_mib`, or would have held it with what was refused.

    The next attempt gets that and an eighth; the margin doubles each further time, up to the same again.
    """
    held_mib = max(held_mib, before.mib if before.times else 0)
    margin = min(1 << before.times, EIGHTHS)
    return MemoryNeed(before.times + 1, max(held_mib + held_mib * margin // EIGHTHS, before.mib))
