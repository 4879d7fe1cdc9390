"""Run one process tree under limits, and tell afterwards what it used."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from berth.errors import PartitionError
from berth.partition.hardware import variables
from berth.partition.library import fake_driver_folder, library_path
from berth.partition.regions import INSIDE, PRIORITIES, Partition, find, read, regions_in
from berth.partition.sizes import size_text

__all__ = ["Summary", "environment", "run"]

_ROOM_MIB = 4
"""What a run's region, log and fake card may need: 220 KiB a GPU, 8 KiB a process on the fake card."""


@dataclass(frozen=True, slots=True)
class Summary:
    """How a process tree ended and what it used of its GPUs together."""

    exit_status: int
    """As a shell tells it: 128 and the signal's number where one ended it."""
    peak_bytes: int
    """Where it joined a named partition: the partition's, since it was made."""
    limit_bytes: int
    refused: int
    gpu_ns: int | None
    """GPU time; None where no compute limit was set, since nobody measured it."""
    messages: tuple[str, ...]
    """What the library had to say, such as why there was no GPU."""
    partition: str | None = None
    """The named partition that it joined."""

    def __str__(self) -> str:
        time = "not measured without --core-pct" if self.gpu_ns is None else f"{self.gpu_ns / 1e9:.2f} s"
        if self.limit_bytes == 0:
            return "berth: no GPU was used"
        peak = "peak" if self.partition is None else f"peak of the partition '{self.partition}' so far"
        return (
            f"berth: {peak} {size_text(self.peak_bytes)} of {size_text(self.limit_bytes)}, "
            f"{self.refused} refused {'call' if self.refused == 1 else 'calls'}, GPU time {time}"
        )


def environment(
    base: Mapping[str, str],
    *,
    region: Path,
    log: Path | None = None,
    mem_mib: int | None = None,
    core_pct: int | None = None,
    gpu: str | None = None,
    burst: bool = False,
    swap_mib: int | None = None,
    priority: str | None = None,
    fake_gpu: bool = False,
) -> dict[str, str]:
    """The environment of a process under these limits; without memory and share the region's own count.

    A region of its own also heeds those limits that `base` names and this call does not.
    """
    limited = mem_mib is not None or core_pct is not None or priority is not None
    gone = ("BERTH_REGION", "BERTH_LOG") if limited else ("BERTH_GPU_", "BERTH_REGION", "BERTH_LOG")
    ours = {name: value for name, value in base.items() if not name.startswith(gone)}
    preload = [str(library_path()), *base.get("LD_PRELOAD", "").split()]
    ours |= {"LD_PRELOAD": " ".join(preload), "BERTH_REGION": str(region)}
    if log is not None:
        ours["BERTH_LOG"] = str(log)
    if mem_mib is not None:
        ours["BERTH_GPU_MEM_MIB"] = str(mem_mib)
    if core_pct is not None:
        ours["BERTH_GPU_CORE_PCT"] = str(core_pct)
    if swap_mib is not None:
        ours["BERTH_GPU_OVERSUBSCRIBE_MIB"] = str(swap_mib)
    if burst:
        ours["BERTH_GPU_BURST"] = "1"
    if priority is not None:
        ours["BERTH_GPU_PRIORITY"] = priority
    if gpu is not None:
        ours["CUDA_VISIBLE_DEVICES"] = gpu
    if fake_gpu:
        path = [str(fake_driver_folder()), *filter(None, [base.get("LD_LIBRARY_PATH")])]
        ours["LD_LIBRARY_PATH"] = ":".join(path)
    return ours


def run(
    command: Sequence[str],
    *,
    mem_mib: int | None = None,
    core_pct: int | None = None,
    gpu: str | None = None,
    burst: bool = False,
    swap_mib: int | None = None,
    priority: str | None = None,
    partition: str | None = None,
    fake_gpu: bool = False,
    root: Path | None = None,
) -> Summary:
    """Run a command under limits of its own, or in a named partition, and wait for it."""
    if not command:
        raise PartitionError(
            "no command to run; write it after --, as in: berth run --mem 4G -- python train.py"
        )
    limits = (mem_mib, core_pct, priority)
    if partition is None and limits == (None, None, None):
        raise PartitionError(
            "no limit to run under; give --mem, --core-pct or --priority, "
            "or join one with: berth partition exec NAME"
        )
    if swap_mib is not None and mem_mib is None:
        raise PartitionError(
            "--oversubscribe is memory beyond a limit; give --mem too, or resize the partition"
        )
    if partition is not None and limits != (None, None, None):
        raise PartitionError(
            f"the partition '{partition}' has its own limits; leave mem_mib, core_pct and priority out, "
            "or resize it"
        )
    if priority is not None and priority not in PRIORITIES:
        raise PartitionError(f"no priority '{priority}'; there are {', '.join(PRIORITIES)}")
    joined = find(partition, root) if partition is not None else []
    _check_free(joined[0].folder if joined else None, mem_mib, core_pct)
    with tempfile.TemporaryDirectory(prefix="berth-run-", dir=_folder_with_room()) as scratch:
        region = joined[0].folder if joined else Path(scratch) / "region"
        log = Path(scratch) / "log"
        words = environment(
            os.environ,
            region=region,
            log=log,
            mem_mib=mem_mib,
            core_pct=core_pct,
            gpu=gpu,
            burst=burst,
            swap_mib=swap_mib,
            priority=priority,
            fake_gpu=fake_gpu,
        )
        words |= variables([one.hardware for one in joined if one.hardware is not None])
        if fake_gpu and "BERTH_FAKE_CARD" not in words:
            words["BERTH_FAKE_CARD"] = str(Path(scratch) / "card")
        before = {seen.uuid: seen for seen in joined}
        status = _wait(command, words)
        seen = [read(region, uuid, partition or "") for uuid in regions_in(region)] if region.exists() else []
        messages = tuple(log.read_text().splitlines()) if log.exists() else ()
        return _summary(status, seen, before, messages, partition)


