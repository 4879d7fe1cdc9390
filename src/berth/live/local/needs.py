"""What applications turned out to need of GPU memory, so that others of a kind do not run out of it too."""

from __future__ import annotations

from berth.live.local.entry import Entry, Limits, application_of
from berth.live.local.request import WHOLE, Request
from berth.live.local.telling import asked_mib

__all__ = ["Needs", "sizes_of"]

MOST_NEEDS = 1000
"""Applications that have run out of memory and are remembered."""

Kind = tuple[int, str, int, tuple[str, ...]]


class Needs:
    """The memory that kinds of jobs need, MiB on each GPU, of those that have run out of it lately."""

    def __init__(self) -> None:
        self._mib: dict[Kind, int] = {}

    def learn(self, entry: Entry) -> None:
        """Note what a job needs that ran out of memory."""
        kind = _kind(entry)
        self._mib[kind] = max(entry.needs_mib, self._mib.pop(kind, 0))
        if len(self._mib) > MOST_NEEDS:
            del self._mib[next(iter(self._mib))]

    def forget(self, entry: Entry) -> None:
        """Forget what was learned of jobs like this one."""
        self._mib.pop(_kind(entry), None)

    def heed(self, entry: Entry, limits: Limits) -> bool:
        """Let a job have what its application is known to need, if it asked for less; whether that changed it."""
        request = entry.request
        if not self._mib or not request.retries or not (request.mem_mib or request.milli < WHOLE):
            return False
        needs_mib = self._mib.get(_kind(entry), 0)
        if needs_mib <= max(entry.needs_mib, asked_mib(entry, limits)):
            return False
        cards = [limits.cards_mib[at] for at in request.pins] or limits.cards_mib
        if sum(mib >= needs_mib for mib in cards) < request.gpus:
            return False  # it would never start
        entry.needs_mib = needs_mib
        return True


def _kind(entry: Entry) -> Kind:
    """What jobs are alike in memory: those of one user, application, command and number of GPUs."""
    request, argv = entry.request, entry.request.argv
    if request.name or request.profile:  # the user says what is alike, if it is the same program
        behind = next((word for word in argv[1:] if not word.startswith("-")), "")
        argv = (argv[0], *behind.split()[:1])
    elif not argv[1:2] or not argv[1].startswith("-"):
        argv = argv[:2]  # behind a program and its script are parameters; behind `sh -c` is the program
    return entry.uid, application_of(request, entry.params), request.gpus, argv


def sizes_of(request: Request) -> tuple[int, int, int]:
    """What GPU memory a job is given by."""
    return request.gpus, request.milli, request.mem_mib
