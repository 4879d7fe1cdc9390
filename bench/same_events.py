"""Whether two checkouts of berth simulate the same: 181 runs of policies, compared event by event.

    python bench/same_events.py --against ../other/src [--only TEXT] [--events 4000]

Four synthetic traces under every order, placement and scheme, with outages, rounds, priorities, patience and
quotas; the genetic search; and co-location of the thesis's applications under both models of interference. Of each run
the first `--events` events are compared, with their shares of GPUs (0: all events). It prints the runs that differ,
each with the first event that does and whether only shares do, and then exits with 1. A run that is refused counts by
the kind of its error. Three of the runs are the whole Philly trace in a sixth
of its time; without BERTH_TEST_DATA there are 178.

The other checkout may be older: names that have moved since are looked up in both places.
"""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from harness import OWN, environment_of, other_sources, save

TRACES = {
    "demo": "synthetic:demo?jobs=300&load=1.3",
    "pai": "synthetic:pai-like?jobs=1500",
    "philly": "synthetic:philly-like?jobs=1200&load=1.1",
    "poisson": "synthetic:poisson?jobs=600&load=0.95",
}
ORDERS = (
    "fifo", "sjf", "sjf-requested", "sjf-estimated", "largest-first", "fair-share", "least-attained-service"
)  # fmt: skip
PLACEMENTS = (
    "first-fit", "best-fit", "random", "dot-product", "gpu-packing", "gpu-clustering", "fgd", "round-robin",
    "tetris", "worst-fit",
)  # fmt: skip
SCHEMES = (
    "easy+fifo+best-fit", "easy+sjf+fgd", "preempt+fifo+best-fit", "preempt+sjf+fgd",
    "limits?user_gpus=8+easy+fifo", "limits?user_submitted=5&vc_gpus=30+sjf+best-fit",
    "limits?user_running=3+fair-share+fgd",
)  # fmt: skip
COLOCATING = (
    "greedy", "learned", "deeprm-max", "deeprm-mean", "tetris-sharing", "sjf+first-fit", "fifo+best-fit",
)  # fmt: skip
SHARE = " | "
"""What stands before the share of a GPU in the line of an event."""
QUOTAS = {"a": 20, "b": 20}
MOVED = {
    "Rounds": ("berth.policies.schemes.rounds", "berth.policies.rounds"),
    "FailureRate": ("berth.cluster.outages", "berth.outages"),
    "Recovery": ("berth.cluster.outages", "berth.outages"),
}
"""Where a class is, and where it was."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run: a trace, changed job by job, under a policy and conditions."""

    trace: str
    policy: str
    change: str = ""
    """The name of a function of `CHANGES`."""
    interference: str = "none"
    failures: tuple[int, int] | None = None
    """Mean time between failures and to repair, ms."""
    recovery: tuple[int, int] | None = None
    """Time between checkpoints and to restart, ms."""
    quotas: bool = False
    borrow: bool = False
    round_ms: int = 0


def cases() -> dict[str, Case]:
    """Every run by its name."""
    all_of: dict[str, Case] = {}
    often, seldom = (9_000_000, 500_000), (20_000_000, 3_000_000)
    for name, trace in TRACES.items():
        policies = [f"{order}+best-fit" for order in ORDERS] + [f"fifo+{rule}" for rule in PLACEMENTS]
        all_of |= {f"{name}/{policy}": Case(trace, policy) for policy in (*policies, *SCHEMES)}
        all_of |= {
            f"{name}/outages": Case(trace, "sjf+best-fit", failures=seldom, recovery=(600_000, 30_000)),
            f"{name}/outages-easy": Case(trace, "easy+fifo+fgd", failures=seldom),
            f"{name}/outages-attained": Case(trace, "least-attained-service+first-fit", failures=seldom),
            f"{name}/rounds": Case(trace, "sjf+best-fit", round_ms=60_000),
            f"{name}/priorities": Case(trace, "preempt+fifo+best-fit", "priorities"),
            f"{name}/patience": Case(trace, "fifo+best-fit", "patience"),
            f"{name}/patience-easy": Case(trace, "easy+sjf+best-fit", "patience"),
            f"{name}/quotas": Case(trace, "sjf+best-fit", "clusters", quotas=True),
            f"{name}/borrow": Case(trace, "fair-share+fgd", "clusters", quotas=True, borrow=True),
        }
    for name, jobs, jobs_of_paper in (("demo", 120, 60), ("poisson", 150, 60)):
        head = TRACES[name].partition("?")[0], TRACES[name].rpartition("&")[2]
        for policy, number in (("genetic", jobs), ("genetic-paper", jobs_of_paper)):
            trace = f"{head[0]}?jobs={number}&{head[1]}"
            all_of[f"{name}/{policy}"] = Case(trace, f"{policy}?generations=15")
    four = "synthetic:poisson?jobs={}&load=1.5&work_s=600&gpus=4"
    for model in ("mps", "time-sliced"):
        for policy in COLOCATING:
            for name, trace in (("poisson", four.format(120)), ("demo", "synthetic:demo?jobs=80&load=1.5")):
                case = Case(trace, policy, "applications", model)
                all_of[f"co-location/{name}/{model}/{policy}"] = case
        for policy in ("fifo+first-fit", "sjf+best-fit", "easy+fifo+fgd", "preempt+sjf+best-fit", "greedy"):
            case = Case(four.format(150), policy, "halves", model, failures=often)
            all_of[f"halves/{model}/{policy}"] = case
    philly = os.environ.get("BERTH_TEST_DATA", "") + "/philly/sia_philly.csv.gz"
    if Path(philly).is_file():
        for policy in ("easy+fifo+best-fit", "fifo+first-fit", "sjf+best-fit"):
            all_of[f"whole-philly/{policy}"] = Case(philly, policy, "six_times_as_fast")
    return all_of


