"""Partitions whose limit is the hardware's or the driver's own: an instance of MIG, a client of MPS, a cgroup.

Each is a region like any other, so that processes, peaks and refusals show; beside it lies a note, `<uuid>.hardware`,
of what keeps the limit and what a program must be told to get there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from berth.errors import PartitionError

Kind = Literal["mig", "mps", "native"]


class Abilities(NamedTuple):
    """What a kind of hardware does for a partition, and what it asks of its programs."""

    text: str
    memory: bool = False
    """Whether it keeps the memory of all processes together; libberth then counts and does not refuse."""
    time: bool = False
    """Whether it divides the GPU's time; libberth then does not."""
    resizable: bool = False
    """Whether its memory may become another while it is in use."""
    needs_variables: bool = False
    """Whether a program gets there only by its environment, which a container's hook cannot set."""
    needs_entry: bool = False
    """Whether its cgroup is let in before a program starts: by `berth partition exec` or a container's hook."""


ABILITIES: Mapping[Kind, Abilities] = {
    "mig": Abilities("MIG", memory=True, time=True),
    "mps": Abilities("MPS", time=True, needs_variables=True),
    "native": Abilities("native", memory=True, resizable=True, needs_entry=True),
}


@dataclass(frozen=True, slots=True)
class Hardware:
    """What keeps a partition's limit beside libberth."""

    kind: Kind
    gpu: str
    """The UUID of the whole GPU, as NVML writes it."""
    uuid: str
    """What CUDA_VISIBLE_DEVICES names: the instance's UUID, or the GPU's."""
    mem_mib: int
    profile: str = ""
    """MIG: the profile's name, such as `2g.10gb`."""
    gpu_instance: int = -1
    compute_instance: int = -1
    gpu_minor: int = -1
    """MIG: the number of /dev/nvidiaN, under which the instance's access files are."""
    core_pct: int = 0
    """MPS: per cent of the GPU's multiprocessors, for each process; 0: not limited."""
    pipe: str = ""
    """MPS: the folder of the control daemon's pipes."""
    group: str = ""
    """Native: the folder of the partition's own cgroup."""
    groups: tuple[str, ...] = ()
    """Native: the folders of those that have the limit now, such as a container's."""

    @property
    def can(self) -> Abilities:
        """What its kind does."""
        return ABILITIES[self.kind]

    @property
    def text(self) -> str:
        """The share, for people."""
        cores = f"{self.core_pct} %" if self.can.time and self.core_pct else ""
        return " ".join(filter(None, (self.can.text, self.profile, cores)))


def _note(folder: Path, uuid: str) -> Path:
    return folder / f"{uuid}.hardware"


def keep(folder: Path, uuid: str, hardware: Hardware) -> None:
    """Write the note beside a region, whole or not at all."""
    draft = folder / f".{uuid}.hardware"
    draft.write_text(json.dumps(asdict(hardware)))
    draft.chmod(0o644)
    draft.rename(_note(folder, uuid))


def hardware_in(folder: Path, uuid: str) -> Hardware | None:
    """What keeps a region's limit beside libberth; None where nothing does."""
    try:
        text = _note(folder, uuid).read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PartitionError(f"{_note(folder, uuid)}: cannot be read ({error.strerror})") from error
    try:
        note = json.loads(text)
        if note["kind"] not in ABILITIES:
            raise ValueError(f"no kind '{note['kind']}'")
        known = {key: note[key] for key in note if key in Hardware.__slots__}  # older ones say more
        return Hardware(**known | {"groups": tuple(note.get("groups") or filter(None, [note.get("group")]))})
    except (KeyError, TypeError, ValueError) as error:
        raise PartitionError(
            f"{_note(folder, uuid)}: is damaged ({error}); remove the partition with --force and make it anew"
        ) from error


