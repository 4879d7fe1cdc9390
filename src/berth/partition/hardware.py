"""Partitions whose limit is the hardware's or the driver's own: an instance of MIG, a client of MPS, a cgroup.

Each is a region like any other, so that processes, peaks and refusals show; beside it lies a note, `<uuid>.hardware`,
of what keeps the limit and what a program must be told to get there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from berth.errors import PartitionError
from berth.partition.mps import check_client

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
