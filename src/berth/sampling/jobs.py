"""Which job a process belongs to, and which GPUs a job was given: by cgroup, or by what Slurm's Prolog wrote.

The index of a GPU is in no accounting. A Prolog (see docs/accounting.md) writes a file named by the job into a
folder, with the line `gpus=0,3`, or with UUIDs of GPUs or MIG instances; an Epilog removes it.
Without one, the cgroup of a process tells its job, under
version 1 and 2; failing that its environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_SLURM = re.compile(r"/job_(\d+)(?:/|$)", re.MULTILINE)
_PBS = re.compile(r"/pbs_jobs\.service/jobid/([^/\n]+)")
_ENVIRONMENT: Final = re.compile(rb"(?:^|\0)(?:SLURM_JOB_ID|PBS_JOBID|BERTH_JOB_ID)=([^\0]+)")
_PRESENT: Final = (
    "system.slice/*slurmstepd.scope/job_*",  # version 2
    "*/slurm*/uid_*/job_*",  # version 1, a folder a controller
)
_NAME = re.compile(r"\d+|[\w.\[\]-]+")


def job_of_process(pid: int, proc: Path = Path("/proc")) -> str:
    """The job's id; empty where the process is no job's, or has ended."""
    try:
        text = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    if found := _SLURM.search(text) or _PBS.search(text):
        return found[1]
    try:
        environment = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return ""
    named = _ENVIRONMENT.search(environment)
    return named[1].decode(errors="replace") if named else ""


def jobs_of_processes(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, str]:
    """The jobs of those processes that belong to one."""
    return {pid: job for pid in sorted(set(pids)) if (job := job_of_process(pid, proc))}


def jobs_present(cgroups: Path = Path("/sys/fs/cgroup")) -> set[str]:
    """The jobs that have a cgroup on this node, with a process on a GPU or without."""
    return {path.name[4:] for pattern in _PRESENT for path in cgroups.glob(pattern)}


def allotments(folder: Path | None) -> dict[str, tuple[int | str, ...]]:
    """The indices or UUIDs of each job's GPUs, from a Prolog's files; what is no such file is passed over."""
    found: dict[str, tuple[int | str, ...]] = {}
    try:
        paths = [] if folder is None else sorted(folder.iterdir())
    except OSError:
        return found
    for path in paths:
        try:
            text = path.read_text(encoding="ascii") if _NAME.fullmatch(path.name) else ""
        except (OSError, UnicodeDecodeError):
            continue
        for words in re.findall(r"^gpus=(.*)$", text, re.MULTILINE):
            found[path.name] = tuple(_named(words))
    return found


def _named(words: str) -> Iterator[int | str]:
    for part in words.split(","):
        if (name := part.strip()).isdecimal():
            yield int(name)
        elif name.startswith(("GPU-", "MIG-")):
            yield name
