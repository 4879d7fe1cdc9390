"""What the shell offers after TAB: jobs and GPUs that the queue names, and names of policies.

A queue that is down, or does not answer at once, offers nothing: TAB prints no error.
"""

from __future__ import annotations

from typing import Any

ANSWER_S = 0.2
"""How long a queue may take for its answer."""
MOST_JOBS = 200


def active_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of the caller's waiting and running jobs, or their names where the word begins one."""
    return _jobs(incomplete, ended=False)


def known_jobs(incomplete: str) -> list[tuple[str, str]]:
    """As `active_jobs`, with the jobs that ended recently."""
    return _jobs(incomplete, ended=True)


def gpus(incomplete: str) -> list[tuple[str, str]]:
    """Numbers of this machine's GPUs."""
    found = _ask({"do": "status"}).get("gpus", [])
    numbers = ((str(gpu["index"]), str(gpu["model"])) for gpu in found)
    return [each for each in numbers if each[0].startswith(incomplete)]


def policy(incomplete: str) -> list[tuple[str, str]]:
    """Names of policies; behind a +, of what may stand there."""
    from berth.policies import ORDERS, PLACEMENTS, SCHEMES, WRAPPERS, describe, policies_found

    before, plus, begun = incomplete.rpartition("+")
    parts = [*ORDERS, *PLACEMENTS, *([] if plus else [*SCHEMES, *WRAPPERS, *policies_found()])]
    return [
        (f"{before}{plus}{name}", " ".join(describe(name).split()))
        for name in parts
        if name.startswith(begun)
    ]


def policies(incomplete: str) -> list[tuple[str, str]]:
    """Names of policies for a list with commas: the last one is completed."""
    before, comma, begun = incomplete.rpartition(",")
    return [(f"{before}{comma}{name}", help_text) for name, help_text in policy(begun)]


def _jobs(incomplete: str, *, ended: bool) -> list[tuple[str, str]]:
    from berth.live.local.snapshot import jobs_of

    listing = _ask({"do": "queue", "mine": True, "ended": ended})
    by_name = bool(incomplete) and not incomplete[0].isdigit()
    found = {job.name if by_name else job.id: job for job in jobs_of({"rows": [], **listing})}
    offered = [
        (word, f"{job.state}, {job.id if by_name else job.name}")
        for word, job in found.items()
        if word.startswith(incomplete)
    ]
    return offered[-MOST_JOBS:]


def _ask(message: dict[str, Any]) -> dict[str, Any]:
    """The queue's answer; empty where there is none in time."""
    from berth.errors import LiveError
    from berth.live.local.places import find_socket
    from berth.live.local.protocol import ask

    try:
        return ask(find_socket(), message, ANSWER_S)
    except LiveError:
        return {}