def number_of(job: Any) -> int:
    """A number that depends on the id of a job alone."""
    return int(hashlib.md5(job.id.encode()).hexdigest()[:6], 16)


def priorities(job: Any) -> Any:
    """Three priorities; half of the jobs keep their work."""
    return replace(job, priority=number_of(job) % 3, keeps_work=number_of(job) % 2 == 0)


def patience(job: Any) -> Any:
    """Three of four jobs leave if they wait too long."""
    return replace(job, patience_ms=(None, 0, 600_000, 7_200_000)[number_of(job) % 4])


def six_times_as_fast(job: Any) -> Any:
    """Arrivals compressed, so that a queue forms."""
    return replace(job, submit_ms=job.submit_ms // 6)


def clusters(job: Any) -> Any:
    """Two virtual clusters."""
    return replace(job, virtual_cluster="ab"[number_of(job) % 2])


def applications(job: Any) -> Any:
    """The thesis's applications on one GPU or two, of which one in seven is unknown."""
    number, known = number_of(job), thesis_profiles()
    name = sorted(known)[number % len(known)]
    profile = known[name]
    return replace(
        job,
        application=name if number % 7 else "unknown",
        gpus=1 if number % 11 else 2,
        nodes=0 if number % 11 == 0 else 1,
        share=type(job.share)(1000, 0),
        work_ms=len(profile.usage) * profile.interval_ms,
        models=(),
        cpu_milli=0,
        mem_mib=0,
        labels=(),
    )


def halves(job: Any) -> Any:
    """The same on half a GPU each."""
    return replace(applications(job), share=type(job.share)(500, 2000), gpus=1)


CHANGES: dict[str, Callable[[Any], Any]] = {
    change.__name__: change
    for change in (priorities, patience, six_times_as_fast, clusters, applications, halves)
}


@cache
def thesis_profiles() -> Any:
    """The thesis's profiles by application."""
    from berth.profiles import thesis_profiles as profiles

    return profiles()


def moved(name: str) -> Any:
    """A class that lies elsewhere in older checkouts."""
    for module in MOVED[name]:
        try:
            return getattr(import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise SystemExit(f"{name} is in none of {', '.join(MOVED[name])}")


def policy_of(case: Case, jobs: tuple[Any, ...], model: Any) -> Any:
    """The case's policy, made as the checkout makes them."""
    import berth

    given: dict[str, Any] = {"quotas": QUOTAS if case.quotas else None, "borrow": case.borrow}
    if "workload" in inspect.signature(berth.Setting).parameters:
        given |= {"workload": jobs, "interference": model}
    else:
        from berth.knowledge import Oracle

        given["knowledge"] = Oracle(jobs, model)
    setting = berth.Setting(seed=1, **given)
    name = case.policy
    if name.startswith("learned"):
        try:
            berth.make_policy(name, setting)
        except berth.BerthError:
            name = name.replace("learned", "dqn")  # as the shipped network was called
    policy = berth.make_policy(name, setting)
    return moved("Rounds")(policy, case.round_ms) if case.round_ms else policy


def run(case: Case) -> Iterator[str]:
    """A line an event; of a run that is refused the kind of its error last."""
    import berth
    from berth.interference import make_interference

    trace = berth.read_trace(case.trace)
    nodes = trace.nodes or ()
    jobs = tuple(berth.read(case.trace))
    if case.change:
        jobs = tuple(map(CHANGES[case.change], jobs))
    model = make_interference(case.interference)
    conditions: dict[str, Any] = {"interference": model, "seed": 1}
    if case.failures:
        conditions["outages"] = moved("FailureRate")(*case.failures).outages(len(nodes), 1)
    if case.recovery:
        conditions["recovery"] = moved("Recovery")(*case.recovery)
    try:
        policy = policy_of(case, jobs, model)
        for event in berth.simulate(jobs, berth.Cluster(nodes), policy, **conditions):
            slots = " ".join(f"{slot.node}:{slot.index}" for slot in event.slots)
            head = f"{event.time_ms} ms {event.kind} {event.job.id} attempt {event.attempt}"
            share = f"{event.share.milli} milli {event.share.mem_mib} MiB"
            yield f"{head} [{slots}] {event.reason}{SHARE}{share}"
    except berth.BerthError as error:
        yield type(error).__name__


def work(events: int) -> None:
    """Read names of cases from standard input; write the lines of each as JSON. Short runs begin with a stretch too."""
    with suppress(ImportError):  # an older checkout
        from berth.engine import stretch

        stretch.FEW_JOBS = 1
    known = cases()
    for line in sys.stdin:
        print(json.dumps(list(islice(run(known[line.strip()]), events or None))), flush=True)


def first_difference(own: list[str], other: list[str]) -> str | None:
    """Which event differs first, and how; None if none does."""
    for at, (here, there) in enumerate(zip_longest(own, other, fillvalue="no event")):
        if here != there:
            return f"event {at}\n    this:  {here}\n    other: {there}"
    return None


def without_shares(lines: list[str]) -> list[str]:
    """The lines of events without the shares of GPUs."""
    return [line.partition(SHARE)[0] for line in lines]


def compare(other: Path, names: Iterable[str], events: int) -> dict[str, str]:
    """Run the cases with both sources side by side; print and return those that differ."""
    command = [sys.executable, __file__, "--work", "--events", str(events)]
    workers = [
        subprocess.Popen(
            command, env=environment_of(source), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for source in (OWN, other)
    ]
    differ: dict[str, str] = {}
    for name in names:
        for worker in workers:
            worker.stdin.write(f"{name}\n")  # type: ignore[union-attr]
            worker.stdin.flush()  # type: ignore[union-attr]
        answers = [worker.stdout.readline() for worker in workers]  # type: ignore[union-attr]
        if not all(answers):
            raise SystemExit(f"a process died in {name}; its error stands above")
        own, theirs = map(json.loads, answers)
        found = first_difference(own, theirs)
        word = "same"
        if found:
            differ[name] = found
            only_shares = first_difference(without_shares(own), without_shares(theirs)) is None
            word = "only shares differ" if only_shares else "differs"
        print(f"{word:<20}{len(own):>6} events  {name}", flush=True)
        if found:
            print(f"    {found}", flush=True)
    for worker in workers:
        worker.communicate()
    return differ


def main() -> None:
    """Compare with another checkout; exit with 1 if a run differs."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--against", type=Path, metavar="SRC", help="the src folder of another checkout")
    arguments.add_argument("--only", default="", metavar="TEXT", help="runs with TEXT in their names")
    arguments.add_argument(
        "--events", type=int, default=4000, help="events of a run that are compared; 0: all"
    )
    arguments.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    chosen = arguments.parse_args()
    if chosen.events < 0:
        raise SystemExit(f"--events {chosen.events}; expected 0 or more")
    if chosen.work:
        work(chosen.events)
        return
    if chosen.against is None:
        print("nothing to compare with: name the src folder of another checkout in --against")
        return
    names = [name for name in cases() if chosen.only in name]
    if not names:
        raise SystemExit(f"no run has '{chosen.only}' in its name")
    differ = compare(other_sources(chosen.against), names, chosen.events)
    print(f"{len(names) - len(differ)} of {len(names)} runs are the same; {len(differ)} differ")
    save("same_events", {"other": str(chosen.against), "runs": len(names), "differ": differ})
    if differ:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