def _folder_with_room() -> Path:
    """Where the region of a run is made: in memory if there is room, else among the temporary files."""
    folders = [Path("/dev/shm"), Path(tempfile.gettempdir())]
    for folder in folders:
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_MIB << 20:
            return folder
    places = " and in ".join(dict.fromkeys(str(folder) for folder in folders))
    raise PartitionError(
        f"there are not {_ROOM_MIB} MiB left for the limits to be kept in, in {places}; "
        "free some there, or name another folder with TMPDIR"
    )


def _check_free(region: Path | None, mem_mib: int | None, core_pct: int | None) -> None:
    """Refuse other limits than those that this process is under: a process counts in one region, so that under
    new ones it would count in the old no more."""
    if not _is_limited():
        return
    above = Path(f"{INSIDE}/region") if Path(f"{INSIDE}/region").exists() else os.environ.get("BERTH_REGION")
    if region is not None and above is not None and Path(above) == region:
        return
    asked = "another partition" if region is not None else _limits_text(mem_mib, core_pct)
    raise PartitionError(
        f"{asked} cannot be given here, under a limit already: {_limits_above(above)}; "
        "run the command as it is, which keeps to that limit, or start it from outside"
    )


def _is_limited() -> bool:
    """Whether libberth.so is in this process and something is limited."""
    loaded = "/libberth.so\n" in Path("/proc/self/maps").read_text(errors="replace")
    named = ("BERTH_REGION", "BERTH_GPU_MEM_MIB", "BERTH_GPU_CORE_PCT")
    return loaded and (Path(f"{INSIDE}/region").exists() or any(os.environ.get(name) for name in named))


def _limits_above(region: Path | str | None) -> str:
    folder = Path(region) if region is not None else None
    if folder is not None and folder.is_dir() and (uuids := regions_in(folder)):
        seen = [read(folder, uuid, "") for uuid in uuids]
        return ", ".join(_limits_text(one.limit_bytes >> 20, one.core_pct or None) for one in seen)
    variables = ("BERTH_GPU_MEM_MIB", "BERTH_GPU_CORE_PCT")
    said = [f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)]
    return ", ".join(said) or f"BERTH_REGION={region}"


def _limits_text(mem_mib: int | None, core_pct: int | None) -> str:
    memory = None if mem_mib is None else f"{size_text(mem_mib << 20)} of GPU memory"
    share = None if core_pct is None else f"{core_pct} % of the GPU's time"
    return " and ".join(filter(None, (memory, share)))


def _wait(command: Sequence[str], environment: Mapping[str, str]) -> int:
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise PartitionError(f"'{command[0]}' cannot be run ({error.strerror})") from error
    while True:
        try:
            status = process.wait()
            break
        except KeyboardInterrupt:  # the terminal told the command too; it decides
            continue
    return 128 - status if status < 0 else status


def _summary(
    status: int,
    seen: Sequence[Partition],
    before: Mapping[str, Partition],
    messages: tuple[str, ...],
    partition: str | None,
) -> Summary:
    used = [one for one in seen if one.peak_bytes] or list(seen[:1])
    timed = [one for one in used if one.core_pct]
    refused_before = sum(before[one.uuid].refused for one in used if one.uuid in before)
    gpu_ns_before = sum(before[one.uuid].gpu_ns for one in timed if one.uuid in before)
    return Summary(
        exit_status=status,
        peak_bytes=sum(one.peak_bytes for one in used),
        limit_bytes=sum(one.limit_bytes for one in used),
        refused=sum(one.refused for one in used) - refused_before,
        gpu_ns=sum(one.gpu_ns for one in timed) - gpu_ns_before if timed else None,
        messages=messages,
        partition=partition,
    )
