"""How an attempt ended, in a state and in words, and whether its job waits again."""

from __future__ import annotations

from berth.live.local.entry import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    OUT_OF_MEMORY,
    PREEMPTED,
    REQUEUE,
    TIMEOUT,
    UNKNOWN,
    End,
    Entry,
    Limits,
)

__all__ = ["how", "more_mib", "waits_again"]


def how(entry: Entry, end: End) -> tuple[str, str]:
    """The state of an attempt that has ended, and why in words."""
    if end.lost:
        return NODE_FAIL, "the machine restarted while it ran"
    if entry.stop in (CANCELLED, TIMEOUT, NODE_FAIL) and (end.code != 0 or entry.stop == CANCELLED):
        words = {CANCELLED: "cancelled while it ran", TIMEOUT: "it reached its time limit"}
        return entry.stop, words.get(entry.stop, "its GPU was lost")
    if entry.stop in (PREEMPTED, REQUEUE) and end.code != 0:
        return PREEMPTED, "stopped, and queued again"
    if end.code is None:
        return UNKNOWN, end.reason or "its supervisor was killed, so its exit status is unknown"
    if end.code == 0:
        return COMPLETED, ""
    if end.refused:
        needed_mib = max(end.needed_mib, end.peak_mib or 0)
        return OUT_OF_MEMORY, f"out of GPU memory: it would have needed {needed_mib} MiB"
    return FAILED, end.reason or f"exit code {end.code}"


def waits_again(entry: Entry, state: str, end: End, limits: Limits) -> bool:
    """Whether the job of an attempt that ended in this state waits again."""
    if entry.stop == CANCELLED:
        return False
    if state == PREEMPTED:
        return True
    if state == OUT_OF_MEMORY:
        cards = [limits.cards_mib[at] for at in entry.request.pins] or limits.cards_mib
        fits = sum(mib >= more_mib(entry, end, limits) for mib in cards) >= entry.request.gpus
        return entry.out_of_memory < entry.request.retries and fits
    if state in (UNKNOWN, NODE_FAIL):
        return entry.request.rerun
    return False


def more_mib(entry: Entry, end: End, limits: Limits) -> int:
    """What a job that ran out of memory is given: what it needed and an eighth, and no more than there is."""
    needed = max(end.needed_mib, end.peak_mib or 0, entry.share[1] + 1)
    most = max(limits.cards_mib, default=needed)
    return needed if needed > most else min(needed + needed // 8, most)
