"""The thesis's applications as synthetic profiles, its card and its five workloads.

Oh, *A Job Placement Using Reinforcement Learning in GPU Virtualization Environment*, MSc thesis, Sookmyung Women's
University, 2019: tables 3 and 4, figures 1–3, sections III and V. Its measurements are not published; what follows
is built from what its text states, and where the text is silent from its averages of the applications run one at
a time (SJF: 4,807 s for 30 jobs of GPU_heavy at 70.50 % GPU and 36.44 % memory, 2,295 s for 30 of GPU_light). These
numbers are frozen: they are never changed for the sake of a result.

CNN is not among the eleven; it stands in figure 3 alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from berth.errors import SettingError
from berth.model import GpuModel, Job, Profile
from berth.profiles.file import Profiles
from berth.profiles.series import run_time_ms

THESIS_GPU = GpuModel("TITAN-XP-THESIS", "Pascal", 12_288, 3_840, 32_000)
"""The card of table 4: 12 GB, 3,840 cores, PCIe as the thesis gives it, 32 GB/s."""

INTERVAL_MS = 5_000
"""Of every profile here."""

WORKLOADS: dict[str, tuple[str, ...]] = {
    "GPU_heavy": ("vgg11", "vgg16", "resnet50", "resnet101", "resnet152", "QMCPACK", "HOOMD", "LAMMPS"),
    "GPU_light": ("alexnet", "GROMACS"),
    "GPUmemory_heavy": ("vgg11", "vgg16", "resnet50", "resnet101", "resnet152"),
    "GPUmemory_light": ("alexnet", "googlenet", "QMCPACK", "HOOMD", "GROMACS"),
    "random": (
        *("LAMMPS", "GROMACS", "QMCPACK", "HOOMD", "googlenet", "alexnet"),
        *("vgg11", "vgg16", "resnet50", "resnet101", "resnet152"),
    ),
}
"""The applications of each workload, as lists: the thesis names them, and thresholds would choose others."""

RETRIES = 1_000
"""A thesis job that ran out of memory is run again until it is done."""

_LOADING_S = 5
"""While a data set is loaded to the GPU: hardly any GPU, the link busy, a quarter of the memory."""

# seconds, GPU per mille, memory MiB, cores per mille, PCIe per mille
_STEADY: dict[str, tuple[str, int, int, int, int, int]] = {
    "googlenet": ("ML", 75, 550, 3_000, 300, 80),
    "alexnet": ("ML", 55, 360, 4_555, 190, 200),
    "vgg11": ("ML", 90, 900, 6_550, 610, 110),
    "vgg16": ("ML", 115, 950, 7_050, 700, 90),
    "resnet50": ("ML", 90, 880, 6_500, 590, 120),
    "resnet101": ("ML", 125, 920, 6_900, 640, 90),
    "resnet152": ("ML", 160, 940, 7_400, 680, 70),
    "CNN": ("ML", 120, 700, 5_600, 420, 100),
    "GROMACS": ("HPC", 100, 300, 3_600, 170, 60),
    "HOOMD": ("HPC", 210, 800, 700, 480, 30),
}


def thesis_profiles() -> Profiles:
    """The twelve applications, on the thesis's card."""
    made: list[Profile] = []
    for name, (kind, seconds, gpu_milli, mem_mib, cores_milli, pcie_milli) in _STEADY.items():
        made.append(_profile(name, kind, _steady(seconds, gpu_milli, mem_mib, cores_milli, pcie_milli)))
    made.append(_profile("LAMMPS", "HPC", _rows(300, _lammps)))
    made.append(_profile("QMCPACK", "HPC", _rows(190, _qmcpack)))
    return Profiles(made)


FIRST_TRAINING_SEED = 1_000_000
"""Job sets to train on have this seed or a later one, those to measure with an earlier one."""


def workload_jobs(name: str, jobs: int = 30, seed: int = 0) -> tuple[Job, ...]:
    """Jobs drawn evenly from a workload's applications, all submitted at 0, as in the thesis.

    `work_ms` is the run time alone, and each asks for a GPU and for no memory of it: its profile tells how much it
    needs when, and a request would be a promise for all of its run. The same seed gives the same jobs everywhere.
    Raises SettingError for a workload that the thesis does not have.
    """
    if name not in WORKLOADS:
        raise SettingError(f"no workload '{name}'; the thesis has {', '.join(WORKLOADS)}")
    profiles = thesis_profiles()
    draw = random.Random(f"{name}/{seed}")
    applications = WORKLOADS[name]
    drawn = (profiles[applications[int(draw.random() * len(applications))]] for _ in range(jobs))
    return tuple(
        Job(
            id=f"{name}-{number:03d}",
            submit_ms=0,
            work_ms=run_time_ms(profile),
            application=profile.application,
            retries=RETRIES,
        )
        for number, profile in enumerate(drawn)
    )


Row = tuple[float, float, float, float]


def _profile(application: str, kind: str, rows: list[Row]) -> Profile:
    whole = np.array([1000, THESIS_GPU.mem_mib, 1000, 1000], dtype=np.float64)
    usage: NDArray[np.float64] = np.array(rows, dtype=np.float64) / whole
    usage.flags.writeable = False
    return Profile(application, kind, 0, "", THESIS_GPU, INTERVAL_MS, usage)


def _rows(seconds: int, use: Callable[[int], Row]) -> list[Row]:
    return [use(second) for second in range(0, seconds, INTERVAL_MS // 1000)]


def _steady(seconds: int, gpu_milli: int, mem_mib: int, cores_milli: int, pcie_milli: int) -> list[Row]:
    """Steady after loading (section III.1, figure 1)."""

    def use(second: int) -> Row:
        if second < _LOADING_S:
            return (50, mem_mib // 4, 20, 300)
        return (gpu_milli, mem_mib, cores_milli, pcie_milli)

    return _rows(seconds, use)


def _lammps(second: int) -> Row:
    """Memory grows from 363 to 8,499 MiB; GPU at 100 % at the memory's peak, about 40 % on average (figure 2).

    The memory grows slowly at first: beside vgg16 it does not run out (figure 3).
    """
    grown = min(second, 255) / 255
    gpu_milli = 1000 if second >= 255 else 240 + 120 * grown
    return (gpu_milli, round(363 + (8_499 - 363) * grown**1.5), gpu_milli * 0.55, 40)


def _qmcpack(second: int) -> Row:
    """GPU use in three rising steps; no GPU memory until 95 s, half of the run, then 5,135 MiB (figure 2)."""
    gpu_milli = 350 if second < 60 else 600 if second < 125 else 900
    return (gpu_milli, 5_135 if second >= 95 else 0, gpu_milli * 0.5, 20)
