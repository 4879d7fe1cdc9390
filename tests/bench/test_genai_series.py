"""The GenAI trace's pods become profiles: gaps end a series, small holes are bridged."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench.genai_series import DUTY, MEMORY, STEP_S, read_genai

from berth.errors import ProfileError
from berth.gpu_models import gpu_model

A40 = gpu_model("A40")


def archive(folder: Path, name: str, text: str, inner: str | None = None) -> None:
    with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as file:
        member = tarfile.TarInfo(inner or f"{name}.csv")
        member.size = len(text.encode())
        file.addfile(member, io.BytesIO(text.encode()))


def rows(steps: list[int], value: Callable[[int], float], pod: str = "pod") -> str:
    lines = [f"{value(step)},{1_662_858_720.0 + STEP_S * step},{pod}" for step in steps]
    return "value,timestamp_anon,container_ip\n" + "\n".join(reversed(lines)) + "\n"


def test_the_longest_stretch_without_a_gap_becomes_the_profile(tmp_path: Path) -> None:
    steps = [
        *range(5),
        *range(30, 45),
        *range(47, 60),
    ]  # two samples missing are bridged, twenty-five are not
    archive(tmp_path, DUTY, rows(steps, lambda step: step))
    archive(tmp_path, MEMORY, rows([*range(70)], lambda step: step * 2**20))
    (profile,) = read_genai(tmp_path, A40)
    assert (profile.application, profile.interval_ms, profile.hardware) == ("genai-pod", 57_000, A40)
    duty = [*range(30, 45), 44, 44, *range(47, 60)]
    assert np.rint(profile.usage[:, 0] * 100).tolist() == duty
    assert np.rint(profile.usage[:, 1] * A40.mem_mib).tolist() == duty
    assert not profile.usage[:, 2:].any()


def test_a_pod_with_few_samples_has_no_profile(tmp_path: Path) -> None:
    for name in (DUTY, MEMORY):
        archive(tmp_path, name, rows([*range(9)], lambda step: 1))
    assert list(read_genai(tmp_path, A40)) == []


def test_more_memory_than_the_card_has_is_refused(tmp_path: Path) -> None:
    archive(tmp_path, DUTY, rows([*range(12)], lambda step: 1))
    archive(tmp_path, MEMORY, rows([*range(12)], lambda step: 50_000 * 2**20 if step == 4 else 0))
    with pytest.raises(ProfileError, match=r"'genai-pod', GPU memory, row 5 is .* over its capacity"):
        list(read_genai(tmp_path, A40))


def test_what_is_not_such_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"{DUTY}.tar.gz").write_text("value\n")
    with pytest.raises(ProfileError, match="is not a tar archive"):
        list(read_genai(tmp_path, A40))
    archive(tmp_path, DUTY, "x", inner="other.csv")
    with pytest.raises(ProfileError, match=f"has no {DUTY}.csv"):
        list(read_genai(tmp_path, A40))
    archive(tmp_path, DUTY, "value,container_ip\n1,a\n")
    with pytest.raises(ProfileError, match="has no column 'timestamp_anon'"):
        list(read_genai(tmp_path, A40))
    archive(tmp_path, DUTY, "value,timestamp_anon,container_ip\n1,2,a\nmuch,3,a\n")
    with pytest.raises(ProfileError, match="line 3: could not convert"):
        list(read_genai(tmp_path, A40))


def test_the_real_series_become_profiles(real_data: Callable[[str], Path]) -> None:
    found = list(read_genai(real_data("genai_v2026"), A40))
    assert len(found) == 138
    assert max(len(profile.usage) for profile in found) == 1_441
    assert max(profile.usage[:, 1].max() for profile in found) == pytest.approx(48_478.25 / 49_152)
