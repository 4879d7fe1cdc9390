"""What ran on this machine, with the error of its replays, and the smallest cluster that would have done."""

from __future__ import annotations

from collections.abc import Sequence

from berth.errors import BerthError
from berth.experiments.recorded_run import RecordedRun, recorded_run
from berth.experiments.size.scan import keep_of, smallest_sizes
from berth.experiments.weeks import Trust
from berth.experiments.what_if import nodes_and_conditions, replay
from berth.history.store.folder import History
from berth.model import Node

MOST_JOBS = 20_000
"""Of a period with more jobs a digest tells no size: that many simulations would take minutes."""
OTHER_POLICY = "easy+fifo+best-fit"
"""What a digest tries beside the policy that ran."""


def run_and_trust(
    history: History, *, since_ms: int, until_ms: int | None, nodes: Sequence[Node] = ()
) -> tuple[RecordedRun, Trust]:
    """What ran in a period, and how far a replay of it is from the truth. Raises what `recorded_run` raises."""
    real = recorded_run(history, since_ms=since_ms, until_ms=until_ms, nodes=nodes)
    replayed = replay(real, real.policy)[1] if real.policy else real.waits
    return real, Trust(real.policy, real.waits, replayed)


def size_sentences(history: History, begin_ms: int, end_ms: int) -> tuple[str, ...]:
    """How many GPUs of this machine could have been returned in a period at the same 90th percentile of waits.

    First comes the error of the replay if it is too large to rely on. Empty where the history does not tell the
    machine or which policy ran, where there are no or too many jobs, or where they cannot be replayed.
    """
    try:
        real, trust = run_and_trust(history, since_ms=begin_ms, until_ms=end_ms)
        if not real.policy or len(real.jobs) > MOST_JOBS:
            return ()
        nodes, under = nodes_and_conditions(real, (), {})
        policies = list(dict.fromkeys((real.policy, OTHER_POLICY)))
        found = smallest_sizes(real.jobs, nodes, policies, keep_of("p90-wait"), conditions=under)
    except BerthError:  # a digest tells what it can, and `berth size` says what is wrong
        return ()
    return (
        *(() if trust.is_believable else (trust.sentence,)),
        *found.sentences[: 2 if found.caution else 1],
    )
