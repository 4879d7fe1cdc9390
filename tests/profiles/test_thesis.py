"""The thesis's applications hold what its text states; what it says of pairs comes out of the simulator."""

from __future__ import annotations

import hashlib
from itertools import combinations_with_replacement

import numpy as np
import pytest

from berth import Cluster, Job, Node, Share, simulate
from berth.errors import SettingError
from berth.interference import SPEEDS, make_speeds
from berth.interference.profiled import ProfiledInterference
from berth.model import EventKind, GpuModel
from berth.profiles import THESIS_GPU, WORKLOADS, Profiles, series, thesis_profiles, workload_jobs
from berth.profiles.file import checked

PROFILES = thesis_profiles()
SERIES = {name: series(profile, THESIS_GPU) for name, profile in PROFILES.items()}
ML = ("googlenet", "alexnet", "vgg11", "vgg16", "resnet50", "resnet101", "resnet152", "CNN")


def test_there_are_the_eleven_of_table_3_and_cnn_on_the_card_of_table_4() -> None:
    assert set(PROFILES) == {*WORKLOADS["random"], "CNN"}
    assert len(WORKLOADS["random"]) == 11
    assert {profile.hardware for profile in PROFILES.values()} == {THESIS_GPU}
    assert (THESIS_GPU.mem_mib, THESIS_GPU.cores, THESIS_GPU.pcie_mbps) == (12_288, 3_840, 32_000)
    for profile in PROFILES.values():
        checked(profile)


def test_the_profiles_are_frozen() -> None:
    """They are made from the text, before any training: who changes them must say so here."""
    digest = hashlib.sha256()
    for name in sorted(SERIES):
        digest.update(name.encode() + SERIES[name].usage.tobytes())
    assert digest.hexdigest()[:16] == "c994e6cfd6d2e93c"


@pytest.mark.parametrize("name", ML)
def test_ml_applications_are_steady_after_loading(name: str) -> None:
    loading, *rest = SERIES[name].rows
    assert len(set(rest)) == 1
    assert loading[0] < rest[0][0]
    assert loading[1] < rest[0][1]


def test_lammps_grows_and_is_busiest_at_its_memory_s_peak() -> None:
    usage = SERIES["LAMMPS"].usage
    assert (usage[0, 1], usage[:, 1].max()) == (363, 8_499)
    assert (np.diff(usage[:, 1]) >= 0).all()
    assert 380 <= usage[:, 0].mean() <= 420
    assert (usage[usage[:, 1] == 8_499, 0] == 1000).all()
    assert (usage[usage[:, 1] < 8_499, 0] < 1000).all()


def test_qmcpack_climbs_three_steps_and_takes_memory_in_the_middle() -> None:
    found = SERIES["QMCPACK"]
    levels = list(dict.fromkeys(found.usage[:, 0].tolist()))
    assert len(levels) == 3
    assert levels == sorted(levels)
    assert found.run_time_ms == 2 * 95_000
    at = [row * found.interval_ms for row in range(len(found.usage))]
    assert [row[1] for row in found.rows] == [5_135 if ms >= 95_000 else 0 for ms in at]


def test_gromacs_is_longer_and_smaller_than_alexnet_and_three_of_it_fit() -> None:
    gromacs, alexnet = SERIES["GROMACS"], SERIES["alexnet"]
    assert gromacs.run_time_ms > alexnet.run_time_ms
    assert gromacs.peak_mem_mib < alexnet.peak_mem_mib
    assert 3 * gromacs.peak_mem_mib <= THESIS_GPU.mem_mib < 4 * gromacs.peak_mem_mib
    assert alexnet.peak_mem_mib + 2 * gromacs.peak_mem_mib == 11_755  # the most that GPU_light used
    assert 3 * gromacs.usage[:, 0].max() <= 1000


