"""What runs on the nodes as root: Prolog and Epilog, by `python -m berth.live.slurm.node`.

The Prolog makes a partition for the job on each of its GPUs, for the TaskProlog to hand in; the Epilog reads what
was held and refused, writes it down for berth, and takes the partition away. Whatever fails here is said in a log
and ends with 0: a Prolog that failed would drain the node, which is not berth's to do.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from berth.errors import BerthError, LiveError
from berth.history.values.tres import gres_list, indices
from berth.live.driver.node_tenants import Terms, admit, is_served, left_mib, room_kept, withdraw
from berth.live.slurm.agent import revoke
from berth.live.slurm.controller import run_program
from berth.live.slurm.jobs import format_of, rows_of, text_of
from berth.live.slurm.measured_use import Result, keep
from berth.live.slurm.nodes import nodes_of
from berth.live.slurm.requests import Note, is_interactive, memory_of, note_of
from berth.model import Share
from berth.partition import Access, Limit, create, fake_driver_folder, find, use_of
from berth.partition.gpus import Gpu, gpus, minor_of
from berth.partition.launch import environment

LEAST_PCT = 1
ANSWER_S = 4.0
"""How long slurmctld may take to answer: the script that calls this ends it after 8 s."""


def main() -> None:
    """`python -m berth.live.slurm.node prolog|epilog`; always ends with 0."""
    what = sys.argv[1] if len(sys.argv) > 1 else ""
    does = {"prolog": prolog, "epilog": epilog}.get(what)
    try:
        if does is None:
            raise LiveError(f"no '{what}'; there are prolog and epilog")
        does(os.environ)
    except Exception as error:  # noqa: BLE001  whatever it is, the node must not be drained for it
        say(f"{what} of job {os.environ.get('SLURM_JOB_ID')}: {type(error).__name__}: {error}")


def say(text: str) -> None:
    """Append a line to the log of this node."""
    line = f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} berth: {text}\n"
    try:
        with open(
            os.environ.get("BERTH_SLURM_LOG", "/var/log/berth-slurm.log"), "a", encoding="utf-8"
        ) as file:
            file.write(line)
    except OSError:
        sys.stderr.write(line)


def partition_name(words: Mapping[str, str]) -> str:
    """The name of a job's partition; nodes of a test are on one machine, so that theirs have to differ."""
    return f"slurm-{words['SLURM_JOB_ID']}-{_node(words)}"


def prolog(words: Mapping[str, str]) -> None:
    """Make the job's partition on each of its GPUs, for its user alone.

    Where that fails, nothing is handed in, and the TaskProlog gives no GPU to jobs whose GPUs are shared.
    """
    _handed_in(words).unlink(missing_ok=True)  # of an attempt before this one
    there = indices(words.get("SLURM_JOB_GPUS", ""))
    if not there:
        return
    try:
        _make(words, there)
    except Exception:
        _handed_in(words).unlink(missing_ok=True)
        with contextlib.suppress(BerthError, OSError):
            withdraw(partition_name(words))
        if _is_shared(words) or words.get("BERTH_SLURM_QOS"):  # a Prolog does not know its QoS
            keep(_results(words), Result(words["SLURM_JOB_ID"], _node(words), 0, 0, 0, closed=True))
        raise


def _make(words: Mapping[str, str], there: tuple[int, ...]) -> None:
    fake = bool(words.get("BERTH_SLURM_FAKE_GPU"))
    known = _by_minor(fake_driver_folder() if fake else None)
    if fake:  # one fake card stands for all of them
        there = there[:1]
        known = {index: replace(known[0], index=index) for index in there}
    missing = [index for index in there if index not in known]
    if missing:
        raise LiveError(
            f"NVML knows no /dev/nvidia{missing[0]}, which Slurm gave the job; there are"
            f" {', '.join(map(str, sorted(known))) or 'no GPUs'}: see gres.conf, and nvidia-smi on this node"
        )
    try:
        job = _job(words)
        note = note_of(job.get("AdminComment", ""))
    except LiveError as error:
        note = _least(words, min(known[index].mem_mib for index in there))
        if note is None:
            raise
        say(
            f"prolog of job {words['SLURM_JOB_ID']}: {error}; it gets {note.share}, the least that a job has here"
        )
        job = {}
    name = partition_name(words)
    with contextlib.suppress(BerthError):
        withdraw(name)  # of an attempt before this one
    region: Path | None = None
    access = Access(uid=int(words["SLURM_JOB_UID"]))
    limits = {index: _limit(note, job, known[index], words) for index in there}
    with room_kept():
        for index, limit in limits.items():
            if is_served():  # its neighbours may have grown, so that it gets the rest as it asks for it
                left = max(1, min(limit.mem_mib, left_mib(known[index])))
                limit = replace(limit, mem_mib=left)
            # Other jobs' promises are Slurm's and berth's to keep, and a job of a best-effort share may burst.
            region = create(name, known[index], limit, access=access, overcommit=True).folder
    if region is None:
        return
    _, most_mib = memory_of(job.get("Comment", ""))
    promise = min(limits.values(), key=lambda limit: limit.mem_mib)
    milli = 0 if promise.burst else 10 * promise.core_pct or 1000
    _hand_in(
        words, region, fake
    )  # before the agent is waited for: the job has its GPUs whatever becomes of that
    admit(
        name,
        Terms(
            f"{words['SLURM_JOB_ID']}-{_node(words)}",
            promise.mem_mib,
            most_mib,
            milli,
            priority=int(job.get("Priority") or 0),
            interactive=is_interactive(job.get("Comment", "")),
            application=f"{words['SLURM_JOB_UID']} {job.get('Name', '')}",
        ),
    )


