"""The local queue against task-spooler, gflow and first-fit by declared memory: 60 applications on 4 fake GPUs.

    python bench/local_queue_peers.py [--seeds 10] [--gflow FOLDER] [--only berth,tsp,gflow,first-fit]

Every job is a process on the fake driver, whose kernels take turns on a card: 12 applications, each five times, with
their own memory, part of the card's time and length; users declare 0.7 to 3 times the memory that a job takes at its
peak. The makespan is from the first submission to the last end. A job that ends without having done its work is out of
memory for good; the peers do not run it again.

    berth        `--mem DECLARED`, with what `berth up` starts with: every limit may grow up to the card
    fixed        the same under `berth up --grow off`
    soonest      berth under `berth up --per-gpu 4` and `berth policy passing+longest-expected+worst-fit`
    suspend      berth under `berth up --grow suspend`
    learned      berth under `berth policy learned`; neither has a history to begin with
    packed       berth under `berth policy easy+priority+best-fit`, which fills one card after the other
    tsp          task-spooler of Debian with a slot a GPU; a job takes a card that no other has (flock)
    gflow        runqd of PyPI: `gbatch --shared --gpus 1 --gpu-memory DECLARED`; --gflow is the folder of its programs
    first-fit    a loop that starts each job on the first GPU where the declared memory of all fits
    first-fit-again  the same, and its user submits what ran out of memory again, with twice the memory
    bound        no run: all kernels, spread over the cards without a gap; no queue that does all the work is below it
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness import save

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.live.local.world import BERTH, World  # noqa: E402

from berth.live.local.link import BRAIN  # noqa: E402

NATIVE = ROOT / "build" / "native"
GPUS, CARD_MIB = 4, 80 << 10
COPIES = 5
GIVE_UP_S = 180.0
OURS = ("berth", "fixed", "soonest", "suspend", "learned", "packed")


@dataclass(frozen=True)
class Application:
    """One kind of job: MiB at its peak, ms of kernels and of thought a step, steps, MiB that its users declare."""

    name: str
    mem_mib: int
    kernel_ms: int
    think_ms: int
    steps: int
    declared_mib: int


def applications(seed: int) -> list[Application]:
    """Sixty jobs in the order of their submission."""
    kinds = random.Random(1)
    made = []
    for at in range(12):
        busy = kinds.choice((0.1, 0.2, 0.3, 0.5, 0.7, 0.9))
        mem_mib = kinds.choice((3, 5, 8, 12, 18, 26)) << 10
        steps = round(kinds.uniform(1.5, 5.0) * 1000 / 40)
        declared = min(round(mem_mib * kinds.choice((0.7, 1.0, 1.2, 1.5, 2.0, 3.0))), CARD_MIB)
        kernel_ms = max(4, round(40 * busy))
        made.append(Application(f"app{at}", mem_mib, kernel_ms, 40 - kernel_ms, steps, declared))
    jobs = [kind for kind in made for _ in range(COPIES)]
    random.Random(seed).shuffle(jobs)
    return jobs


@dataclass(frozen=True)
class Outcome:
    """Of one run: seconds from the first submission to the last end, and how many jobs never did their work."""

    makespan_s: float
    failed: int


class Field:
    """A folder in which the jobs write down their ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "ends").mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "LD_"))},
            "LD_LIBRARY_PATH": str(NATIVE / "fake"), "BERTH_FAKE_GPUS": str(GPUS),
            "BERTH_FAKE_MEM_MIB": str(CARD_MIB), "BERTH_FAKE_CARD": str(folder / "card"),
        }  # fmt: skip

    def command(self, at: int, job: Application) -> list[str]:
        """A job that writes down how it ended and when."""
        work = f"{NATIVE / 'local_queue_job'} {job.mem_mib} {job.kernel_ms} {job.think_ms} {job.steps}"
        told = f"code=$?; echo $code $(date +%s.%N) >> {self.folder}/ends/{at}; exit $code"
        return ["sh", "-c", f"{work}; {told}"]

    def ends(self) -> dict[int, tuple[int, float]]:
        """The last exit code of each job that has ended, and when."""
        found = {}
        for path in (self.folder / "ends").iterdir():
            lines = path.read_text().splitlines()
            if lines:
                code, when = lines[-1].split()
                found[int(path.name)] = (int(code), float(when))
        return found

    def wait(self, began_s: float, count: int) -> Outcome:
        """Until all have ended once; for peers that run a job once."""
        until = time.monotonic() + GIVE_UP_S
        while len(self.ends()) < count and time.monotonic() < until:
            time.sleep(0.05)
        return self.outcome(began_s, count)

    def outcome(self, began_s: float, count: int) -> Outcome:
        """What has become of the jobs."""
        ends = self.ends()
        good = sum(code == 0 for code, _ in ends.values())
        last = max((when for _, when in ends.values()), default=began_s + GIVE_UP_S)
        return Outcome(last - began_s, count - good)