def test_the_workloads_are_the_thesis_s_lists() -> None:
    mean = {name: found.usage.mean(axis=0) for name, found in SERIES.items()}
    assert {name: WORKLOADS[name] for name in ("GPU_light", "GPUmemory_light")} == {
        "GPU_light": ("alexnet", "GROMACS"),
        "GPUmemory_light": ("alexnet", "googlenet", "QMCPACK", "HOOMD", "GROMACS"),
    }
    assert all(mean[name][0] >= 400 for name in WORKLOADS["GPU_heavy"])
    assert all(mean[name][0] < 400 for name in WORKLOADS["GPU_light"])
    assert all(mean[name][1] >= 6_144 for name in WORKLOADS["GPUmemory_heavy"])
    assert all(mean[name][1] < 6_144 for name in WORKLOADS["GPUmemory_light"])


@pytest.mark.parametrize("model", [name for name in SPEEDS if name != "mig"])  # there each has a slice
def test_the_pairs_of_figure_3_run_out_of_memory_and_no_others(model: str) -> None:
    interference = ProfiledInterference(PROFILES, make_speeds(model))
    cluster = Cluster([Node("node", 1, THESIS_GPU)])
    failing = set()
    for pair in combinations_with_replacement(("CNN", "vgg16", "googlenet", "LAMMPS", "GROMACS"), 2):
        jobs = [
            Job(f"{at}", 0, SERIES[name].run_time_ms, application=name, share=Share(500, 0), retries=0)
            for at, name in enumerate(pair)
        ]
        events = list(simulate(jobs, cluster, "first-fit", interference=interference))
        if any(event.kind == EventKind.FAIL for event in events):
            failing.add(pair)
    assert failing == {("LAMMPS", "LAMMPS"), ("CNN", "vgg16"), ("vgg16", "vgg16")}


def test_job_sets_are_drawn_evenly_and_the_same_everywhere() -> None:
    jobs = workload_jobs("GPU_light", seed=3)
    assert jobs == workload_jobs("GPU_light", seed=3)
    assert jobs != workload_jobs("GPU_light", seed=4)
    assert "".join(job.application[0] for job in jobs) == "GGaGGGaGaGGaaaaGGaGGaGGaaGGaGa"
    assert {(job.submit_ms, job.gpus) for job in jobs} == {(0, 1)}
    for job in jobs:
        found = SERIES[job.application]
        assert (job.work_ms, job.share) == (found.run_time_ms, Share(1000))
    drawn = [job.application for seed in range(100) for job in workload_jobs("random", seed=seed)]
    assert {name: drawn.count(name) for name in WORKLOADS["random"]} == pytest.approx(
        dict.fromkeys(WORKLOADS["random"], 3000 / 11), rel=0.25
    )


def test_an_unknown_workload_is_refused_with_the_choices() -> None:
    with pytest.raises(SettingError, match=r"no workload 'GPU'; the thesis has GPU_heavy, GPU_light"):
        workload_jobs("GPU")


def test_a_series_is_scaled_to_the_card_that_is_asked_about() -> None:
    twice = GpuModel("twice", "", 24_576, 7_680, 64_000)
    half = GpuModel("half", "", 6_144, 1_920, 16_000)
    steady = SERIES["vgg16"].usage[-1]
    assert series(PROFILES["vgg16"], twice).usage[-1].tolist() == [475, 7_050, 350, 45]
    assert series(PROFILES["vgg16"], half).usage[-1].tolist() == [1000, 7_050, 1000, 180]
    assert series(PROFILES["vgg16"], GpuModel("?")).usage[-1].tolist() == steady.tolist()
    with pytest.raises(ValueError, match="read-only"):
        SERIES["vgg16"].usage[0, 0] = 1


def test_profiles_are_a_mapping_in_which_the_later_counts() -> None:
    first, second = thesis_profiles()["vgg11"], thesis_profiles()["vgg16"]
    both = Profiles([first]) | Profiles([second])
    assert list(both) == ["vgg11", "vgg16"]
    assert both["vgg16"] is second
    assert "vgg19" not in both
