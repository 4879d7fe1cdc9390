"""Run one process tree under limits, and tell afterwards what it used."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from berth.errors import NoCommandError, PartitionError
from berth.partition.gpus import gpus, plain_uuid
from berth.partition.hardware import variables
from berth.partition.library import describe, fake_driver_folder, library_path
from berth.partition.native import admit, enter, limits_lock
from berth.partition.native import sweep as sweep_limits
from berth.partition.regions import INSIDE, PRIORITIES, Partition, find, read, regions_in
from berth.partition.sizes import size_text


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
    """GPU time; None where no compute limit was set, since it was not measured."""
    messages: tuple[str, ...]
    """What the library had to say, such as why there was no GPU."""
    partition: str | None = None
    """The named partition that it joined."""
    removed: bool = False
    """Whether the partition was removed, or made anew, while the command ran: what it used is not known then."""

    def __str__(self) -> str:
        if self.removed:
            return (
                f"berth: the partition '{self.partition}' was removed or replaced while the command ran; "
                "what it used is not known"
            )
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
    if core_pct == 0:  # none, whatever `base` says
        ours.pop("BERTH_GPU_CORE_PCT", None)
    elif core_pct is not None:
        ours["BERTH_GPU_CORE_PCT"] = str(core_pct)
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
    if partition is None and (mem_mib, core_pct or None, priority) == (None, None, None):
        raise PartitionError(
            "no limit to run under; give --mem, --core-pct or --priority, "
            "or join one with: berth partition exec NAME"
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
    sweep()
    with run_folder() as scratch, _regions_held(joined) as held:
        region = joined[0].folder if joined else scratch / "region"
        log = scratch / "log"
        words = environment(
            os.environ,
            region=region,
            log=log,
            mem_mib=mem_mib,
            core_pct=core_pct,
            gpu=gpu,
            burst=burst,
            priority=priority,
            fake_gpu=fake_gpu,
        )
        hardware = [one.hardware for one in joined if one.hardware is not None]
        visible, warnings = _visible(joined, fake_gpu) if joined and not hardware else ({}, ())
        words |= dict(variables(hardware)) | visible
        if fake_gpu and "BERTH_FAKE_CARD" not in words:
            words["BERTH_FAKE_CARD"] = str(scratch / "card")
        before = {seen.uuid: seen for seen in joined}
        driver = fake_driver_folder() if fake_gpu else None
        status = _wait(_start(command, words, joined, driver))
        if any(one.can.needs_entry for one in hardware):  # libberth refuses again if no cgroup is in use
            with contextlib.suppress(PartitionError, OSError):
                sweep_limits(joined[0].folder.parent, driver)
        logged = tuple(log.read_text().splitlines()) if log.exists() else ()
        messages = warnings + logged
        if not all(_is_there(descriptor, use) for use, descriptor in held.items()):
            return Summary(status, 0, 0, 0, None, messages, partition, removed=True)
        seen = [read(region, uuid, partition or "") for uuid in regions_in(region)] if region.exists() else []
        return _summary(status, seen, before, messages, partition)


def _visible(joined: Sequence[Partition], fake_gpu: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """What makes only a partition's GPUs visible; if the user has chosen others already, a warning instead."""
    try:
        known = {plain_uuid(gpu.uuid): gpu for gpu in gpus(fake_driver_folder() if fake_gpu else None)}
    except PartitionError:
        return {}, ()  # no driver here: the command will find out itself
    ours = [known[one.uuid] for one in joined if one.uuid in known]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if len(ours) < len(joined):
        return {}, ()  # a partition of what NVML does not list, such as an instance of MIG
    if chosen is None:
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in ours)}, ()
    words = [word.strip() for word in chosen.split(",")]
    for gpu in ours:
        if str(gpu.index) in words or any(len(word) > 4 and gpu.uuid.startswith(word) for word in words):
            return {}, ()
    names = " and ".join(f"{gpu.index} ({gpu.uuid})" for gpu in ours)
    warning = f"berth: no GPU: CUDA_VISIBLE_DEVICES={chosen} leaves out the partition's GPU {names}"
    return {}, (f"{warning}; unset it, or name that GPU",)


@contextmanager
def _regions_held(joined: Sequence[Partition]) -> Iterator[dict[Path, int]]:
    """The counters of a partition by path, kept open so that no later file has the number of theirs."""
    with contextlib.ExitStack() as stack:
        held = {}
        for one in joined:
            use = one.folder / f"{one.uuid}.use"
            held[use] = os.open(use, os.O_PATH)
            stack.callback(os.close, held[use])
        yield held


