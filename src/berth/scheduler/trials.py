"""What a caller of `Scheduler.trial` is given: the means to keep what was tried."""

from __future__ import annotations


class Trial:
    """A transaction on queue, cluster, expectations and policy: all that the scheduler does in it is undone at its end,
    unless `commit` was called."""

    def __init__(self) -> None:
        self.committed = False
        """Whether what was tried stays."""

    def commit(self) -> None:
        """Keep what was tried, and what is tried from now on until the trial ends."""
        self.committed = True
