"""What the thesis reports of its own experiment: shown beside ours, never as ours.

Oh, *A Job Placement Using Reinforcement Learning in GPU Virtualization Environment*, MSc thesis, Sookmyung Women's
University, 2019, chapter V. Measured on real jobs on one Titan Xp; only what the text states is here, the bars of its
figures are not printed as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from berth.errors import SettingError
from berth.profiles import FIRST_TRAINING_SEED

NAMES = {
    "sjf+first-fit": "SJF",
    "tetris-sharing": "Tetris",
    "deeprm-max": "DeepRM Max",
    "deeprm-mean": "DeepRM Mean",
    "learned": "DqnGPU",
}
"""What the thesis calls our policies."""


@dataclass(frozen=True, slots=True)
class Published:
    """One bar of figures 10 to 14, as far as the text tells it."""

    total_s: float | None = None
    gpu_use_pct: float | None = None
    gpu_mem_pct: float | None = None
    gpu_mem_peak_mb: int | None = None
    """In MB, as the thesis writes it."""
    doubtful: bool = False
    """Whether the thesis contradicts it; see `CONTRADICTIONS`."""


PUBLISHED: dict[tuple[str, str], Published] = {
    ("GPU_heavy", "sjf+first-fit"): Published(4807, 70.50, 36.44),
    ("GPU_heavy", "learned"): Published(4891, 82.09, 59.13),
    ("GPU_heavy", "deeprm-mean"): Published(5530),
    ("GPU_light", "sjf+first-fit"): Published(2295),
    ("GPU_light", "learned"): Published(1214, 89.31, 88.42, 11_755),
    ("GPUmemory_heavy", "learned"): Published(1214, 89.31, 88.42, doubtful=True),
    ("GPUmemory_light", "learned"): Published(3928),
    ("random", "learned"): Published(2481, 62.16, 20.45),
}
"""By workload and policy."""

NORMALISED = {
    "tetris-sharing": (1.294, 0.0),
    "learned": (1.081, 0.054),
    "deeprm-max": (1.303, 0.048),
    "deeprm-mean": (1.346, None),
}
"""Figure 16: time on random over SJF's, training included, and the part of it that is training (None: not told)."""

RATIO_TO_SJF = {
    ("GPU_heavy", "learned"): 1.017,
    ("random", "learned"): 1.027,
}
"""Total time over SJF's without training: on GPU_heavy 4,891 s over 4,807 s, on random figure 16. The second is
doubtful; see `CONTRADICTIONS`."""

TRAINING_S = 123.0
"""How long the thesis's network was trained."""

NOT_SLOWED = {"learned": 20, "tetris-sharing": 14, "deeprm-max": 14}
"""Figure 15: jobs of 30 that were not slowed by more than 2 %; of DeepRM Mean's, 12 were slowed by 10 % or more."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Section V.3.4, after prices of Amazon EC2 in 2019."""

    name: str
    alone_usd: float
    """An hour of an instance with a GPU for one job."""
    shared_usd: float
    """An hour of a place on a shared one."""
    shared: str


COSTS = (
    CostModel("Cost 1", 0.75, 1.204 / 2, "1.204/2: g4dn.4xlarge taken for two g3.xlarge, by GPU memory"),
    CostModel(
        "Cost 2", 0.526, 1.204 / 4, "1.204/4: g4dn.4xlarge taken for four g4dn.xlarge, by CPU and memory"
    ),
)
COST_SAVED_PCT = {"Cost 1": 29.86, "Cost 2": 49.98}
"""What DqnGPU saves of SJF's cost on random (figure 17)."""

CONTRADICTIONS = (
    "Both cost figures imply that DqnGPU took 0.874 of SJF's time on random (0.7014 × 0.75 ÷ 0.602, and 0.5002 × 0.526 "
    "÷ 0.301), where figure 16 says 1.027 without training.",
    "GPUmemory_heavy's figures for DqnGPU (1,214 s, 89.31 %, 88.42 %) repeat those of GPU_light, while the text says "
    "that SJF was faster there.",
    "Equation 2 as printed makes actions that turned out better than predicted less likely.",
)
"""Where the thesis contradicts itself."""


def check_seeds(seeds: Iterable[int]) -> None:
    """SettingError for seeds that models are trained on."""
    if wrong := [seed for seed in seeds if not 0 <= seed < FIRST_TRAINING_SEED]:
        raise SettingError(
            f"seed {wrong[0]} is one that models are trained on; expected 0…{FIRST_TRAINING_SEED - 1}"
        )


def thesis_dict() -> dict[str, object]:
    """All of it as plain values, by the names of our policies."""
    return {
        "names": dict(NAMES),
        "published": [
            {"workload": workload, "policy": policy, **asdict(published)}
            for (workload, policy), published in PUBLISHED.items()
        ],
        "total_time_to_sjf": [
            {"workload": workload, "policy": policy, "ratio": ratio}
            for (workload, policy), ratio in RATIO_TO_SJF.items()
        ],
        "random_with_training_to_sjf": [
            {"policy": policy, "ratio": ratio, "of_which_training": training}
            for policy, (ratio, training) in NORMALISED.items()
        ],
        "training_s": TRAINING_S,
        "not_slowed_of_30": dict(NOT_SLOWED),
        "cost_saved_pct": dict(COST_SAVED_PCT),
        "contradictions": list(CONTRADICTIONS),
    }