def _is_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


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
    assignments = [f"{name}={os.environ[name]}" for name in variables if os.environ.get(name)]
    return ", ".join(assignments) or f"BERTH_REGION={region}"


def _limits_text(mem_mib: int | None, core_pct: int | None) -> str:
    memory = None if mem_mib is None else f"{size_text(mem_mib << 20)} of GPU memory"
    share = None if core_pct is None else f"{core_pct} % of the GPU's time"
    return " and ".join(filter(None, (memory, share)))


def _start(
    command: Sequence[str], environment: Mapping[str, str], joined: Sequence[Partition], driver: Path | None
) -> subprocess.Popen[bytes]:
    """Start a command, in the cgroup of a partition that has one."""
    groups = [Path(one.hardware.group) for one in joined if one.hardware and one.hardware.can.needs_entry]
    if not groups:
        return _begun(command, environment)
    root = joined[0].folder.parent
    with limits_lock(root):  # until the process is in its cgroup, which is empty otherwise
        admit(joined[0].name, None, root, driver)
        try:
            return _begun(command, environment, lambda: enter(groups[0]))
        except subprocess.SubprocessError as error:  # what the child raised before it became the command
            raise PartitionError(
                f"no process can be started in {groups[0]}; remove the partition and create it again"
            ) from error


def _begun(
    command: Sequence[str], environment: Mapping[str, str], first: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """A process that does `first`, then becomes the command."""
    try:
        return subprocess.Popen(command, env=environment, preexec_fn=first)
    except OSError as error:
        raise NoCommandError(command[0], error) from error


def _wait(process: subprocess.Popen[bytes]) -> int:
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


_PREFIX, _DRAFT = "berth-run-", ".berth-new-"
_ROOM_MIB = 4
"""What a run's region, log and fake card may need: 220 KiB a GPU, 8 KiB a process on the fake card."""


def _places() -> list[Path]:
    places = [Path("/dev/shm")]
    with contextlib.suppress(FileNotFoundError):  # no temporary folder can be written
        places.append(Path(tempfile.gettempdir()))
    return list(dict.fromkeys(places))


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder for one run, which is removed after it.

    The lock on it lives as long as this process: a folder without one was left by a run that was killed. The name
    that `sweep` looks for is given after the lock is held.
    """
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=_folder_with_room()))
    descriptor = os.open(draft, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(
            OSError
        ):  # no locks there: `sweep` can have none either, and leaves it alone
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = draft.rename(draft.with_name(_PREFIX + draft.name.removeprefix(_DRAFT)))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _folder_with_room() -> Path:
    """Where the region of a run is made: in memory if there is room, else among the temporary files."""
    for folder in _places():
        if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free >= _ROOM_MIB << 20:
            return folder
    places = " and in ".join(str(folder) for folder in _places())
    if not any(os.access(folder, os.W_OK) for folder in _places()):
        raise PartitionError(
            f"the limits cannot be kept: nothing can be written in {places} (read-only, or another user's); "
            "name another folder with TMPDIR"
        )
    raise PartitionError(
        f"there are not {_ROOM_MIB} MiB left for the limits to be kept in, in {places}; "
        "free some there, or name another folder with TMPDIR"
    )


def sweep() -> None:
    """Remove the folders of this user's runs that were killed, except where a program of theirs still runs."""
    for place in _places():
        with contextlib.suppress(OSError):
            for entry in os.scandir(place):
                if entry.name.startswith(_PREFIX):
                    _sweep(Path(entry.path))


def _sweep(folder: Path) -> None:
    there = folder.lstat()
    if not stat.S_ISDIR(there.st_mode) or there.st_uid != os.geteuid():
        return
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_used(folder):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(descriptor)


def _is_used(folder: Path) -> bool:
    """Whether a process counts in the folder's region, or would: its environment names it."""
    region = folder / "region"
    for limit in region.glob("*.limit"):
        with contextlib.suppress(PartitionError):  # a damaged region has no process that can be told
            if describe(region, limit.stem)["processes"]:
                return True
    named = b"BERTH_REGION=" + os.fsencode(region) + b"\0"
    for process in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if named in process.read_bytes():
                return True
    return False
