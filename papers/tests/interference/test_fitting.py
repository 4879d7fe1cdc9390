"""The fit finds what made the data, its file survives, and on the published pairs it is as good as is claimed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.errors import ProfileError, SettingError
from berth.history.jobs.measured_pairs import write_measurements
from berth.interference import make_speeds
from berth.interference.contention import Contention
from berth.interference.mps import mps
from berth.model import GpuModel, Profile
from berth_papers.interference.fitting import (
    effective_use_milli,
    evaluate,
    fit,
    folds_of_applications,
    folds_of_models,
    folds_of_pairs,
    pair_speeds,
)
from berth_papers.interference.measurements import Measurements, read_measurements
from berth_papers.interference.mig_fitting import fit_slices, held_up, read_slices, speed_on
from berth_papers.interference.named_fitting import fit_named, read_named

ALONE = "model,dataset,batchsize,amp,speed,gpu_util,gmem_util,gmem,label\n"
PAIRS = "model1,dataset1,batchsize1,amp1,speed1,model2,dataset2,batchsize2,amp2,speed2\n"


def made(seed: int = 0) -> Measurements:
    """Twenty applications of four models, which press by what they use of the GPU."""
    draw = np.random.default_rng(seed)
    gpu = draw.integers(100, 1001, 20)
    usage = np.stack([gpu, 1000 + 900 * np.arange(20), gpu // 2, np.zeros(20)], axis=1).astype(np.int32)
    pairs = np.array([(one, other) for one in range(20) for other in range(one, 20)])
    speeds = 1 / (1 + 0.8 * (usage[pairs, 0] * usage[pairs[:, ::-1], 0]) / 1e6)
    models = tuple("abcd"[at % 4] for at in range(20))
    return Measurements(tuple(f"{at}" for at in range(20)), models, usage, pairs, speeds)


def test_the_fit_finds_what_made_the_data() -> None:
    assert evaluate(fit(made()), made()).mae < 0.02 < evaluate(make_speeds("none"), made()).mae


def test_effective_use_is_what_the_measured_pairs_have_room_for() -> None:
    data = made()
    use = effective_use_milli(data) / 1000
    together = (data.usage[data.pairs, 0] / 1000 * data.speeds).sum(axis=1)
    assert (use * together <= 1).mean() >= 0.99
    assert (1.02 * use * together > 1).any()
    assert fit(data, mode="mps").use_milli == effective_use_milli(data)
    assert fit(data, mode="time-sliced").use_milli == 1000


def test_the_same_measurements_give_the_same_model_and_its_file_comes_back() -> None:
    found = fit(made())
    again = Contention.from_json(found.to_json(), "here")
    assert fit(made()).to_json() == found.to_json() == again.to_json()
    assert evaluate(again, made()) == evaluate(found, made())


def test_the_shipped_table_never_falls_with_the_neighbour_s_use() -> None:
    centres, stress = mps().centres, mps().stress
    less = (centres[:, None] <= centres[None]).all(axis=-1)  # (C, C): the first uses no more than the second
    assert less.sum() > 2 * len(centres)
    fallen = np.where(
        less, stress[:, :, None] - stress[:, None, :], 0
    )  # of each beside the one and the other
    assert fallen.max() <= 1


def test_what_use_does_not_tell_of_an_application_is_learned_and_then_projected() -> None:
    data = made()
    usage = data.usage.copy()
    usage[:, 1:] = [5000, 500, 0]
    usage[:2, 0] = 300, 900
    even = replace(data, usage=usage, speeds=np.where(data.pairs[:, ::-1] == 1, 0.6, 0.9))
    centres, free = pair_speeds(even)
    loud = centres[:, 0].tolist().index(90)
    assert abs(free[:, loud] - 0.6).max() < 0.1
    found = fit(even)
    assert (np.diff(found.stress[:, np.argsort(centres[:, 0])], axis=1) >= -1).all()


def test_among_settings_of_a_model_more_use_by_a_neighbour_never_helps() -> None:
    data = made()
    usage = data.usage.copy()
    usage[:, 1:] = [5000, 500, 0]
    usage[:2, 0] = 300, 900
    odd = replace(data, usage=usage, speeds=np.where(data.pairs[:, ::-1] == 1, 0.9, 0.6))

    def calm_over_loud(models: tuple[str, ...]) -> float:
        """How much more the first stresses itself than the second does, which uses more."""
        found = fit(replace(odd, models=models))
        first, second = found.names["0"], found.names["1"]
        return float(found.named[first, first] / found.named[first, second])

    assert calm_over_loud(tuple(f"{at}" for at in range(20))) > 2
    assert calm_over_loud(("a",) * 20) < 1.1


NEW = '{"format": "berth-contention", "version": 2, '


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "here cannot be read"),
        ("[]", "here cannot be read"),
        ('{"format": "berth-model", "version": 1}', "here is berth-model 1; expected a model written by"),
        ('{"format": "berth-contention", "version": 9}', "here is berth-contention 9"),
        ('{"format": "berth-contention", "version": 1, "law": [1, 1, 1], "cells": []}', "fit it again"),
        (NEW + '"mode": "mps", "use_milli": 700, "centres": [[1, 2]]}', "cannot be read"),
        (NEW + '"mode": "mps", "use_milli": 0, "centres": []}', "beyond reason"),
        (NEW + '"mode": "mps", "use_milli": 700, "centres": [[1, 2, 3, -1]]}', "beyond reason"),
        (NEW + '"mode": "mps", "use_milli": 700, "centres": [[1, 2, 3, 99999999]]}', "beyond reason"),
        (NEW + '"mode": "mps", "use_milli": 700, "centres": [], "names": {"a": 0}}', "beyond reason"),
        (NEW + '"mode": "mps", "use_milli": 700, "centres": [[1, 2, 3, 4]], "names": []}', "cannot be read"),
        (
            NEW + '"mode": "mps", "use_milli": 700, "centres": [[1, 2, 3, 4]], "names": {"a": 0}}',
            "cannot be read",
        ),
        (
            NEW + '"mode": "mig", "use_milli": 700, "centres": []}',
            "measured under 'mig'; expected mps or time",
        ),
    ],
)
def test_a_file_that_is_not_ours_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Contention.from_json(text, "here")


def test_folds_hold_out_every_pair_once_and_whole_applications() -> None:
    data = made()
    pairs = folds_of_pairs(data, 3)
    assert sorted(np.concatenate([test for _, test in pairs]).tolist()) == list(range(len(data)))
    assert all(not set(train) & set(test) for train, test in pairs)
    for folds, names in ((folds_of_models, data.models), (folds_of_applications, data.applications)):
        for train, test in folds(data, 3, folds=4):
            held = set(names) - {names[at] for at in data.pairs[train].ravel()}
            assert len(held) == len(set(names)) // 4
            assert all(held & {names[at] for at in data.pairs[pair]} for pair in test)


Folds = Callable[[Measurements, int], list[tuple[np.ndarray, np.ndarray]]]

BAD = {
    "no column": ("model,dataset\n", PAIRS, r"alone.csv has no column 'batchsize'; it has model, dataset"),
    "over 100 %": (
        ALONE + "a,d,1,0,9,101,5,100,0\n",
        PAIRS,
        r"line 2, column 'gpu_util': '101'; .* 0 to 100",
    ),
    "negative": (ALONE + "a,d,1,0,9,10,5,-1,0\n", PAIRS, r"line 2, column 'gmem': '-1'"),
    "not a number": (ALONE + "a,d,1,0,9,10,x,1,0\n", PAIRS, r"column 'gmem_util': 'x'"),
    "twice": (ALONE + "a,d,1,0,9,10,5,1,0\n" * 2, PAIRS, r"line 3: application 'a/d/1/0' stands there twice"),
    "unknown": (
        ALONE + "a,d,1,0,9,10,5,1,0\n",
        PAIRS + "a,d,1,0,1,b,d,1,0,1\n",
        r"pairs.csv, line 2: application 'b/d/1/0' is not in .*; measure it alone",
    ),
    "no pairs": (ALONE + "a,d,1,0,9,10,5,1,0\n", PAIRS, r"pairs.csv has no pairs"),
    "ends early": (ALONE + "a,d,1\n", PAIRS, r"line 2: the line ends early"),
    "speed": (
        ALONE + "a,d,1,0,9,10,5,1,0\n",
        PAIRS + "a,d,1,0,-1,a,d,1,0,1\n",
        r"line 2, column 'speed1': '-1'",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_measurements_are_refused_with_line_and_column(what: str, tmp_path: Path) -> None:
    alone, pairs, message = BAD[what]
    (tmp_path / "alone.csv").write_text(alone)
    (tmp_path / "pairs.csv").write_text(pairs)
    with pytest.raises(ProfileError, match=message):
        read_measurements(tmp_path / "alone.csv", tmp_path / "pairs.csv")


def test_sensitivity_and_pressure_by_name_are_found() -> None:
    names = "abcde"
    stress = {
        (one, other): 2 ** ((at - 2) / 2 + (to - 3) / 2)
        for at, one in enumerate(names)
        for to, other in enumerate(names)
    }
    found = fit_named([(one, other, 1 / (1 + value)) for (one, other), value in stress.items()])
    for (one, other), value in stress.items():
        predicted = 1 / (1 + 2 ** ((found[one][0] + found[other][1]) / 256))
        assert predicted == pytest.approx(1 / (1 + value), abs=0.05)


def test_named_pairs_are_read_and_those_that_made_no_step_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("gpu,job,other,solo_steps_per_s,shared_steps_per_s\nk80,a,b,2,1\nk80,b,a,4,0\n")
    assert read_named(path) == {"K80": [("a", "b", 0.5)]}
    path.write_text("gpu,job,other,solo_steps_per_s,shared_steps_per_s\nk80,a,b,0,1\n")
    with pytest.raises(ProfileError, match=r"line 2: .*expected gpu, job, other, solo_steps_per_s above 0"):
        read_named(path)


@pytest.mark.slow
def test_it_is_as_good_on_unseen_pairs_as_is_claimed(real_data: Callable[[str], Path]) -> None:
    data = read_measurements(real_data("lucid/single.csv"), real_data("lucid/colocate.csv"))

    def mae(deal: Folds) -> tuple[float, float]:
        """By use, and with those seen known by name: means of five ways to deal the folds, as in the bench."""
        folds = [fold for seed in range(5) for fold in deal(data, seed)]
        fitted = [(fit(data.of(train)), data.of(test)) for train, test in folds]
        found = [
            [evaluate(replace(one, names={}), test).mae, evaluate(one, test).mae] for one, test in fitted
        ]
        by_use, by_name = np.average(found, axis=0, weights=[len(test) for _, test in fitted])
        return float(by_use), float(by_name)

    by_use, by_name = mae(folds_of_pairs)
    assert by_use <= 0.0465
    assert by_name <= 0.042
    assert max(mae(folds_of_applications)) <= 0.060
    assert (mps().centres == fit(data).centres).all()
    assert np.abs(mps().stress - fit(data).stress).max() <= 1  # of 1000: machines round sums differently
    assert evaluate(make_speeds("none"), data).mae > 0.08


def test_slices_of_models_that_were_not_fitted_are_predicted(real_data: Callable[[str], Path]) -> None:
    trainings = read_slices(real_data("miso_mig/mig_speeds.csv"))
    assert len(trainings) == 24
    errors = []
    for model in {one.model for one in trainings}:
        found = fit_slices([one for one in trainings if one.model != model])
        for _, _, speeds in (one for one in trainings if one.model == model):
            smallest = min(speeds)
            c = held_up(found, smallest, speeds[smallest])
            errors += [abs(speed_on(found, size, c) - speeds[size]) for size in speeds if size != smallest]
    assert np.mean(errors) <= 0.05
    assert fit_slices(trainings) == make_speeds("mig")


def test_slices_are_read_or_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "slices.csv"
    path.write_text("model,batch,mig_slice,iteration_s_median\na,1,1g.5gb,4\na,1,7g.40gb,1\nb,1,2g.10gb,3\n")
    assert read_slices(path) == [("a", "1", {1: 0.25})]  # b was not measured on the whole card
    path.write_text("model,batch,mig_slice,iteration_s_median\na,1,5g.20gb,4\n")
    with pytest.raises(ProfileError, match=r"line 2: slice '5g.20gb'"):
        read_slices(path)


def test_what_ships_holds_coefficients_and_no_measurement(real_data: Callable[[str], Path]) -> None:
    import berth.interference as package

    text = (Path(package.__file__).parent / "mps.json").read_text()
    shipped = json.loads(text)
    assert len(shipped["centres"]) <= 66
    for line in real_data("lucid/single.csv").read_text().splitlines()[1:]:
        model, *_, speed, gpu, memory, mib, _ = line.split(",")
        assert model not in text
        assert f"{float(gpu) * 10:.0f},{float(mib):.0f}" not in text
        assert speed not in text.replace(",", " ").split()
        assert memory


def test_speeds_of_a_history_can_be_fitted(tmp_path: Path) -> None:
    """`berth history speeds` writes what `berth interference fit` reads."""
    card = GpuModel("A100-80", mem_mib=81920)
    profiles = {
        name: Profile(name, "live", 0, "", card, 1000, np.tile([use, 0.2, use, 0.0], (9, 1)), "sm-activity")
        for name, use in (("team/a", 0.9), ("team/b", 0.3))
    }
    speeds = {("team/a", "team/b"): 0.8, ("team/b", "team/a"): 0.9}
    alone, pairs = tmp_path / "single.csv", tmp_path / "pairs.csv"
    assert write_measurements(speeds, profiles, alone, pairs) == 1
    read = read_measurements(alone, pairs)
    assert (read.applications, read.speeds.tolist()) == (("team/a", "team/b"), [[0.8, 0.9]])
    assert read.usage.tolist() == [[900, 16384, 900, 0], [300, 16384, 300, 0]]
