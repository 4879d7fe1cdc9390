"""A profile survives its file, and what is wrong with one is told with application, field and row."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from berth.errors import ProfileError
from berth.gpu_models import gpu_model
from berth.model import Profile
from berth.profiles import (
    Profiles,
    checked,
    is_profile,
    keep_profile,
    profile_text,
    read_profile,
    thesis_profiles,
)
from berth.profiles.file import file_name

VGG = thesis_profiles()["vgg16"]


@pytest.mark.parametrize("name", sorted(thesis_profiles()))
def test_a_profile_comes_back_from_its_file(name: str, tmp_path: Path) -> None:
    profile = thesis_profiles()[name]
    again = read_profile(keep_profile(profile, tmp_path))
    assert profile_text(again) == profile_text(profile)
    assert np.abs(again.usage - profile.usage).max() < 1e-6
    assert (again.application, again.kind, again.hardware, again.interval_ms) == (
        *(profile.application, profile.kind),
        *(profile.hardware, profile.interval_ms),
    )


def test_a_folder_keeps_one_profile_an_application_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a/b", "a b", "../a", "ResNet-18 (batch size 16)", "vgg16", "vgg16"):
        keep_profile(Profile(name, "ML", 1, "p", VGG.hardware, VGG.interval_ms, VGG.usage), tmp_path / "kept")
    assert sorted(Profiles.of_folder(tmp_path / "kept")) == [
        *("../a", "ResNet-18 (batch size 16)", "a b", "a/b", "vgg16")
    ]
    assert len(list(tmp_path.iterdir())) == 1
    assert file_name("vgg16") == "vgg16.profile.csv"


def changed(row: int, column: int, text: str) -> str:
    lines = profile_text(VGG).splitlines()
    cells = lines[1 + row].split(",")
    cells[column] = text
    lines[1 + row] = ",".join(cells)
    return "\n".join(lines) + "\n"


BAD = {
    "negative": (changed(3, 1, "-4"), r"'vgg16', GPU utilisation, row 3 is -0.04, negative; expected"),
    "over capacity": (
        changed(4, 2, "12289"),
        r"'vgg16', GPU memory, row 4 is 1.00008 of what .* over its capacity",
    ),
    "over 100 %": (changed(4, 3, "101"), r"'vgg16', GPU cores, row 4 is 1.01 of what"),
    "PCIe over the link": (changed(4, 4, "32001"), r"'vgg16', PCIe throughput, row 4"),
    "missing": (changed(2, 2, ""), r"'vgg16', mem_mib, row 2 is missing; expected series of equal length"),
    "short": (
        "\n".join(profile_text(VGG).splitlines()[:-1]) + "\n110000,95\n",
        r"mem_mib, row 23 is missing",
    ),
    "not a number": (changed(2, 1, "many"), r"'vgg16', gpu_pct, row 2 is 'many'; expected a number"),
    "NaN": (changed(2, 1, "nan"), r"gpu_pct, row 2 is 'nan'; expected a number"),
    "gap": (
        "\n".join(line for at, line in enumerate(profile_text(VGG).splitlines()) if at != 5),
        r"'vgg16', time_ms, row 4 is 20000: a gap; expected 15000, every 5000 ms",
    ),
    "other unit": (
        profile_text(VGG).replace(",mem_mib,cores", ",mem_bytes,cores"),
        r"'vgg16': no column 'mem_mib' but 'mem_bytes', which is another unit",
    ),
    "no column": (profile_text(VGG).replace(",pcie_mbps\n", ",x\n"), r"no column 'pcie_mbps'; expected"),
    "empty": ("\n".join(profile_text(VGG).splitlines()[:2]) + "\n", r"'vgg16': series of shape \(0, 4\)"),
    "no mark": ("time_ms,gpu_pct\n0,1\n", r"is not a profile; expected its first line to begin with"),
    "broken head": (profile_text(VGG).replace('"kind"', "kind", 1), r"line 1 cannot be read"),
    "no field": (profile_text(VGG).replace('"cores"', '"kernels"', 1), r"line 1: no field 'cores'"),
    "no interval": (
        profile_text(VGG).replace('"interval_ms": 5000', '"interval_ms": 0'),
        r"line 1, interval_ms is 0; expected a whole number of 1 or more",
    ),
    "no link": (
        profile_text(VGG).replace('"pcie_mbps": 32000', '"pcie_mbps": 0'),
        r"PCIe throughput: the hardware has 0 of it",
    ),
    "more values than columns": (
        changed(3, 4, "9600,7"),
        r"'vgg16', row 3 has 1 more values than .*'7' the first; expected 5",
    ),
    "a deep head": (f"# berth-profile 1 {'[' * 100_000}\n", r"bad.profile.csv, line 1 cannot be read"),
    "a line break in the name": (
        profile_text(VGG).replace('"vgg16"', '"vgg\\n16"'),
        r"profile of 'vgg\\n16': its name has line breaks or control characters",
    ),
    "less than no cores": (
        profile_text(VGG).replace('"cores": 3840', '"cores": -1'),
        r"line 1, cores is -1; expected a whole number of 1 or more, or null where it is not known",
    ),
    "no cores": (
        profile_text(VGG).replace('"cores": 3840', '"cores": 0'),
        r"line 1, cores is 0; expected a whole number of 1 or more, or null",
    ),
    "memory as a text": (
        profile_text(VGG).replace('"mem_mib": 12288', '"mem_mib": "12_288"'),
        r'line 1, mem_mib is "12_288"; expected a whole number',
    ),
    "memory as a fraction": (
        profile_text(VGG).replace('"mem_mib": 12288', '"mem_mib": 12288.5'),
        r"line 1, mem_mib is 12288.5; expected a whole number",
    ),
    "memory with an underscore": (
        changed(2, 2, "7_050"),
        r"'vgg16', mem_mib, row 2 is '7_050'; expected a number of 0 or more, without an exponent",
    ),
    "memory with an exponent": (changed(2, 2, "7e3"), r"'vgg16', mem_mib, row 2 is '7e3'; expected"),
    "time with an underscore": (
        changed(2, 0, "5_000"),
        r"'vgg16', time_ms, row 2 is '5_000'; expected a whole number",
    ),
    "time with an exponent": (changed(2, 0, "5e3"), r"'vgg16', time_ms, row 2 is '5e3'; expected a whole"),
    "digits of another script": (changed(2, 1, "٩"), r"'vgg16', gpu_pct, row 2 is .*; expected a number"),
    "a head that is a list": ("# berth-profile 1 [1]\n", r"holds '\[1\]'; expected an object"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_file_is_refused_with_field_and_row(what: str, tmp_path: Path) -> None:
    text, message = BAD[what]
    path = tmp_path / "bad.profile.csv"
    path.write_text(text)
    with pytest.raises(ProfileError, match=message) as refusal:
        read_profile(path)
    assert str(path) in str(refusal.value)


def test_a_card_whose_cores_are_not_known_is_written_and_read(tmp_path: Path) -> None:
    card = replace(VGG.hardware, cores=0)
    text = profile_text(replace(VGG, hardware=card))
    assert '"cores": null' in text
    path = tmp_path / "vgg16.profile.csv"
    path.write_text(text)
    assert read_profile(path).hardware == card


def test_a_tiny_use_is_written_without_an_exponent_and_read(tmp_path: Path) -> None:
    usage = VGG.usage.copy()
    usage[1] = 1e-7
    text = profile_text(replace(VGG, usage=usage))
    assert text.splitlines()[3] == "5000,0.00001,0.001229,0.00001,0.0032"
    path = tmp_path / "vgg16.profile.csv"
    path.write_text(text)
    assert profile_text(read_profile(path)) == text


def test_a_byte_order_mark_before_a_profile_is_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "vgg16.profile.csv"
    path.write_bytes(b"\xef\xbb\xbf" + profile_text(VGG).encode())
    assert profile_text(read_profile(path)) == profile_text(VGG)
    assert is_profile(path)
    path.write_text("time_ms\n")
    assert not is_profile(path)


def test_who_asks_for_what_is_wrong_is_given_the_other_profiles(tmp_path: Path) -> None:
    keep_profile(VGG, tmp_path)
    (tmp_path / "junk.profile.csv").write_text("junk")
    with pytest.raises(ProfileError, match=r"junk.profile.csv is not a profile"):
        Profiles.of_folder(tmp_path)
    wrong: list[ProfileError] = []
    assert list(Profiles.of_folder(tmp_path, wrong=wrong)) == ["vgg16"]
    assert ["junk.profile.csv is not a profile" in str(error) for error in wrong] == [True]


def test_a_binary_file_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.profile.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ProfileError, match=r"bad.profile.csv is not a profile"):
        read_profile(path)
    with pytest.raises(ProfileError, match=r"there is no folder .*; make one with `berth profile import`"):
        Profiles.of_folder(tmp_path / "none")
    assert len(Profiles.of_history(tmp_path)) == 0


def test_values_made_in_python_are_checked_alike() -> None:
    def made(usage: np.ndarray, name: str = "x", interval_ms: int = 1000, gpu: str = "A40") -> Profile:
        return Profile(name, "", 0, "", gpu_model(gpu), interval_ms, usage)

    good = np.full((3, 4), 0.5)
    assert checked(made(good)).application == "x"
    for profile, message in (
        (made(np.full((3, 3), 0.5)), r"'x': series of shape \(3, 3\)"),
        (made(np.zeros((0, 4))), "series of shape"),
        (made(good, name=""), "has no application"),
        (made(good, interval_ms=0), "an interval of 0 ms"),
        (made(good, gpu="G2"), "with no memory"),
        (made(np.where(np.eye(3, 4) > 0, np.nan, 0.5)), "GPU utilisation, row 1 is missing"),
        (made(np.where(np.eye(3, 4, 1) > 0, np.inf, 0.5)), "GPU memory, row 1 is inf"),
    ):
        with pytest.raises(ProfileError, match=message):
            checked(profile)


def test_the_first_line_is_json_for_other_programs() -> None:
    head = json.loads(profile_text(VGG).partition("\n")[0].removeprefix("# berth-profile 1 "))
    assert (head["application"], head["mem_mib"], head["interval_ms"]) == ("vgg16", 12_288, 5_000)
