"""`berth doctor`: what is installed here, and what is missing for what."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from berth.cli.output import JsonOrCsv, console, plain_table, printed
from berth.errors import EXTRAS, PartitionError, install_command
from berth.partition import library_path
from berth.partition.native import why_not

_ANSWER_S = 10
"""How long a program may take to print its version."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One part, whether it is there, and what it is for."""

    part: str
    there: bool
    found: str
    """The version, path or number found; what is missing where it is not there."""
    needed_for: str
    remedy: str = ""
    """What to do if it is not there."""


def doctor(as_json: JsonOrCsv = None) -> None:
    """Show what is installed on this machine, and what is missing for which command."""
    findings = [*_berth(), *_extras(), *_library(), *_gpus(), _native(), *_programs(), _cache()]
    if printed(as_json, [asdict(finding) for finding in findings]):
        return
    rows = (
        (each.part, each.found if each.there else f"no: {each.found}", each.needed_for) for each in findings
    )
    screen = console()
    screen.print(plain_table(("part", "here", "needed for"), rows, left=3))
    for finding in findings:
        if not finding.there and finding.remedy:
            screen.print(f"\n{finding.part}: {finding.remedy}", soft_wrap=True)


def _berth() -> Iterator[Finding]:
    import berth

    version = ".".join(map(str, sys.version_info[:3]))
    folder = Path(berth.__file__).parent
    yield Finding("berth", True, f"{berth.__version__}, Python {version}, {folder}", "everything")


def _extras() -> Iterator[Finding]:
    uses = {
        "learn": "berth train",
        "ray": "sweeps on a Ray cluster (--ray)",
        "slurm": "berth import slurmdbd",
        "account": "berth predict-wait",
        "sample": "berth sample",
        "kubernetes": "berth k8s",
    }
    for extra, needed_for in uses.items():
        lacking = [package for package, its in EXTRAS.items() if its == extra and find_spec(package) is None]
        found = f"without {', '.join(lacking)}" if lacking else "installed"
        yield Finding(f"extra {extra}", not lacking, found, needed_for, install_command(extra))


def _library() -> Iterator[Finding]:
    needed_for = "partitions: berth run, berth up"
    try:
        yield Finding("libberth", True, str(library_path()), needed_for)
    except PartitionError as error:
        yield Finding("libberth", False, "not built", needed_for, str(error))
    lacking = [name for name in ("make", "gcc") if shutil.which(name) is None]
    found = f"without {', '.join(lacking)}" if lacking else "make, gcc"
    yield Finding("compiler", not lacking, found, "building libberth", "install make and gcc")


def _gpus() -> Iterator[Finding]:
    needed_for = "running jobs; everything else works without"
    remedy = "install NVIDIA's driver; to try berth without a GPU: berth up --fake-gpus 1xA100-80G"
    if shutil.which("nvidia-smi") is None:
        yield Finding("GPU", False, "nvidia-smi is not on the search path", needed_for, remedy)
        return
    words = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    _, lines = _output(words)
    models = sorted({line.split(",")[0].strip() for line in lines if "," in line})
    drivers = sorted({line.rsplit(",", 1)[1].strip() for line in lines if "," in line})
    if models:
        yield Finding(
            "GPU", True, f"{len(lines)} × {', '.join(models)}, driver {', '.join(drivers)}", needed_for
        )
    else:
        yield Finding("GPU", False, lines[0] if lines else "nvidia-smi shows none", needed_for, remedy)


def _native() -> Finding:
    try:
        lacking = why_not()
    except PartitionError as error:
        lacking = str(error).partition(";")[0]
    return Finding(
        "limits by the driver",
        not lacking,
        lacking or "of cgroups",
        "berth partition create (else libberth limits)",
    )


def _programs() -> Iterator[Finding]:
    wanted: tuple[tuple[str, tuple[str, ...], str], ...] = (
        ("Slurm", ("scontrol", "--version"), "berth slurm"),
        ("Slurm's accounts", ("sacct", "--version"), "berth import sacct --run, berth predict-wait"),
        ("kubectl", ("kubectl", "version", "--client"), "installing what berth k8s install writes"),
        ("podman", ("podman", "--version"), "partitions of containers (any OCI runtime will do)"),
    )
    for part, words, needed_for in wanted:
        if shutil.which(words[0]) is None:
            yield Finding(part, False, f"{words[0]} is not on the search path", needed_for)
            continue
        answers, lines = _output(list(words))
        yield Finding(part, answers, lines[0] if lines else f"{words[0]} printed nothing", needed_for)


def _cache() -> Finding:
    import berth

    cache = Path(berth.__file__).parent / "__pycache__"
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or cache)
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    there = os.access(nearest, os.W_OK)
    remedy = (
        f"{folder} cannot be written: set NUMBA_CACHE_DIR to a folder that can, or each command compiles anew"
    )
    return Finding("kernel cache", there, str(folder), "starting without compiling first", remedy)


def _output(words: list[str]) -> tuple[bool, list[str]]:
    """Whether a program succeeds, and the lines that it prints, its errors if it prints nothing else."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, [str(error)]
    return done.returncode == 0, [line for line in (done.stdout or done.stderr).splitlines() if line.strip()]
