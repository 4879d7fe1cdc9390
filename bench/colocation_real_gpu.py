"""On a machine with a GPU and PyTorch: how small trainings slow each other, under time slicing and under MPS.

    python bench/colocation_real_gpu.py [--seconds 12] [--modes time-sliced,mps] [--keep out/real_gpu]

Each of six trainings runs alone while its profile is recorded through NVML, as `berth profile record` does; then all
15 pairs, six triples and four quadruples of them run at once under each mode, and each is timed while all train. What
was measured stays in the folder `--keep`: interrupted, or ended after `--minutes`, the same command goes on from there.
At the end the models are judged by it: their mean absolute error by number of tenants, from the profiles alone. The
folder then has `single.csv` and `pairs-MODE.csv`, in the columns that Lucid published (`read_measurements`), and
`groups.json` with the triples and quadruples. Without a GPU or PyTorch it says so and runs nothing. `--fake-gpu` takes
the fake driver and trainings that only wait: it shows that the script works, and its numbers mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np

from berth.errors import PartitionError, ProfileError
from berth.files import whole_file
from berth.interference import make_speeds
from berth.partition import fake_driver_folder
from berth.partition.gpus import gpus
from berth.partition.hardware import start_daemon, stop_daemon
from berth.profiles import series
from berth.profiles.recorder import NvmlCard, record
from berth_papers.interference.measurements import read_measurements
from harness import save
from small_trainings import NAMES, train

SCRIPT = Path(__file__).with_name("small_trainings.py")
PROCESSES = multiprocessing.get_context("forkserver")
MODES = ("time-sliced", "mps")
TRIPLES, QUADRUPLES = 6, 4
Notes = list[tuple[float, int]]
"""When (s) how many steps were done."""


class OutOfTimeError(Exception):
    """The minutes that were given are over."""


@dataclass(frozen=True)
class Bench:
    """What the measurements have in common."""

    card: NvmlCard
    seconds: float
    keep: Path
    fake: bool
    ends_s: float
    """By `time.monotonic`: no measurement begins later."""

    def command(self, name: str, file: Path) -> list[str]:
        """Start one training for a number of seconds; it writes its notes to a file."""
        words = [sys.executable, str(SCRIPT), name, str(self.seconds), str(file)]
        return [*words, "--pretend"] if self.fake else words

    def started(self, name: str, file: Path) -> ForkServerProcess:
        """A training that begins when its FILE.ready is taken away; its process has PyTorch loaded already."""
        more = {"together": True, "pretend": self.fake, "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY")}
        process = PROCESSES.Process(target=train, args=(name, self.seconds, file), kwargs=more)
        process.start()
        return process

    def kept(self, name: str) -> Any:
        """What was measured under this name, None if nothing was; OutOfTimeError if nothing may begin any more."""
        file = self.keep / f"{name}.json"
        if file.exists():
            return json.loads(file.read_text())
        if time.monotonic() > self.ends_s:
            raise OutOfTimeError
        return None

    def store(self, name: str, found: Any) -> Any:
        """Keep what was measured."""
        with whole_file(self.keep / f"{name}.json") as file:
            file.write_text(json.dumps(found))
        return found


def groups() -> Iterator[tuple[str, ...]]:
    """All pairs; triples and quadruples in which each training is about as often."""
    yield from itertools.combinations(NAMES, 2)
    for size, count in ((3, TRIPLES), (4, QUADRUPLES)):
        every = list(itertools.combinations(NAMES, size))
        yield from every[:: -(-len(every) // count)]


def rate(notes: Notes, begin_s: float, end_s: float) -> float:
    """Steps per second between two moments."""
    at, steps = np.array(notes, dtype=np.float64).T
    done = np.interp([begin_s, end_s], at, steps)
    return float((done[1] - done[0]) / (end_s - begin_s))


def alone(bench: Bench, name: str) -> dict[str, Any]:
    """A training's steps per second and what it uses once it is loaded, per mille and MiB."""
    if (found := bench.kept(f"alone-{name}")) is not None:
        return dict(found)
    file = bench.keep / f"notes-{name}.json"
    profile, status = record(bench.card, bench.command(name, file), name, kind="ML")
    if status != 0:
        raise SystemExit(
            f"error: the training '{name}' ended with status {status}; what it said stands above"
        )
    notes: Notes = json.loads(file.read_text())
    usage = series(profile, bench.card.model).usage
    # Before them it loads, and in the last it ends.
    trains = usage[-max(2, int(bench.seconds)) : max(1, len(usage) - 1)]
    row = np.median(trains, axis=0).astype(int).tolist()
    found = {"rate": rate(notes, notes[0][0], notes[-1][0]), "usage": row, "cores_are": profile.cores_are}
    return dict(bench.store(f"alone-{name}", found))


def together(bench: Bench, mode: str, names: Sequence[str]) -> list[float]:
    """Steps per second of each, while all train."""
    name = f"{mode}-{'+'.join(names)}"
    if (found := bench.kept(name)) is not None:
        return list(found)
    files = [bench.keep / f"notes-{at}.json" for at in range(len(names))]
    ready = [Path(f"{file}.ready") for file in files]
    for file in (*files, *ready):
        file.unlink(missing_ok=True)
    running = [bench.started(one, file) for one, file in zip(names, files, strict=True)]
    try:
        while not all(file.exists() for file in ready):
            if any(one.exitcode is not None for one in running):
                raise SystemExit(
                    f"error: one of {', '.join(names)} failed under {mode}; what it said stands above"
                )
            time.sleep(0.01)
        for file in ready:  # all are loaded: they begin together
            file.unlink()
        for each in running:
            each.join()
    finally:
        for each in running:
            each.kill()
            each.join()
    if any(one.exitcode for one in running):
        raise SystemExit(f"error: one of {', '.join(names)} failed under {mode}; what it said stands above")
    notes: list[Notes] = [json.loads(file.read_text()) for file in files]
    begin_s, end_s = max(one[0][0] for one in notes), min(one[-1][0] for one in notes)
    if end_s - begin_s < bench.seconds / 4:
        raise SystemExit(
            f"error: {', '.join(names)} trained together for {end_s - begin_s:.1f} s only; give more --seconds"
        )
    return list(bench.store(name, [rate(one, begin_s, end_s) for one in notes]))