def _by_minor(driver: Path | None) -> dict[int, Gpu]:
    """The GPUs of this node by the number of their /dev/nvidiaN, by which Slurm names them; by their index if NVML
    does not give it."""
    return {minor_of(gpu, driver): gpu for gpu in gpus(driver)}


def _least(words: Mapping[str, str], card_mib: int) -> Note | None:
    """If Slurm does not give a job's part: that of one shard, if it is of a partition whose GPUs are shared. More
    might be its neighbours' memory."""
    if not _is_shared(words):
        return None
    shards = int(words.get("BERTH_SLURM_SHARDS", "8"))
    return Note(share=Share(max(1, 1000 // shards), card_mib // shards))


def _is_shared(words: Mapping[str, str]) -> bool:
    """Whether the job is of a partition whose GPUs are shared."""
    return words.get("SLURM_JOB_PARTITION") in words.get("BERTH_SLURM_PARTITIONS", "").split(",")


def _job(words: Mapping[str, str]) -> dict[str, str]:
    """What is needed to know of the job, and not of other tasks of its array; by `squeue`, because in what `scontrol
    show job` prints a user's name of a job can look like other fields."""
    columns = ("JobID", "tres-per-node", "admin_comment", "Comment", "PriorityLong", "Name")
    mark = secrets.token_hex(4)
    command = ["squeue", "-h", "-a", "-j", words["SLURM_JOB_ID"], "-O", format_of(columns, mark)]
    names = "TresPerNode", "AdminComment", "Comment", "Priority", "Name"
    for job_id, *values in rows_of(run_program(command, timeout_s=ANSWER_S), columns, mark):
        if job_id == words["SLURM_JOB_ID"]:
            return dict(zip(names, map(text_of, values), strict=True))
    raise LiveError(f"squeue has no job {words['SLURM_JOB_ID']}")


def _limit(note: Note | None, job: Mapping[str, str], gpu: Gpu, words: Mapping[str, str]) -> Limit:
    """What the job may use of one GPU: what berth noted, else by its shards, else the whole card."""
    share = note.share if note is not None and note.share is not None else _by_shards(job, gpu, words)
    mem_mib = min(share.mem_mib or gpu.mem_mib * share.milli // 1000, gpu.mem_mib)
    if note is not None and note.best_effort:  # no limit, but its kernels are timed
        return Limit(mem_mib, 100, burst=True)
    return Limit(mem_mib, 0 if share.milli >= 1000 else max(LEAST_PCT, share.milli // 10))


def _by_shards(job: Mapping[str, str], gpu: Gpu, words: Mapping[str, str]) -> Share:
    """The part that shards stand for, which Slurm itself enforces nowhere."""
    wanted = sum(each.count for each in gres_list(job.get("TresPerNode", "")) if each.name == "shard")
    if not wanted:
        return Share()
    node = next(nodes_of(run_program(["scontrol", "-o", "-d", "show", "node", words["SLURMD_NODENAME"]])))
    milli = min(1000, 1000 * wanted // max(1, node.shards_a_gpu))
    return Share(milli, gpu.mem_mib * milli // 1000)


def _hand_in(words: Mapping[str, str], region: Path, fake: bool) -> None:
    """Write down what the TaskProlog, which runs as the user and for every task, gives to the job's processes."""
    made = environment({}, region=region, fake_gpu=fake)
    if fake and "BERTH_FAKE_CARD" in words:
        made["BERTH_FAKE_CARD"] = words["BERTH_FAKE_CARD"]
    path = _handed_in(words)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text("".join(f"{name}={value}\n" for name, value in made.items()), encoding="utf-8")
    path.chmod(0o644)


def _handed_in(words: Mapping[str, str]) -> Path:
    folder = Path(words.get("BERTH_SLURM_RUN", "/run/berth-slurm"))
    return folder / f"{words['SLURM_JOB_ID']}-{_node(words)}"


def _results(words: Mapping[str, str]) -> Path:
    return Path(words.get("BERTH_SLURM_RESULTS", "/var/lib/berth/slurm/results"))


def _node(words: Mapping[str, str]) -> str:
    return words.get("SLURMD_NODENAME", "node")


def epilog(words: Mapping[str, str]) -> None:
    """Write down what the job held at most and what was refused, and take its partition away."""
    name = partition_name(words)
    _handed_in(words).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # the next attempt begins unsuspended
        revoke(_results(words).parent, words["SLURM_JOB_ID"])
    try:
        parts = find(name)
    except BerthError:
        return
    timed = bool(parts) and all(part.core_pct for part in parts)
    gpu_ms = sum(part.gpu_ns for part in parts) // 1_000_000 if timed else None
    try:
        keep(_results(words), Result(words["SLURM_JOB_ID"], _node(words), *use_of(parts), gpu_ms=gpu_ms))
    finally:
        withdraw(name)
        with contextlib.suppress(OSError):  # the agent may have suspended it meanwhile
            revoke(_results(words).parent, words["SLURM_JOB_ID"])


if __name__ == "__main__":
    main()
