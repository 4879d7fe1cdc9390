"""`berth profile` as a user types it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from berth.profiles import IN_HISTORY, SHARED, begun, keep_profile, thesis_profiles
from tests.cli.test_commands import answer, berth


def ended(result: dict[str, Any]) -> int:
    """Jobs that finished, or were ended by their time limit."""
    (run,) = result["runs"]
    return int(run["finished"]) + sum(run["failures"].values())


def test_a_profile_goes_out_and_comes_back_into_the_history(tmp_path: Path) -> None:
    history, file = tmp_path / "history", tmp_path / "mine.csv"
    assert berth("profile", "export", "LAMMPS", file).stdout == f"wrote {file}\n"
    file.write_text(file.read_text().replace('"LAMMPS"', '"mine"'))
    taken = berth("profile", "import", file, "--history", history)
    assert (taken.returncode, taken.stdout) == (0, f"took 1 profile over into {history / 'profiles'}: mine\n")
    rows = answer("profile", "list", "--history", history, "--json")
    assert isinstance(rows, list)
    assert {
        row["application"]: row["source"] for row in rows if row["application"] in ("mine", "LAMMPS")
    } == {
        "mine": "history",
        "LAMMPS": "thesis",
    }
    mine, lammps = (
        answer("profile", "show", name, "--history", history, "--json") for name in ("mine", "LAMMPS")
    )
    assert isinstance(mine, dict)
    assert isinstance(lammps, dict)
    assert mine["mem_mib"] == lammps["mem_mib"]
    assert (mine["mem_mib"][0], max(mine["mem_mib"])) == (363, 8_499)


def test_a_profile_is_listed_and_drawn(tmp_path: Path) -> None:
    listed = berth("profile", "list", "--history", tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    assert listed.stdout.count("thesis") == 12
    out = tmp_path / "qmcpack.html"
    assert berth("profile", "show", "QMCPACK", out, "--history", tmp_path).stdout == f"wrote {out}\n"
    assert "QMCPACK alone on TITAN-XP-THESIS" in out.read_text()


def test_a_profile_is_shown_in_short_and_exported_whole(tmp_path: Path) -> None:
    shown = berth("profile", "show", "LAMMPS", "--history", tmp_path).stdout
    assert shown.startswith(
        "LAMMPS (HPC): 300 s alone on TITAN-XP-THESIS (12,288 MiB, 3,840 cores, PCIe 32,000 MB/s), 60 rows of 5 s\n"
    )
    assert re.search(r"GPU memory +mean +[\d,]+ MiB +peak +8,499 MiB\n", shown)
    assert "berth profile export LAMMPS" in shown
    assert berth("profile", "export", "LAMMPS").stdout.count("\n") == 2 + 60


def test_a_profile_of_the_beginning_of_a_run_is_shown_as_such(tmp_path: Path) -> None:
    keep_profile(begun(thesis_profiles()["LAMMPS"], 30_000), tmp_path / IN_HISTORY)
    shown = berth("profile", "show", "LAMMPS", "--history", tmp_path).stdout
    assert shown.startswith("LAMMPS (live, begun): the first 30 s of a run alone on TITAN-XP-THESIS (")


def test_a_profile_of_runs_that_shared_is_not_called_one_alone(tmp_path: Path) -> None:
    keep_profile(replace(thesis_profiles()["LAMMPS"], kind=SHARED), tmp_path / IN_HISTORY)
    shown = berth("profile", "show", "LAMMPS", "--history", tmp_path).stdout
    assert shown.startswith("LAMMPS (live, shared): 300 s next to other jobs on TITAN-XP-THESIS (")
    out = tmp_path / "lammps.html"
    berth("profile", "show", "LAMMPS", out, "--history", tmp_path)
    assert "LAMMPS next to other jobs on TITAN-XP-THESIS" in out.read_text()


def test_the_list_is_not_cut_where_it_is_read_by_a_program(tmp_path: Path) -> None:
    listed = berth("profile", "list", "--history", tmp_path).stdout
    assert "…" not in listed
    assert listed.count("TITAN-XP-THESIS") == 12
    assert "peak MiB" in listed


def test_a_file_that_is_wrong_is_named_and_the_others_count(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    export = berth("profile", "export", "vgg16", tmp_path / "mine.csv")
    assert export.returncode == 0
    (tmp_path / "mine.csv").write_text((tmp_path / "mine.csv").read_text().replace('"vgg16"', '"mine"'))
    (tmp_path / "jobs.csv").write_text("id,submit_ms\n")
    taken = berth("profile", "import", tmp_path, "--history", tmp_path)
    assert (taken.stdout, taken.stderr) == (
        f"took 1 profile over into {folder}: mine\n",
        "berth: not profiles, and left out: jobs.csv\n",
    )
    (folder / "junk.profile.csv").write_text("junk")
    listed = berth("profile", "list", "--history", tmp_path, "--json")
    assert "mine" in [row["application"] for row in json.loads(listed.stdout)]
    left = f"berth: left out: {folder / 'junk.profile.csv'} is not a profile"
    assert listed.stderr.startswith(left)
    simulated = (
        "simulate",
        "synthetic:demo?jobs=5",
        "--interference",
        "mps",
        "--profiles",
        folder,
        "--json",
    )
    done = berth(*simulated)
    assert (done.returncode, done.stderr.startswith(left)) == (0, True)


def test_a_wrong_profile_ends_with_one_message(tmp_path: Path) -> None:
    missing = berth("profile", "show", "mine", "--history", tmp_path)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("berth: no profile of 'mine'; there are googlenet")
    bad = tmp_path / "bad.csv"
    bad.write_text("x")
    assert "is not a profile" in berth("profile", "import", bad).stderr
    absent = berth("profile", "import", tmp_path / "absent.csv")
    assert (absent.returncode, "No such file" in absent.stderr) == (2, True)


def test_the_profiles_of_a_folder_stand_before_the_thesis_s(tmp_path: Path) -> None:
    history = tmp_path / "history"
    file = tmp_path / "vgg16.csv"
    berth("profile", "export", "vgg16", file)
    berth("profile", "import", file, "--history", history)
    done = answer(
        *("simulate", "synthetic:demo?jobs=40", "--interference", "time-sliced"),
        *("--profiles", history / "profiles", "--json"),
    )
    assert isinstance(done, dict)
    assert ended(done) == 40
    command = ("simulate", "synthetic:demo?jobs=40", "--interference", "mps", "--profiles")
    wrong = berth(*command, tmp_path / "none")
    assert (wrong.returncode, "there is no folder" in wrong.stderr) == (2, True)


def test_profiles_without_a_model_of_interference_are_refused(tmp_path: Path) -> None:
    done = berth("simulate", "synthetic:demo?jobs=5", "--policy", "learned", "--profiles", tmp_path)
    assert done.returncode == 2
    assert "without --interference" in done.stderr
