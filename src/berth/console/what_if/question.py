"""A question: which jobs are to be replayed, by which policies, on which GPUs, under which rules."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, Field

from berth.errors import SettingError
from berth.history.values.durations import since_ms
from berth.interference import MODES
from berth.policies import WRAPPERS, make_policy
from berth.traces.nodes import nodes_from_spec

INTERFERENCES = ("none", *MODES)
"""How jobs on one GPU slow each other in a replay."""
MOST_POLICIES = 8
MOST_GPUS = 200_000
MOST_LIMIT = 1_000_000
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\+[a-z0-9]+(-[a-z0-9]+)*){0,3}")
"""A policy of berth's own without settings: what a browser sends must neither import a module nor open a file."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is kept of it; everything in it was checked."""

    policies: tuple[str, ...]
    since_ms: int
    until_ms: int
    cluster: str = ""
    """A spec such as `4x8:A100-80`; empty: the machine as it was."""
    whole_gpus: bool = False
    """Each job has whole GPUs, whatever part it asked for."""
    interference: str = "none"
    user_gpus: int | None = None
    """The most GPUs that the jobs of one user may hold, or None."""
    user_running: int | None = None
    """The most jobs of one user that may run, or None."""
    keep: str = ""
    """Find the smallest cluster that keeps this, such as `p90-wait`; empty: replay the policies."""

    @property
    def replayed(self) -> tuple[str, ...]:
        """The policies with the limits around them, as `berth compare` names them."""
        limits = [
            f"{name}={value}"
            for name, value in (("user_gpus", self.user_gpus), ("user_running", self.user_running))
            if value is not None
        ]
        around = f"limits?{'&'.join(limits)}+" if limits else ""
        return tuple(f"{around}{policy}" for policy in self.policies)


class QuestionBody(BaseModel, extra="forbid"):
    """What is asked for."""

    policies: list[str] = Field(description="Names as `berth policies` lists them, or joined: sjf+best-fit.")
    since: str = Field("7d", description="A date or time, in UTC where it names no zone, or 7d or 12h ago.")
    until: str = Field("", description="The same forms; empty: now.")
    cluster: str = Field("", description="A spec such as 4x8:A100-80; empty: the machine as it was.")
    whole_gpus: bool = Field(False, description="Give each job whole GPUs, whatever part it asked for.")
    interference: str = Field(
        "none", description=f"How jobs on one GPU slow each other: {', '.join(INTERFERENCES)}."
    )
    user_gpus: int | None = Field(None, description="The most GPUs that the jobs of one user may hold.")
    user_running: int | None = Field(None, description="The most jobs of one user that may run.")
    keep: str = Field(
        "", description="Find the smallest cluster that keeps this, such as p90-wait or p90-wait=30m."
    )


def asked(now_ms: int, body: QuestionBody) -> Question:
    """A question, checked; SettingError says what is wrong."""
    chosen = tuple(dict.fromkeys(body.policies))
    if not 1 <= len(chosen) <= MOST_POLICIES:
        raise SettingError(f"choose 1 to {MOST_POLICIES} policies, not {len(chosen)}")
    for policy in chosen:
        _check_policy(policy)
    begin_ms = _moment(body.since, "from", now_ms)
    end_ms = _moment(body.until, "until", now_ms) if body.until.strip() else now_ms
    if begin_ms >= end_ms:
        raise SettingError(f"the period ends ({_iso(end_ms)}) before it begins ({_iso(begin_ms)})")
    if cluster := body.cluster.strip():
        _check_cluster(cluster)
    if body.interference not in INTERFERENCES:
        raise SettingError(f"no sharing '{body.interference}'; there are {', '.join(INTERFERENCES)}")
    if body.whole_gpus and body.interference != "none":
        raise SettingError("jobs with whole GPUs share none: choose either whole GPUs or a way of sharing")
    limits = {"GPUs of a user": body.user_gpus, "running jobs of a user": body.user_running}
    for name, limit in limits.items():
        if limit is not None and not 0 < limit <= MOST_LIMIT:
            raise SettingError(f"the limit of {name} is {limit}; expected 1 to {MOST_LIMIT:,}, or nothing")
    if any(limits.values()) and any(policy.partition("+")[0] in WRAPPERS for policy in chosen):
        raise SettingError("limits stand around a policy once: name the policies without limits+")
    if keep := body.keep.strip():
        from berth.experiments.size import keep_of

        keep_of(keep)
        if body.whole_gpus:
            raise SettingError("sizes are found for jobs as they asked: leave whole GPUs out")
    checked = {"policies": chosen, "since_ms": begin_ms, "until_ms": end_ms, "cluster": cluster, "keep": keep}
    return Question(**body.model_dump(exclude={"since", "until"}) | checked)


def command(question: Question, history: Path) -> str:
    """The command line that does the same."""
    words = ["berth", *(("size", "--keep", question.keep) if question.keep else ("compare",))]
    words += ["--from-history", "--history", str(history)]
    words += ["--since", _iso(question.since_ms), "--until", _iso(question.until_ms)]
    words += ["--policies", ",".join(question.replayed)]
    if question.cluster:
        words += ["--cluster", question.cluster]
    if question.interference != "none":
        words += ["--interference", question.interference]
    if question.whole_gpus:
        words.append("--whole-gpus")
    return shlex.join(words)


def _check_policy(policy: str) -> None:
    if not NAME.fullmatch(policy):
        raise SettingError(f"no policy '{policy}'; expected NAME or ORDER+PLACEMENT, such as sjf+best-fit")
    make_policy(policy)  # raises PolicyError for what there is not, and what does not go together


def _check_cluster(spec: str) -> None:
    counts = re.findall(r"(?:^|,)\s*(\d+)x(\d+)", spec)
    if sum(int(nodes[:9]) * max(1, int(gpus[:9])) for nodes, gpus in counts) > MOST_GPUS:
        raise SettingError(f"the cluster '{spec}' is too large; a replay is of at most {MOST_GPUS:,} GPUs")
    nodes_from_spec(spec)  # never `read_nodes`, which opens a file of this name


def _moment(text: str, name: str, now_ms: int) -> int:
    try:
        moment_ms = since_ms(text.strip(), now_ms, name)
        _iso(moment_ms)
    except (SettingError, OverflowError, ValueError, OSError) as error:
        raise SettingError(
            f"{name} '{text}' is no time; expected a date such as 2026-11-21, or 7d or 12h ago"
        ) from error
    return moment_ms


def _iso(moment_ms: int) -> str:
    return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S+00:00}"