def variables(kept: Sequence[Hardware]) -> Mapping[str, str]:
    """What a program's environment must say, for its limit to be the hardware's. Raises PartitionError where the
    hardware would keep none."""
    if not kept:
        return {}
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(one.uuid for one in kept)}
    for one in kept:
        if one.can.needs_variables:
            limits = f"0={one.mem_mib}M"
            check_client(Path(one.pipe), limits)
            variables |= {
                "CUDA_MPS_PIPE_DIRECTORY": one.pipe,
                "CUDA_MPS_LOG_DIRECTORY": str(Path(one.pipe).parent / "log"),
                "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
            }
            if one.core_pct:
                variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(one.core_pct)
    return variables


PROGRAM = "nvidia-cuda-mps-control"
_WAIT_S = 30
_LIMITS = re.compile(r"\d+=[1-9]\d*[MG](,\d+=[1-9]\d*[MG])*")
"""How CUDA_MPS_PINNED_DEVICE_MEM_LIMIT is written: a size for each device."""


def pipe_folder(root: Path, gpu_uuid: str) -> Path:
    """Where the clients of a GPU's daemon find its pipes."""
    return root / f".mps-{gpu_uuid}" / "pipe"


def start_daemon(root: Path, gpu_uuid: str) -> Path:
    """Start the control daemon of a GPU unless it runs; returns its pipe folder."""
    pipe = pipe_folder(root, gpu_uuid)
    fresh = not pipe.parent.exists()
    for folder in (pipe, pipe.parent / "log"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        runs = _control(pipe, gpu_uuid, "get_server_list\n").returncode == 0
        if not runs and (started := _control(pipe, gpu_uuid, None)).returncode != 0:
            raise PartitionError(
                f"{PROGRAM} -d does not start for {gpu_uuid} ({_output(started)}); run it with -f to see why"
            )
    except PartitionError:
        if fresh:
            shutil.rmtree(pipe.parent, ignore_errors=True)
        raise
    return pipe


def check_client(pipe: Path, limits: str) -> None:
    """Refuse to start a client that would run without a limit: NVIDIA's documents say that it does, and without an
    error, if its pipe folder is missing or its limit cannot be read."""
    if not (pipe / "control").exists():
        raise PartitionError(
            f"{pipe} has no pipe of {PROGRAM}, and without it MPS limits nothing; nothing is started. "
            "Remove the partition and create it again"
        )
    if not _LIMITS.fullmatch(limits):
        raise PartitionError(
            f"MPS cannot read the limit '{limits}', and would keep none; nothing is started. "
            "Remove the partition and create it again"
        )


def stop_daemon(root: Path, gpu_uuid: str) -> None:
    """End the control daemon of a GPU, if it runs, and its servers."""
    pipe = pipe_folder(root, gpu_uuid)
    if not pipe.exists() or _control(pipe, gpu_uuid, "get_server_list\n").returncode != 0:
        return
    ended = _control(pipe, gpu_uuid, "quit\n")
    if ended.returncode != 0:
        raise PartitionError(
            f"the control daemon of {gpu_uuid} does not end ({_output(ended)}); end its clients first"
        )


def _control(pipe: Path, gpu_uuid: str, command: str | None) -> subprocess.CompletedProcess[str]:
    """A command to the daemon, or its start."""
    ours = {
        "CUDA_VISIBLE_DEVICES": gpu_uuid,
        "CUDA_MPS_PIPE_DIRECTORY": str(pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(pipe.parent / "log"),
    }
    words = [PROGRAM, "-d"] if command is None else [PROGRAM]
    log = pipe.parent / "log" / "start"
    try:
        with log.open("w+") as log_file:  # a daemon that keeps a pipe open would keep us waiting
            ran = subprocess.run(
                words,
                input=command or "",
                env=os.environ | ours,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_WAIT_S,
                check=False,
            )
            log_file.seek(0)
            return subprocess.CompletedProcess(words, ran.returncode, log_file.read())
    except FileNotFoundError as error:
        raise PartitionError(
            f"there is no {PROGRAM} on this machine; it comes with NVIDIA's driver (nvidia-compute-utils)"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise PartitionError(
            f"{' '.join(words)} did not answer within {_WAIT_S} s; see {pipe.parent / 'log'}"
        ) from error


def _output(ran: subprocess.CompletedProcess[str]) -> str:
    return ran.stdout.strip()[-200:] or f"status {ran.returncode}"
