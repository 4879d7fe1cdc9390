"""Profiles from the GPU series of Alibaba's cluster-trace-v2026-GenAI: duty cycle and memory in use of serving pods.

Two archives of one CSV file each, `value, timestamp_anon, container_ip` in any order: `pod_gpu_duty_cycle_anon`
(per cent) and `pod_gpu_memory_used_bytes_anon` (bytes), a sample every 57 s a pod. SM activity and PCIe were not
measured; the card is not named, and is the caller's to say.
"""

from __future__ import annotations

import csv
import io
import tarfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from berth.errors import ProfileError
from berth.model import GpuModel, Profile
from berth.profiles.file import checked

DUTY, MEMORY = "pod_gpu_duty_cycle_anon", "pod_gpu_memory_used_bytes_anon"
STEP_S = 57
"""What lies between two samples."""
BRIDGED = 3
"""Samples in a row that may be missing and are taken as the one before them; a longer gap ends the series."""
LEAST = 10
"""A pod with fewer samples in a row than that has no profile."""


def read_genai(folder: Path, gpu: GpuModel) -> Iterator[Profile]:
    """A profile a pod, in order of their names: the longest stretch without a gap in either series.

    Raises ProfileError, naming file and line, for what is not such an archive, and naming the pod where more memory
    was used than `gpu` has.
    """
    duty = _series(folder / f"{DUTY}.tar.gz", DUTY)
    memory = _series(folder / f"{MEMORY}.tar.gz", MEMORY)
    for pod in sorted(duty.keys() & memory.keys()):
        values = _stretch(duty[pod], memory[pod])
        if len(values) < LEAST:
            continue
        usage = np.zeros((len(values), 4))
        usage[:, 0] = values[:, 0] / 100
        usage[:, 1] = values[:, 1] / (gpu.mem_mib << 20)
        usage.flags.writeable = False
        yield checked(Profile(f"genai-{pod[:12]}", "inference", 0, "", gpu, STEP_S * 1000, usage))


def _series(path: Path, name: str) -> dict[str, dict[int, float]]:
    """Of each pod the value at each step."""
    found: dict[str, dict[int, float]] = defaultdict(dict)
    try:
        with tarfile.open(path) as archive:
            member = next((each for each in archive.getmembers() if each.name.endswith(f"{name}.csv")), None)
            content = None if member is None else archive.extractfile(member)
            if content is None:
                raise ProfileError(f"{path} has no {name}.csv in it")
            reader = csv.DictReader(io.TextIOWrapper(content, encoding="utf-8"))
            for row in reader:
                step = round(float(row["timestamp_anon"]) / STEP_S)
                found[row["container_ip"]][step] = float(row["value"])
    except (tarfile.TarError, EOFError) as error:
        raise ProfileError(f"{path} is not a tar archive: {error}") from error
    except KeyError as error:
        raise ProfileError(
            f"{path} has no column {error}; expected value, timestamp_anon, container_ip"
        ) from error
    except (TypeError, ValueError) as error:
        raise ProfileError(
            f"{path}, {name}.csv, line {reader.line_num}: {error}; expected numbers"
        ) from error
    return found


def _stretch(duty: dict[int, float], memory: dict[int, float]) -> NDArray[np.float64]:
    """(steps, 2): both series over the longest stretch in which neither misses more than `BRIDGED` samples."""
    best: tuple[int, int] = (0, 0)
    both = sorted(duty.keys() & memory.keys())
    begin = 0
    for at in range(1, len(both) + 1):
        if at == len(both) or both[at] - both[at - 1] > BRIDGED + 1:
            if both[at - 1] - both[begin] >= best[1] - best[0]:
                best = (both[begin], both[at - 1] + 1)
            begin = at
    values = np.empty((best[1] - best[0], 2))
    for row, step in enumerate(range(*best)):
        known = step in duty and step in memory
        values[row] = (duty[step], memory[step]) if known else values[row - 1]
    return values
