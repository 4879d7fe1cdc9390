"""Small histories for tests: made by hand, or by hypothesis from a model that is a list a GPU."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from berth.model import NO_GPU, Event, EventKind, GpuModel, GpuSlot, Job, Node, Reason, Share


@dataclass(frozen=True)
class History:
    """Events, and the nodes that they happened on."""

    events: list[Event]
    nodes: list[Node]


def event(
    time_ms: int,
    kind: EventKind,
    job: Job,
    *slots: tuple[int, int],
    attempt: int = 1,
    reason: Reason = Reason.NONE,
    shared: bool = False,
) -> Event:
    """An event of a job with the share that it asks for."""
    places = tuple(GpuSlot(*slot) for slot in slots)
    return Event(time_ms, kind, job, attempt, places, job.share, reason, shared)


def golden() -> History:
    """Five jobs on two nodes of two GPUs over 100 seconds; every number in its test was made by hand.

    two    GPUs (0, 0) (0, 1) from 0 to 40 s; finishes after 40 s of work.
    half   half of (1, 0) from 10 to 60 s for 40 s of work: slowed down by 10 s.
    lost   (1, 1) from 20 to 30 s, fails for want of memory; again from 50 to 80 s, finishes 30 s of work.
    kept   (0, 0) from 40 to 60 s, evicted; again from 70 to 100 s; keeps its work, which is 50 s.
    never  is rejected at 90 s.
    """
    kind = EventKind
    two = Job("two", 0, 40_000, "ann", gpus=2, virtual_cluster="v")
    half = Job("half", 10_000, 40_000, "ann", share=Share(500), virtual_cluster="v")
    lost = Job("lost", 20_000, 30_000, "bob", retries=1, virtual_cluster="v")
    kept = Job("kept", 30_000, 50_000, "bob", keeps_work=True, virtual_cluster="v")
    never = Job("never", 90_000, 1000, gpus=99)
    events = [
        event(0, kind.SUBMIT, two),
        event(0, kind.START, two, (0, 0), (0, 1)),
        event(10_000, kind.SUBMIT, half),
        event(10_000, kind.START, half, (1, 0)),
        event(20_000, kind.SUBMIT, lost),
        event(20_000, kind.START, lost, (1, 1)),
        event(30_000, kind.FAIL, lost, (1, 1), reason=Reason.OUT_OF_MEMORY),
        event(30_000, kind.SUBMIT, lost, attempt=2),
        event(30_000, kind.SUBMIT, kept),
        event(40_000, kind.FINISH, two, (0, 0), (0, 1)),
        event(40_000, kind.START, kept, (0, 0)),
        event(50_000, kind.START, lost, (1, 1), attempt=2),
        event(60_000, kind.FINISH, half, (1, 0)),
        event(60_000, kind.EVICT, kept, (0, 0)),
        event(60_000, kind.SUBMIT, kept, attempt=2),
        event(70_000, kind.START, kept, (0, 0), attempt=2),
        event(80_000, kind.FINISH, lost, (1, 1), attempt=2),
        event(90_000, kind.SUBMIT, never),
        event(90_000, kind.REJECT, never, reason=Reason.NEVER_FITS),
        event(100_000, kind.FINISH, kept, (0, 0), attempt=2),
    ]
    model = GpuModel("V100")
    return History(events, [Node("a", 2, model), Node("b", 2, model), Node("c", 0)])


@st.composite
def histories(draw: st.DrawFn, longest_ms: int = 40) -> History:
    """A random history that the engine could have made, short enough to look at every millisecond of it.

    Jobs with and without GPUs, with whole ones and parts, and with others beside them on the same GPU, finish, fail,
    are evicted and queued again, are rejected or withdrawn, or cannot be started; some still wait or run at the end.
    """
    nodes = [
        Node(f"node-{at}", gpus)
        for at, gpus in enumerate(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    ]
    slots = [(at, index) for at, node in enumerate(nodes) for index in range(node.gpus)]
    free = dict.fromkeys(slots, 1000)
    waiting: list[tuple[Job, int]] = []
    sharing = dict.fromkeys(slots, 0)  # how many hold a GPU that others may have too
    running: list[tuple[Job, int, tuple[tuple[int, int], ...], bool]] = []
    events: list[Event] = []
    kind = EventKind
    now_ms = begin_ms = draw(st.integers(0, 5))
    for serial in range(draw(st.integers(1, 12))):
        now_ms = min(now_ms + draw(st.integers(0, 8)), begin_ms + longest_ms)
        what = draw(st.sampled_from(("submit", "submit", "start", "start", "end", "leave")))
        if what == "submit" or not serial:
            gpus = draw(st.integers(0, min(2, len(slots))))
            job = Job(
                f"job-{serial}",
                now_ms,
                draw(st.integers(0, 20)),
                gpus=gpus,
                share=Share(draw(st.sampled_from((1000, 1000, 500, 250)))),
                keeps_work=draw(st.booleans()),
            )
            waiting.append((job, 1))
            events.append(event(now_ms, kind.SUBMIT, job))
        elif what == "start" and waiting:
            job, attempt = waiting.pop(0)
            shared = job.gpus > 0 and draw(st.booleans())
            free_of = {
                slot: 1000 if shared and (sharing[slot] or free[slot] == 1000) else free[slot]
                for slot in slots
            }
            fits = [
                slot for slot in slots if free_of[slot] >= job.share.milli and (shared or not sharing[slot])
            ]
            fits = fits[: job.gpus]
            if len(fits) < job.gpus:
                waiting.append((job, attempt))
                continue
            for slot in fits:
                free[slot] -= job.share.milli
                sharing[slot] += shared
            taken = tuple(fits) or ((0, NO_GPU),)
            running.append((job, attempt, taken, shared))
            events.append(event(now_ms, kind.START, job, *taken, attempt=attempt, shared=shared))
        elif what == "end" and running:
            job, attempt, taken, shared = running.pop(draw(st.integers(0, len(running) - 1)))
            for slot in taken:
                if slot[1] != NO_GPU:
                    free[slot] += job.share.milli
                    sharing[slot] -= shared
            how = draw(st.sampled_from((kind.FINISH, kind.FAIL, kind.EVICT, kind.CANCEL)))
            reason = Reason.NODE_LOST if how is kind.FAIL else Reason.NONE
            events.append(event(now_ms, how, job, *taken, attempt=attempt, reason=reason, shared=shared))
            if how is kind.EVICT or (how is kind.FAIL and draw(st.booleans())):
                waiting.append((job, attempt + 1))
                events.append(event(now_ms, kind.SUBMIT, job, attempt=attempt + 1))
        elif what == "leave" and waiting:
            job, attempt = waiting.pop()
            how, reason = draw(
                st.sampled_from(
                    (
                        (kind.REJECT, Reason.PATIENCE),
                        (kind.CANCEL, Reason.NONE),
                        (kind.FAIL, Reason.FAILED_TO_START),
                    )
                )
            )
            events.append(event(now_ms, how, job, attempt=attempt, reason=reason))
            if how is kind.FAIL and draw(st.booleans()):
                waiting.append((job, attempt + 1))
                events.append(event(now_ms, kind.SUBMIT, job, attempt=attempt + 1))
    return History(events, nodes)