@contextmanager
def field() -> Iterator[Field]:
    """A folder that goes away."""
    with tempfile.TemporaryDirectory(
        prefix="berth-peers-", dir="/dev/shm", ignore_cleanup_errors=True
    ) as folder:
        yield Field(Path(folder))


def berth(jobs: list[Application], *options: str) -> Outcome:
    """The queue as it comes, or with options of `berth up`."""
    world = World(gpus=f"{GPUS}xA100-80G", brain=BRAIN, options=list(options))
    try:
        with field() as here:
            world.up()
            lines = [
                f"--mem {job.declared_mib}M --name {job.name} --cpus 0.1 {_quoted(here.command(at, job))}"
                for at, job in enumerate(jobs)
            ]
            began_s = time.time()
            subprocess.run(
                [BERTH, "submit", "-"], input="\n".join(lines), env=world.environment, cwd=world.folder, check=True,
                stdout=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            world.ask("wait", all=True, timeout=GIVE_UP_S)
            return here.outcome(began_s, len(jobs))
    finally:
        world.close()


def _quoted(words: list[str]) -> str:
    import shlex

    return shlex.join(words)


def tsp(jobs: list[Application]) -> Outcome:
    """A slot a GPU; each job takes the first card that no other has."""
    with field() as here:
        environment = {**here.environment, "TS_SOCKET": str(here.folder / "tsp"), "TMPDIR": str(here.folder)}
        environment["TS_SLOTS"] = str(GPUS)
        take = here.folder / "take.sh"
        take.write_text(
            "#!/bin/bash\nwhile :; do\n"
            f"  for gpu in {' '.join(map(str, range(GPUS)))}; do\n"
            f"    exec 9>{here.folder}/gpu$gpu\n"
            '    if flock -n 9; then export CUDA_VISIBLE_DEVICES=$gpu; "$@"; exit $?; fi\n'
            "  done\n  sleep 0.02\ndone\n"
        )
        take.chmod(0o755)
        began_s = time.time()
        try:
            for at, job in enumerate(jobs):
                subprocess.run(
                    ["tsp", "-n", str(take), *here.command(at, job)], env=environment, check=True,
                    stdout=subprocess.DEVNULL,
                )  # fmt: skip
            return here.wait(began_s, len(jobs))
        finally:
            subprocess.run(["tsp", "-K"], env=environment, check=False)


def gflow(jobs: list[Application], programs: Path) -> Outcome:
    """Shared GPUs by declared memory."""
    with field() as here:
        library = here.folder / "lib"  # it opens libnvidia-ml.so
        library.mkdir()
        for name in ("libnvidia-ml.so", "libnvidia-ml.so.1"):
            (library / name).symlink_to(NATIVE / "fake" / "libnvidia-ml.so.1")
        environment = {**here.environment, "LD_LIBRARY_PATH": f"{library}:{NATIVE / 'fake'}"}
        path = f"export PATH={programs}:$PATH\n"  # the shell of a job tells its end by gcancel
        for name in (".bashrc", ".profile", ".bash_profile"):
            (here.folder / name).write_text(path)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
        environment |= {
            name: str(here.folder)
            for name in (
                "HOME",
                "XDG_CONFIG_HOME",
                "XDG_DATA_HOME",
                "XDG_STATE_HOME",
                "XDG_RUNTIME_DIR",
                "TMUX_TMPDIR",
            )
        }
        silent = {"env": environment, "stdout": subprocess.DEVNULL, "cwd": here.folder}
        subprocess.run([programs / "gflowd", "start"], check=True, **silent)  # type: ignore[call-overload]
        try:
            time.sleep(2)
            began_s = time.time()
            for at, job in enumerate(jobs):
                script = here.folder / f"job{at}.sh"
                script.write_text("#!/bin/sh\n" + here.command(at, job)[2] + "\n")
                script.chmod(0o755)
                words = [
                    "--shared",
                    "--gpus",
                    "1",
                    "--gpu-memory",
                    f"{job.declared_mib}M",
                    "--auto-close",
                    script,
                ]
                subprocess.run([programs / "gbatch", *words], check=True, **silent)  # type: ignore[call-overload]
            return here.wait(began_s, len(jobs))
        finally:
            subprocess.run([programs / "gflowd", "stop"], check=False, **silent)  # type: ignore[call-overload]
            subprocess.run(["tmux", "kill-server"], env=environment, check=False, stderr=subprocess.DEVNULL)


def first_fit(jobs: list[Application], *, again: bool = False) -> Outcome:
    """Each job in turn on the first GPU where what is declared fits; later ones go ahead where there is room. With
    `again` its user submits a job that ran out of memory once more, with twice of what was declared."""
    with field() as here:
        began_s = time.time()
        waiting = list(enumerate(jobs))
        running: list[tuple[subprocess.Popen[bytes], int, Application]] = []
        numbers: dict[int, int] = {}
        while waiting or running:
            for process, _, job in running:
                if again and process.poll():
                    twice = min(2 * job.declared_mib, CARD_MIB)
                    waiting.append((numbers[process.pid], replace(job, declared_mib=twice)))
            running = [each for each in running if each[0].poll() is None]
            for at, job in list(waiting):
                free = [
                    CARD_MIB - sum(other.declared_mib for _, gpu, other in running if gpu == card)
                    for card in range(GPUS)
                ]
                card = next((card for card in range(GPUS) if free[card] >= job.declared_mib), None)
                if card is not None:
                    environment = {**here.environment, "CUDA_VISIBLE_DEVICES": str(card)}
                    process = subprocess.Popen(here.command(at, job), env=environment)
                    running.append((process, card, job))
                    numbers[process.pid] = at
                    waiting.remove((at, job))
            time.sleep(0.02)
        return here.outcome(began_s, len(jobs))


def bound(jobs: list[Application]) -> Outcome:
    """All kernels on all cards, of which none ever idles."""
    return Outcome(sum(job.kernel_ms * job.steps for job in jobs) / 1000 / GPUS, 0)


def interval(differences: list[float]) -> tuple[float, float]:
    """The mean and half of its 95 % interval, by Student's t."""
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
    mean = statistics.mean(differences)
    if len(differences) < 2:
        return mean, float("inf")
    return mean, t.get(len(differences), 2.0) * statistics.stdev(differences) / len(differences) ** 0.5


def main() -> None:
    """Run each on the same jobs, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--gflow", type=Path, default=None)
    parser.add_argument(
        "--only",
        default="bound,berth,fixed,soonest,suspend,learned,packed,tsp,gflow,first-fit,first-fit-again",
    )
    words = parser.parse_args()
    subprocess.run(["make", "-s", "-C", str(ROOT / "native"), "all", "tests"], check=True)
    link = [f"-L{NATIVE / 'fake'}", "-l:libcuda.so.1"]
    source, program = ROOT / "bench" / "local_queue_job.c", NATIVE / "local_queue_job"
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    names = words.only.split(",")
    runs: dict[str, Callable[[list[Application]], Outcome]] = {
        "bound": bound,
        "berth": berth,
        "fixed": lambda jobs: berth(jobs, "--grow", "off"),
        "soonest": lambda jobs: berth(
            jobs, "--per-gpu", "4", "--policy", "passing+longest-expected+worst-fit"
        ),
        "suspend": lambda jobs: berth(jobs, "--grow", "suspend"),
        "learned": lambda jobs: berth(jobs, "--policy", "learned"),
        "packed": lambda jobs: berth(jobs, "--policy", "easy+priority+best-fit"),
        "tsp": tsp,
        "first-fit": first_fit,
        "first-fit-again": lambda jobs: first_fit(jobs, again=True),
    }
    if words.gflow is not None:
        runs["gflow"] = lambda jobs: gflow(jobs, words.gflow)
    found: dict[str, list[Outcome]] = {name: [] for name in runs if name in names}
    for seed in range(words.first_seed, words.first_seed + words.seeds):
        jobs = applications(seed)
        for name, outcomes in found.items():
            outcomes.append(runs[name](jobs))
            print(seed, name, outcomes[-1], flush=True)
        save("local_queue_peers", table(found))


def table(found: dict[str, list[Outcome]]) -> dict[str, object]:
    """Means, and each peer against berth's own, seed by seed."""
    told: dict[str, object] = {}
    for name, outcomes in found.items():
        told[name] = {
            "makespan_s": round(statistics.mean(each.makespan_s for each in outcomes), 2),
            "failed": sum(each.failed for each in outcomes), "seeds": len(outcomes),
        }  # fmt: skip
    for ours in OURS:
        for name in found:
            if ours not in found or name in OURS:
                continue
            pairs = zip(found[ours], found[name], strict=False)
            mean, half = interval([100 * (own.makespan_s / other.makespan_s - 1) for own, other in pairs])
            told[f"{ours} against {name}, %"] = [round(mean, 1), round(half, 1)]
    print(told, flush=True)
    return told


if __name__ == "__main__":
    main()
