"""The answers of the queue as text for people."""

from __future__ import annotations

from functools import lru_cache

from berth.counts import counted
from berth.live.driver.snapshot import UNENDED
from berth.live.driver.words import mib, moment, span, starts_text
from berth.live.local.snapshot import gpus_of, where_of

TYPE_CHECKING = False  # as in typing, whose import takes a tenth of a client's time
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from berth.live.driver.snapshot import Gpu, LiveJob, Tenant

MOST_NAMED = 5
MEASURED = ", measured because its application is unknown"
HEAD = ("ID", "USER", "NAME", "STATE", "GPUS", "MEM", "TIME", "WHERE OR WHY")


@lru_cache(maxsize=4096)
def gpus_text(gpus: int, milli: int) -> str:
    """How many GPUs: `2`, `0.5`, `–`."""
    return "–" if not gpus else str(gpus) if milli >= 1000 else f"{milli / 1000:g}"


def printable(text: str) -> str:
    """A text in which `?` stands for what a terminal would obey or cannot show: escapes, line ends, half characters."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "?" for sign in text)


def queue_cells(job: LiveJob, now_ms: float) -> tuple[str, ...]:
    """One job as `berth queue` and `berth top` show it, a cell for each column of `HEAD`."""
    began_ms = job.ready_ms if job.state in ("waiting", "held") else job.start_ms or job.submit_ms
    where = job.where or job.why
    if not job.where and job.exit_code and str(job.exit_code) not in where:
        where = f"{where} (exit code {job.exit_code})"
    if job.attempt > 1 and not job.end_ms:
        where = f"{where} (attempt {job.attempt})"
    took = "–" if began_ms is None else span((job.end_ms or now_ms) - began_ms)
    memory = mib(job.mem_mib) if job.mem_mib else "–"
    gpus = gpus_text(job.gpus, job.milli)
    return job.id, job.user, job.name[:24], job.state, gpus, memory, took, where


def queue_lines(rows: Sequence[tuple[str, ...]]) -> str:
    """Lines of a table of which every column but the last is as wide as its widest cell."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)][:7]
    form = "  ".join([*(f"%-{size}s" for size in sizes[:4]), *(f"%{size}s" for size in sizes[4:]), "%s"])
    return "".join([f"{printable((form % row).rstrip())}\n" for row in rows])


def policy_state(state: str) -> str:
    """What the policy does in a state of `Link.state`, and what that means for jobs."""
    doing = {
        "ready": "it decides",
        "down": "its process does not run; jobs wait until it is started again",
        "loading": "it is being loaded; jobs wait until that is done",
        "compiling": "it is being compiled, which takes longest the first time; jobs wait until that is done",
    }
    return doing[state]


def status_lines(answer: dict[str, Any], now_ms: float) -> list[str]:
    jobs = answer["jobs"]
    lines = [
        f"up: process {answer['pid']}, {answer['state_folder']}{', on fake GPUs' if answer['fake'] else ''}",
        f"policy: {answer['policy']} (knowledge: {answer['knowledge']}); {policy_state(answer['brain'])}"
        f" (process {answer['brain_pid']})",
        "jobs: " + ", ".join(f"{count:,} {state}" for state, count in jobs.items()),
    ]
    if not answer["host_mem_enforced"]:
        lines.append(
            "--host-mem: counted when jobs are placed, not enforced (no cgroup with the memory controller)"
        )
    lines += [f"trouble: {text}" for text in answer["trouble"]]
    for gpu in gpus_of(answer["gpus"]):
        used = "unknown" if gpu.used_mib is None else mib(gpu.used_mib)
        lost = ", LOST" if gpu.health else ", drained" if gpu.drained else ""
        lines.append(f"GPU {gpu.index}: {gpu.model}, {used} of {mib(gpu.mem_mib)} in use{lost}")
        for tenant in gpu.tenants:
            ran = f" for {span(now_ms - tenant.since_ms)}" if tenant.since_ms else ""
            lines.append(
                f"  job {tenant.job} ({tenant.user}, {tenant.name}): {tenant.milli / 10:g} %,"
                f" {memory_text(tenant)}, {tenant.state}{ran}{MEASURED if tenant.measured else ''}"
            )
        lines += [f"  {each.what} of no job: {mib(each.mem_mib)}" for each in gpu.strangers]
    return [printable(line) for line in lines]


