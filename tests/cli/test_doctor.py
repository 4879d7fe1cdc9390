"""What `berth doctor` finds is what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import berth
from berth.errors import EXTRAS
from tests import command


def found(folder: Path) -> dict[str, dict[str, object]]:
    """Its answer where nothing but the programs of a folder are on the search path."""
    environment = {**os.environ, "PATH": str(folder)}
    done = command.berth("doctor", "--json", env=environment)
    assert done.returncode == 0
    return {finding["part"]: finding for finding in json.loads(done.stdout)}


def program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    path.chmod(0o755)


def test_what_is_not_there_is_named_with_its_remedy(tmp_path: Path) -> None:
    parts = found(tmp_path)
    assert {part for part in parts if part.startswith("extra ")} == {
        f"extra {name}" for name in EXTRAS.values()
    }
    assert str(parts["berth"]["found"]).startswith(berth.__version__)
    assert [parts[name]["there"] for name in ("GPU", "compiler", "Slurm")] == [False] * 3
    assert "berth up --fake-gpus" in str(parts["GPU"]["remedy"])
    assert parts["compiler"]["found"] == "without make, gcc"
    assert parts["limits by the driver"]["needed_for"] == "berth partition create (else libberth limits)"


def test_what_is_there_is_told_with_its_version(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "NVIDIA A100-SXM4-80GB, 560.35.03", "NVIDIA A100-SXM4-80GB, 560.35.03")
    program(tmp_path, "scontrol", "slurm 24.05.2")
    parts = found(tmp_path)
    assert parts["GPU"]["found"] == "2 × NVIDIA A100-SXM4-80GB, driver 560.35.03"
    assert (parts["Slurm"]["there"], parts["Slurm"]["found"]) == (True, "slurm 24.05.2")


def test_a_driver_that_does_not_answer_is_no_gpu(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "NVIDIA-SMI has failed because it could not communicate with the driver")
    gpu = found(tmp_path)["GPU"]
    assert (gpu["there"], "has failed" in str(gpu["found"])) == (False, True)
