"""Profiles from life: recorded of an application's first run, and brought up to date by later ones.

    HISTORY/profiles/NAME.profile.csv         what is believed now
    HISTORY/profiles/versions/NAME/life.json  the program, how many runs, and how far they were apart

A job that declares no part of a GPU has one to itself, so that its application's first run is recorded alone. One that
declares its part may share from the start: the profile is of the kind `live, shared` then, and the first run alone
takes its place, as it does that of the first minutes of a run (`live, begun`). A later run is stretched to the
profile's length, and counts for a fifth: one odd run changes little, a lasting change is followed. Memory is never
believed to be less than the highest peak of the last runs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from berth.files import write_whole
from berth.live.local.samples import Sample
from berth.model import GpuModel, Profile
from berth.profiles import BEGUN, IN_HISTORY, RUNNING, SHARED, Profiles, is_steady, keep_profile, run_time_ms
from berth.profiles.file import ENDING, file_name

LEAST_SAMPLES = 3
INTERVAL_MS = 1000
MOST_ROWS = 2000
WEIGHT = 0.2
"""What a run weighs beside what is believed."""
SMOOTHED = 3
"""Looks that a value is the median of, so that one look at an odd moment makes no peak."""


class ProfileRecorder:
    """The profiles of a history, while runs are taken into them."""

    def __init__(self, history: Path) -> None:
        self._folder = history / IN_HISTORY
        self._known = dict(Profiles.of_history(history, wrong=[]))
        self.notes: list[str] = []
        """What the operator should know."""

    def learn(
        self, application: str, program: str, card: GpuModel, samples: Sequence[Sample], peak_mib: int | None,
        *, whole: bool = True, begun: bool = False,
    ) -> Path | None:  # fmt: skip
        """Take a run into the application's profile; the profile's file if it changed. What is not the `whole` run is a
        window of one that goes on, as of a service: it counts until a whole run is seen. The first samples of a
        run (`begun`) count only while nothing else is known, and the longest of them."""
        if not _is_measured(application, card, samples):
            return None
        alone = all(sample.alone for sample in samples)
        life = self._life(application)
        if life and life["program"] != program:
            self.notes.append(
                f"profile '{application}' was recorded of '{life['program']}', and a job of that name ran '{program}':"
                " it is left as it is; give one of them another --profile or --name"
            )
            return None
        before = self._known.get(application)
        if begun:
            profile = begun_profile(application, card, samples)
            if profile is None or not is_steady(profile):
                return None
            if before is not None and (before.kind != BEGUN or run_time_ms(profile) <= run_time_ms(before)):
                return None
            self._known[application] = profile
            return keep_profile(profile, self._folder)
        if before is not None and before.kind == BEGUN:
            if not alone:
                return None  # it says less than the beginning of a run alone, as it does to a `Collector`
            before = None
        usage = _usage(samples, card, peak_mib)
        if before is not None and not life and not (alone and whole):
            return None  # it was recorded otherwise, which says more than a shared run or a window
        says = (alone, whole)
        notes = (before is not None and before.kind != SHARED, life.get("whole", True))
        if before is not None and not whole and says < notes:
            return None
        if before is None or not life or says > notes:
            kind = ("live" if whole else RUNNING) if alone else SHARED
            profile = Profile(application, kind, 0, "", card, _interval(samples), usage, "sm-activity")
            life = {
                "program": program,
                "whole": whole,
                "runs": life.get("runs", 0) + 1,
                "shared": life.get("shared", 0) + (not alone),
                "spread": [0.0, 0.0],
                "peaks": life.get("peaks", []),
            }
        else:
            there = _stretched(usage, len(before.usage))
            if before.hardware.mem_mib != card.mem_mib:
                there[:, 1] = np.minimum(1.0, there[:, 1] * card.mem_mib / before.hardware.mem_mib)
            # What a shared run used of the GPU is less than alone: only its memory and its shape are believed.
            columns = [0, 1, 2] if alone else [1]
            merged = np.array(before.usage)
            merged[:, columns] += WEIGHT * (there[:, columns] - merged[:, columns])
            apart = np.sqrt(np.mean((there - before.usage) ** 2, axis=0))[:2]
            spread = zip(life["spread"], apart, strict=True)
            life["spread"] = [round((1 - WEIGHT) * old + WEIGHT * float(new), 6) for old, new in spread]
            life["runs"] += 1
            life["shared"] += not alone
            profile = replace(before, usage=merged)
        peaks = [*life["peaks"][-7:], peak_mib or round(float(usage[:, 1].max()) * card.mem_mib)]
        life["peaks"] = peaks
        profile = _with_peak(profile, max(peaks))
        path = keep_profile(profile, self._folder)
        self._known[application] = profile
        self._write_life(application, life)
        return path

    def _home(self, application: str) -> Path:
        return self._folder / "versions" / file_name(application).removesuffix(ENDING)

    def _life(self, application: str) -> dict[str, Any]:
        try:
            return dict(json.loads((self._home(application) / "life.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _write_life(self, application: str, life: dict[str, Any]) -> None:
        path = self._home(application) / "life.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(life))


def begun_profile(application: str, card: GpuModel, samples: Sequence[Sample]) -> Profile | None:
    """What was sampled of a run that goes on; None if it is too little, or others were on its GPU."""
    if not _is_measured(application, card, samples) or not all(sample.alone for sample in samples):
        return None
    usage = _usage(samples, card, None)
    return Profile(application, BEGUN, 0, "", card, _interval(samples), usage, "sm-activity")


def _is_measured(application: str, card: GpuModel, samples: Sequence[Sample]) -> bool:
    measured = len(samples) >= LEAST_SAMPLES and all(each.use_pct is not None for each in samples)
    return measured and card.mem_mib > 0 and application.isprintable()


def _interval(samples: Sequence[Sample]) -> int:
    """As fine as was looked, and no more rows than a profile should have."""
    lasted = samples[-1].time_ms - samples[0].time_ms
    return max(INTERVAL_MS, -(-lasted // MOST_ROWS // 1000) * 1000)


def _usage(samples: Sequence[Sample], card: GpuModel, peak_mib: int | None) -> NDArray[np.float64]:
    """(steps, 4): what was looked at, at an even interval, smoothed."""
    times = np.array([sample.time_ms for sample in samples], dtype=np.float64)
    interval = _interval(samples)
    steps = max(1, round((times[-1] - times[0]) / interval) + 1)
    at = times[0] + np.arange(steps) * interval
    usage = np.zeros((steps, 4))
    for column, values in (
        (0, [min(1.0, (sample.use_pct or 0.0) / 100) for sample in samples]),
        (1, [min(1.0, sample.mem_mib / card.mem_mib) for sample in samples]),
    ):
        usage[:, column] = np.interp(at, times, _smoothed(np.array(values)))
    usage[:, 2] = usage[:, 0]
    return usage


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The running median; what is at the ends counts twice."""
    reach = SMOOTHED // 2
    wide = np.concatenate([values[:1].repeat(reach), values, values[-1:].repeat(reach)])
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(wide, SMOOTHED), axis=1))


def _stretched(usage: NDArray[np.float64], steps: int) -> NDArray[np.float64]:
    """The same over `steps` rows: a run that was slowed is compared where it had done as much of its work."""
    at = np.linspace(0, len(usage) - 1, steps)
    return np.stack([np.interp(at, np.arange(len(usage)), column) for column in usage.T], axis=1)


def _with_peak(profile: Profile, peak_mib: int) -> Profile:
    """The profile with its highest memory at the peak that was measured to the byte."""
    usage = np.array(profile.usage)
    highest = int(usage[:, 1].argmax())
    usage[:, 1] = np.minimum(usage[:, 1], peak_mib / profile.hardware.mem_mib)
    usage[highest, 1] = min(1.0, peak_mib / profile.hardware.mem_mib)
    usage.flags.writeable = False
    return replace(profile, usage=usage)