def job_lines(job: dict[str, Any]) -> list[str]:
    lines = [f"Job {job['id']}: {job['state']}{_because(job['state'], job['reason'], ', ')}"]
    gpus = gpus_text(job["gpus"], job["milli"])
    asked = [
        "no GPU" if not job["gpus"] else f"{gpus} {'GPU' if gpus == '1' or '.' in gpus else 'GPUs'}",
        _memory_text(job["mem_mib"], job["mem_max_mib"]),
        f"{job['core_pct']} % of its compute" if job["core_pct"] else "",
        counted(job["cpu_milli"] / 1000, "CPU"),
        f"{mib(job['host_mem_mib'])}" if job["host_mem_mib"] else "",
        f"{span(job['time_limit_ms'])} at most" if job["time_limit_ms"] else "",
    ]
    facts = (
        ("name", job["name"]),
        ("user", job["user"]),
        ("application", job["application"]),
        ("asked for", ", ".join(filter(None, asked))),
        ("parameters", ", ".join(f"{name}={value}" for name, value in job["params"].items())),
        ("after", ", ".join(job["after"])),
        ("comment", job["comment"]),
        ("command", " ".join(job["command"])),
        ("folder", job["folder"]),
        ("output", job["output"]),
        ("submitted", moment(job["submit_ms"])),
        *(("notice", text) for text in job.get("unsent", ())),
    )
    lines += [f"  {name + ':':<13}{value}" for name, value in facts if value]
    for attempt in job["attempts"]:
        lines += _attempt_lines(attempt)
    if job["state"] in ("starting", "running"):
        where = where_of(job["slots"]) or "the CPU alone"
        lines.append(
            f"  attempt {job['attempt']}: {job['state']} since {moment(job['start_ms'])}, on {where}"
        )
    return [printable(line) for line in lines]


def _attempt_lines(attempt: dict[str, Any]) -> list[str]:
    code = "" if attempt["exit_code"] is None else f", exit code {attempt['exit_code']}"
    why = f", {attempt['reason']}" if attempt["reason"] and "exit code" not in attempt["reason"] else ""
    where = where_of(attempt["slots"]) or "the CPU alone"
    head = f"  attempt {attempt['attempt']}: {attempt['state']}{code}{why}"
    if attempt["start_ms"] is None:
        return [head, f"    left     {moment(attempt['end_ms'])}, never started"]
    lines = [
        head,
        f"    ran      {moment(attempt['start_ms'])} for {span(attempt['end_ms'] - attempt['start_ms'])}, on {where}",
    ]
    if attempt["slots"]:
        peak = "not known" if attempt["peak_mib"] is None else mib(attempt["peak_mib"])
        given = f" of {mib(attempt['share'][1])}" if attempt["share"][1] else ""
        lines.append(f"    memory   peak {peak}{given}, {counted(attempt['refused'], 'refused call')}")
    return lines