def measured(bench: Bench, mode: str, single: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Speeds of all groups under a mode, as parts of the speed alone, beside what the mode's model predicts."""
    speeds, found = make_speeds(mode), []
    for names in groups():
        rates = together(bench, mode, names)
        rows = np.array([single[name]["usage"] for name in names], dtype=np.int32)
        said = speeds(rows, np.ones(len(names), dtype=np.bool_), bench.card.model.mem_mib) / 1000
        was = [mine / single[name]["rate"] for mine, name in zip(rates, names, strict=True)]
        found.append({"mode": mode, "group": names, "measured": was, "predicted": said.tolist()})
        pairs = zip(names, was, said.tolist(), strict=True)
        print(
            f"{mode:>11}  " + "  ".join(f"{name} {one:.3f} ({two:.3f})" for name, one, two in pairs),
            flush=True,
        )
    return found


def write_as_lucid(bench: Bench, single: dict[str, dict[str, Any]], found: Sequence[dict[str, Any]]) -> None:
    """Write the trainings alone, and the pairs of each mode, in the columns that Lucid published."""
    key = ("model", "dataset", "batchsize", "amp")
    with (bench.keep / "single.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*key, "speed", "gpu_util", "gmem_util", "gmem"])
        for name, one in single.items():
            gpu, mem_mib, cores, _ = one["usage"]
            rows.writerow([name, "made-up", 0, 0, one["rate"], gpu / 10, cores / 10, mem_mib])
    for mode in dict.fromkeys(one["mode"] for one in found):
        path = bench.keep / f"pairs-{mode}.csv"
        with path.open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([f"{column}{side}" for side in (1, 2) for column in (*key, "speed")])
            for one in found:
                if one["mode"] == mode and len(one["group"]) == 2:
                    sides = zip(one["group"], one["measured"], strict=True)
                    rows.writerow([part for name, speed in sides for part in (name, "made-up", 0, 0, speed)])
        read_measurements(bench.keep / "single.csv", path)  # as the models are fitted from it


def judged(found: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean absolute error by mode and number of tenants."""
    errors: dict[str, list[float]] = {}
    for one in found:
        size = len(one["group"])
        errors.setdefault(f"{one['mode']}, {size} together", []).extend(
            abs(was - said) for was, said in zip(one["measured"], one["predicted"], strict=True)
        )
    return {name: float(np.mean(many)) for name, many in errors.items()}


def measure(bench: Bench, modes: Sequence[str], uuid: str) -> None:
    """Measure what is not kept yet, print, judge and save."""
    single = {name: alone(bench, name) for name in NAMES}
    print(f"{bench.card.model.name}: speed as a part of the speed alone (predicted)")
    found: list[dict[str, Any]] = []
    for mode in modes:
        daemon = mode == "mps" and not bench.fake
        before = os.environ.get("CUDA_MPS_PIPE_DIRECTORY")
        if daemon:
            os.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(start_daemon(bench.keep.resolve(), uuid))
        try:
            found += measured(bench, mode, single)
        finally:
            if daemon:
                stop_daemon(bench.keep.resolve(), uuid)
                os.environ.pop("CUDA_MPS_PIPE_DIRECTORY")
                if before is not None:
                    os.environ["CUDA_MPS_PIPE_DIRECTORY"] = before
    write_as_lucid(bench, single, found)
    bench.store("groups", found)
    errors = judged(found)
    for name, error in errors.items():
        print(f"mean absolute error, {name}: {error:.3f}")
    save("colocation_real_gpu", {"gpu": bench.card.model.name, "errors": errors, "groups": found})


def main() -> None:
    """Check what is there, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=12.0, help="how long each group trains together")
    parser.add_argument(
        "--minutes", type=float, default=38.0, help="minutes after which no further measurement begins"
    )
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--keep", type=Path, default=Path("out/real_gpu"))
    parser.add_argument("--fake-gpu", action="store_true")
    words = parser.parse_args()
    modes = words.modes.split(",")
    if unknown := [mode for mode in modes if mode not in MODES]:
        parser.error(f"no mode '{unknown[0]}'; there are {', '.join(MODES)}")
    try:
        driver = fake_driver_folder() if words.fake_gpu else None
        card = NvmlCard.open(words.gpu, driver)
        uuid = gpus(driver)[words.gpu].uuid
    except (ProfileError, PartitionError) as error:
        print(f"not run: there is no GPU on this machine ({error})")
        return
    if not words.fake_gpu and importlib.util.find_spec("torch") is None:
        print("not run: PyTorch is not installed; pip install torch")
        return
    PROCESSES.set_forkserver_preload(["__main__", *([] if words.fake_gpu else ["torch"])])
    os.environ |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": str(words.gpu)}
    words.keep.mkdir(parents=True, exist_ok=True)
    ends_s = time.monotonic() + 60 * words.minutes
    try:
        measure(Bench(card, words.seconds, words.keep, words.fake_gpu, ends_s), modes, uuid)
    except OutOfTimeError:
        print(f"the {words.minutes:g} minutes are over; the same command goes on from {words.keep}")


if __name__ == "__main__":
    main()