def whys_text(jobs: list[dict[str, Any]]) -> str:
    """`berth why ID`; tasks of an array that wait for the same are named behind the first of them."""
    alike: dict[str, list[str]] = {}
    for job in jobs:
        if job["like"]:
            alike.setdefault(job["like"], []).append(job["id"])
    parts = []
    for job in jobs:
        if job["like"]:
            continue
        lines, others = why_lines(job), alike.get(job["id"], [])
        if others:
            more = f" and {len(others) - MOST_NAMED:,} more" if len(others) > MOST_NAMED else ""
            lines.append(f"  the same holds for {', '.join(others[:MOST_NAMED])}{more}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def memory_text(tenant: Tenant) -> str:
    """The GPU memory that a job may hold, and how far that may grow."""
    if tenant.promise_mib is None:
        return mib(tenant.mem_mib)
    refused = f", {tenant.refused} refused" if tenant.refused else ""
    most = mib(tenant.max_mib or tenant.mem_mib)
    return f"{mib(tenant.mem_mib)} ({mib(tenant.promise_mib)} promised, at most {most}{refused})"


def _memory_text(mem_mib: int, most_mib: int) -> str:
    grows = f", growing to {mib(most_mib)}" if most_mib > mem_mib else ""
    return f"{mib(mem_mib)} of GPU memory{grows}" if mem_mib else ""


def _because(state: str, reason: str, mark: str) -> str:
    """The reason behind a state that was just named; `suspended by its user` does not name it again."""
    if reason.startswith(state):
        return reason.removeprefix(state)
    return f"{mark}{reason}" if reason else ""


def why_lines(job: dict[str, Any]) -> list[str]:
    """What stands in the way of one job, each fact once: the head leaves out what the lines below it say."""
    since, brain = span(job["now_ms"] - job["since_ms"]), job.get("brain")
    reason = brain["obstacle"] if brain else job["reason"]
    if reason == job["never"]:
        reason = ""
    if reason == "waits for room" or reason.startswith("waits for room for "):
        head = f"Job {job['id']} has waited {since} for room"
        if job.get("gang"):
            head += f" for {job['gang_starts']} tasks of gang {job['gang']}, which start together"
    elif job["state"] in UNENDED:
        head = f"Job {job['id']} has been {job['state']} for {since}{_because(job['state'], reason, ': ')}"
    else:
        head = f"Job {job['id']} ended {since} ago: {job['state']}{', ' + reason if reason else ''}"
    growth = _growth_line(job["growth"]) if job.get("growth") else ""
    unsent = [f"  {text}" for text in job.get("unsent", ())]
    return [printable(line) for line in [head, *filter(None, [growth]), *_obstacles(job), *unsent]]


def _growth_line(growth: dict[str, int]) -> str:
    """What a job whose GPU memory grows has of it, and what it asked for."""
    sizes = f"{mib(growth['mem_mib'])} now, {mib(growth['promise_mib'])} promised, {mib(growth['max_mib'])} at most"
    asked = (
        f"asked {counted(growth['asked'], 'time')}, {growth['granted']} granted, {growth['refused']} refused"
    )
    return f"  its GPU memory grows: {sizes}; {asked}"


def _obstacles(job: dict[str, Any]) -> list[str]:
    lines = []
    if job["note"]:
        lines.append(f"  {job['note']}")
    if job["never"]:
        lines.append(f"  it cannot run even if nothing else does: {job['never']}")
    brain = job.get("brain")
    if not brain:
        return lines
    lines.append(
        f"  policy: {brain['policy']}; {brain['ahead']} of {brain['waiting']} waiting jobs are ahead of it"
    )
    if brain["ahead"]:
        lines.append(f"  the first are {', '.join(brain['first'])}")
    if brain["expected_ms"] and brain["expected_by"] == "default":
        lines.append("  its run time is unknown: it has no time limit, and no job like it has ended yet")
    elif brain["expected_ms"]:
        basis = f" (by {brain['expected_by']})" if brain["expected_by"] else ""
        lines.append(f"  expected to run {span(brain['expected_ms'])}{basis}")
    if brain.get("starts_to_ms") is not None:
        lines.append(f"  {_starts_line(brain)}")
    elif brain.get("start_unknown"):
        lines.append(f"  {brain['start_unknown']}")
    elif brain["reserved_ms"]:
        lines.append(f"  {starts_text(brain['reserved_ms'], brain['reserved_ms'])}")
    lines += [f"  it {text}" for text in brain["machine"] if text != brain["obstacle"]]
    gpus = {gpu.index: gpu for gpu in gpus_of(job["gpus"])}
    return lines + [_gpu_line(candidate, gpus[candidate["gpu"]]) for candidate in brain["candidates"]]


def _starts_line(brain: dict[str, Any]) -> str:
    """When a job is believed to start, and how often that held for others."""
    text = starts_text(brain["starts_from_ms"], brain["starts_to_ms"])
    if not brain["starts_told"]:
        return text
    held, total = brain["starts_held"], counted(brain["starts_told"], "job")
    return f"{text}; of {total} that waited in the last 30 days, {held} started within their first interval"


def _gpu_line(candidate: dict[str, Any], gpu: Gpu) -> str:
    """What a GPU lacks for a job, or what would be left of it, and what it holds."""
    if gpu.health:
        room = "lost: the driver no longer answers for it"
    elif gpu.drained:
        room = f"drained; jobs start there again after berth undrain {gpu.index}"
    elif candidate["lacking"]:
        room = "; ".join(candidate["lacking"])
    else:
        left = f"{candidate['left_milli'] / 10:g} % and {mib(max(0, candidate['left_mib']))}"
        room = f"has room, left over {left}"
    held = [f"job {each.job} {mib(each.mem_mib)}" for each in gpu.tenants]
    for each in gpu.strangers:
        remedy = f" ({each.remedy})" if each.remedy else ""
        held.append(f"{each.name} of no job {mib(each.mem_mib)}{remedy}")
    by = f"; held by {', '.join(held)}" if held else ""
    return f"  GPU {gpu.index}: {room}{by}"
