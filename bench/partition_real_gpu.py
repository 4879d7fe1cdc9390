"""What the library does on a real GPU, in one go of under ten minutes; the result is a file.

    python bench/partition_real_gpu.py [--gpu 0] [--mem-mib 2048] [--out FILE.json] [--fake-gpu]

Needs a C compiler and the driver, no toolkit and no framework. In this order, what is worth most first, each step in
processes of its own: what only a card can tell (steps of memory, pools, green contexts, graphs, HMM), without a limit;
`berth partition prove`; every way to memory until it is refused, judged by what NVML says from outside that the card
has given; how long checkpoint and restore take by size; driver calls with and without the library; what NVML tells the
process, also in a pid namespace of its own, as in a container; shares of the GPU's time for short, long and varying
kernels, alone and beside each other; the runtimes that are installed: NVIDIA's own (`libcudart`), nvcc's static one,
PyTorch, JAX, CuPy, NCCL where there are two GPUs; and what the library costs three trainings. A step for which no time
is left is told as not run. The file says card, driver and versions; the status is 1 where a limit was passed or a step
failed. Without a GPU it says so and runs nothing; --fake-gpu runs over the fake driver, which shows
that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from berth.errors import PartitionError
from berth.partition import fake_driver_folder, library_path
from berth.partition.checkpoint import Calls
from berth.partition.gpus import Gpu, gpu_named, gpus, open_nvml
from harness import BENCH, machine

TORCH = """
import torch
limit = int({mem_mib}) << 20
try:
    torch.empty(limit + (1 << 20), dtype=torch.uint8, device="cuda")
    raise SystemExit("over the limit and not refused")
except torch.OutOfMemoryError:
    pass
x = torch.ones(limit // 4, dtype=torch.uint8, device="cuda")
assert int(x[:1024].sum()) == 1024
assert torch.cuda.mem_get_info()[1] == limit
"""
JAX = """
import os
os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
import jax, jax.numpy as jnp
try:
    jnp.ones((int({mem_mib}) + 64) << 18).block_until_ready()
    raise SystemExit("over the limit and not refused")
except Exception as error:
    assert "RESOURCE_EXHAUSTED" in str(error) or "memory" in str(error).lower(), error
assert float(jnp.ones(1024).sum()) == 1024
"""
CUPY = """
import cupy
try:
    cupy.empty((int({mem_mib}) << 20) + (1 << 20), dtype=cupy.uint8)
    raise SystemExit("over the limit and not refused")
except cupy.cuda.memory.OutOfMemoryError:
    pass
assert int(cupy.ones(1024).sum()) == 1024
"""
NCCL = """
import os, torch, torch.distributed as group, torch.multiprocessing as processes
def one(rank):
    os.environ |= {{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29411"}}
    torch.cuda.set_device(rank)
    group.init_process_group("nccl", rank=rank, world_size=2)
    x = torch.ones(1 << 20, device="cuda")
    group.all_reduce(x)
    assert float(x[0]) == 2
    try:
        torch.empty((int({mem_mib}) << 20) + (1 << 20), dtype=torch.uint8, device="cuda")
        raise SystemExit("over the limit and not refused")
    except torch.OutOfMemoryError:
        pass
    group.all_reduce(x)
    group.destroy_process_group()
if __name__ == "__main__":
    processes.spawn(one, nprocs=2)
"""
STATIC = """
#include <cuda_runtime.h>
#include <cstdlib>
__global__ void set(int *at) {{ *at = 7; }}
int main() {{
    void *all = nullptr; int *one = nullptr, seen = 0;
    if (cudaMalloc(&all, ({mem_mib}ull << 20) + (1 << 20)) != cudaErrorMemoryAllocation) return 3;
    cudaGetLastError();
    if (cudaMalloc((void **)&one, sizeof(int)) != cudaSuccess) return 4;
    set<<<1, 1>>>(one);
    if (cudaMemcpy(&seen, one, sizeof seen, cudaMemcpyDeviceToHost) != cudaSuccess || seen != 7) return 5;
    return 0;
}}
"""
PROGRAMS = {
    "PyTorch": ("torch", TORCH, {}),
    "PyTorch, expandable segments": ("torch", TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "JAX": ("jax", JAX, {}),
    "CuPy": ("cupy", CUPY, {}),
}
OPERATIONS = {
    "alloc": "ns",
    "live": "ns",
    "async": "ns",
    "launch": "ns",
    "info": "ns",
    "dlsym": "ns",
    "start1": "ms",
}
"""Of bench/partition_overhead.c."""
MOST_MORE = {"alloc": 110.0, "live": 110.0, "launch": 5.0, "info": 20.0, "start1": 0.6}
"""How much more a call may cost under the limit than bare, in its unit; the others are only told."""

SHARES = {
    "short kernels at 50 %": ((50, "short"),),
    "long kernels at 20 %": ((20, "long"),),
    "kernels of varying length at 30 %": ((30, "varying"),),
    "short at 20 % beside long at 50 %": ((20, "short"), (50, "long")),
}
KERNELS = {"short": (100, 0, 0), "long": (50_000, 0, 0), "varying": (200, 8, 20_000)}
"""Microseconds of a launch, each how many is longer, and how long that is."""

OVER_MIB = 64
"""By how much the card may have given more than the limit: blocks are rounded up, and others use the card too."""


@dataclass
class Step:
    """What came of one step; `ok` is None where it was not run."""

    name: str
    ok: bool | None
    said: str
    figures: dict[str, Any] = field(default_factory=dict)
    took_s: float = 0


@dataclass(frozen=True)
class Bench:
    """The card, the programs, and how much time is left."""

    gpu: Gpu
    scratch: Path
    fake: bool
    mem_mib: int
    share_s: float
    rounds: int
    ends: float

    def environment(self, region: str | None, **more: str) -> dict[str, str]:
        """Of a process on the GPU; under a limit in the region of this name, or under none."""
        ours = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_GPU", "LD_PRE"))
        }
        ours |= {"CUDA_VISIBLE_DEVICES": self.gpu.uuid, "BERTH_BENCH_UUID": self.gpu.uuid}
        if self.fake:
            ours |= {"LD_LIBRARY_PATH": str(fake_driver_folder()), "BERTH_BENCH_FAKE": "1"}
        if region is not None:
            ours |= {"LD_PRELOAD": str(library_path()), "BERTH_REGION": str(self.scratch / region)}
            ours |= {"BERTH_GPU_MEM_MIB": str(self.mem_mib), "BERTH_LOG": str(self.scratch / f"{region}.log")}
        return ours | more

    def left_s(self, most_s: float) -> float:
        return max(min(most_s, self.ends - time.monotonic()), 0.1)

    def run(self, words: Sequence[str | Path], ours: dict[str, str], most_s: float = 60) -> str:
        """What a program prints; raises CalledProcessError or TimeoutExpired."""
        answer = subprocess.run(
            words, env=ours, capture_output=True, text=True, check=True, timeout=self.left_s(most_s)
        )
        return answer.stdout

    def program(self) -> Path:
        return self.scratch / "partition_real_gpu"


def built(source: str, folder: Path) -> Path:
    """A program of this folder, linked as programs are; at run time the loader finds the real driver."""
    program = folder / source
    link = [f"-L{fake_driver_folder()}", "-l:libcuda.so.1", "-ldl"]
    compiler = shutil.which("cc") or "cc"
    subprocess.run([compiler, "-O2", "-std=c11", BENCH / f"{source}.c", "-o", program, *link], check=True)
    return program


def used_mib(gpu: Gpu, fake: bool) -> int:
    """What the card has given to everybody, as this process, which has no limit, sees it."""
    nvml = open_nvml(fake_driver_folder() if fake else None)
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode(), ctypes.byref(handle))
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return int(memory[2]) >> 20


def memory_steps(bench: Bench) -> list[Callable[[], Step]]:
    """Every way to memory, up to four times the limit."""
    names = bench.run([bench.program(), "paths"], bench.environment(None)).splitlines()

    def step(name: str) -> Step:
        before = used_mib(bench.gpu, bench.fake)
        words = [str(bench.program()), "path", name, str(4 * bench.mem_mib)]
        with subprocess.Popen(
            words,
            env=bench.environment(f"path-{name}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            answered, _, _ = select.select([process.stdout], [], [], bench.left_s(60))
            line = process.stdout.readline() if answered else ""
            given = used_mib(bench.gpu, bench.fake) - before
            if not line:
                process.kill()
            process.communicate()
        if not line:
            return Step(f"memory: {name}", False, f"no answer; ended with {process.returncode}")
        seen = json.loads(line) | {"given_mib": given}
        refused = seen["result"] == 2
        if seen["result"] not in (0, 2):
            return Step(f"memory: {name}", None, f"the driver answers {seen['result']}", seen)
        kept = given <= bench.mem_mib + OVER_MIB and seen["total_mib"] <= bench.mem_mib
        # Graphs that run one after another may share what they allocate; all else must be refused.
        ok = kept and (seen["granted_mib"] <= bench.mem_mib if refused else name == "graph")
        said = f"{given} MiB given of {bench.mem_mib}, {'refused then' if refused else 'not refused'}"
        return Step(f"memory: {name}", ok, said, seen)

    return [lambda name=name: step(name) for name in names]  # type: ignore[misc]


def fact_steps(bench: Bench) -> list[Callable[[], Step]]:
    """What only a card can tell, without a limit: nothing is judged."""
    names = bench.run([bench.program(), "facts"], bench.environment(None)).splitlines()

    def step(name: str) -> Step:
        seen = json.loads(bench.run([bench.program(), "fact", name], bench.environment(None)))
        said = f"{seen['asked_bytes'] / 2**20:.1f} MiB asked for, {seen['taken_bytes'] / 2**20:.1f} taken"
        if seen["result"] != 0:
            said = f"the driver answers {seen['result']}"
        return Step(f"fact: {name}", True if seen["result"] == 0 else None, said, seen)

    return [lambda name=name: step(name) for name in names]  # type: ignore[misc]


def prove_steps(bench: Bench) -> list[Callable[[], Step]]:
    """`berth partition prove` with its own limit."""

    def step() -> Step:
        words = ["partition", "prove", "--gpu", str(bench.gpu.index), "--json"]
        words += [*(["--fake-gpu"] if bench.fake else [])]
        command = [sys.executable, "-c", "from berth.cli import main; main()", *words]
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=bench.left_s(180)
        )
        if answer.returncode not in (0, 1):
            return Step("prove", False, answer.stderr.strip()[-200:])
        rows = json.loads(answer.stdout)
        by: dict[str, list[str]] = {}
        for row in rows:
            by.setdefault(row["verdict"], []).append(row["way"])
        others = "".join(
            f"; {verdict}: {', '.join(ways)}" for verdict, ways in by.items() if verdict != "held"
        )
        said = f"{len(by.get('held', ()))} of {len(rows)} ways held against {rows[0]['limit_bytes'] >> 20} MiB{others}"
        kept = ("way", "verdict", "given_bytes", "seen_bytes", "why")
        figures = {"ways": [{name: row[name] for name in kept} for row in rows]}
        return Step("prove", answer.returncode == 0, said, figures)

    return [step]


def checkpoint_steps(bench: Bench) -> list[Callable[[], Step]]:
    """How long a process is on its way to the host's memory and back, by what it holds."""
    calls = Calls(fake_driver_folder() if bench.fake else None)

    def step(mib: int) -> Step:
        words = [str(bench.program()), "path", "linear", str(mib)]
        ours = bench.environment(None)
        with subprocess.Popen(
            words, env=ours, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            took, answers = {}, []
            for name in ("lock", "checkpoint", "restore", "unlock"):
                began = time.monotonic()
                answers.append(getattr(calls, name)(process.pid))
                took[f"{name}_ms"] = round(1000 * (time.monotonic() - began), 1)
            process.communicate()
        if any(answers):
            return Step(f"checkpoint: {mib} MiB", None, f"the driver answers {answers}")
        said = f"{took['checkpoint_ms']} ms away, {took['restore_ms']} ms back"
        return Step(f"checkpoint: {mib} MiB", True, said, took)

    return [lambda mib=mib: step(mib) for mib in (256, 1024, 4096)]  # type: ignore[misc]


def nvml_steps(bench: Bench) -> list[Callable[[], Step]]:
    """What NVML tells a process that holds 64 MiB: outside, under a limit, and both in a pid namespace."""
    apart = ["unshare", "--pid", "--fork", "--mount-proc"]

    def step(name: str, region: str | None, before: list[str]) -> Step:
        seen = json.loads(bench.run([*before, str(bench.program()), "nvml"], bench.environment(region)))
        ok = region is None or (seen["total_mib"] == bench.mem_mib and seen["processes"] <= 1)
        said = f"{seen['used_mib']} of {seen['total_mib']} MiB, {seen['processes']} processes, "
        said += f"own pid {'listed' if seen['own_pid_listed'] else 'not listed'} with {seen['own_mib']} MiB"
        return Step(f"NVML: {name}", ok, said, seen)

    def in_a_namespace(name: str, region: str | None) -> Step:
        if (
            shutil.which("unshare") is None
            or subprocess.run([*apart, "true"], capture_output=True).returncode
        ):
            return Step(f"NVML: {name}", None, "this user may not make a pid namespace")
        return step(name, region, apart)

    return [
        lambda: step("outside, no limit", None, []),
        lambda: step("under a limit", "nvml", []),
        lambda: in_a_namespace("in a pid namespace, no limit", None),
        lambda: in_a_namespace("in a pid namespace, under a limit", "nvml-apart"),
    ]


def share_steps(bench: Bench) -> list[Callable[[], Step]]:
    """Shares of the time, by the work that the GPU did of what it does alone."""
    rates: list[float] = []

    def rate() -> float:
        if not rates:
            said = bench.run([bench.program(), "rate"], bench.environment(None))
            rates.append(float(json.loads(said)["us_a_million_steps"]))
        return rates[0]

    def step(name: str, members: tuple[tuple[int, str], ...]) -> Step:
        running = []
        for pct, kernel in members:
            us, every, long_us = KERNELS[kernel]
            words = ["share", us, every, long_us, bench.share_s, rate()]
            ours = bench.environment(f"share-{name}-{kernel}".replace("%", ""), BERTH_GPU_CORE_PCT=str(pct))
            command = [str(bench.program()), *map(str, words)]
            running.append(subprocess.Popen(command, env=ours, stdout=subprocess.PIPE, text=True))
        figures = {}
        for (pct, kernel), process in zip(members, running, strict=True):
            output, _ = process.communicate(timeout=bench.left_s(bench.share_s + 30))
            if process.returncode != 0:
                return Step(f"share: {name}", False, f"{kernel} ended with {process.returncode}")
            figures[kernel] = json.loads(output) | {"asked_pct": pct}
        off = max(abs(one["share_pct"] - one["asked_pct"]) for one in figures.values())
        said = ", ".join(f"{one['share_pct']:.1f} % of {one['asked_pct']}" for one in figures.values())
        return Step(f"share: {name}", off <= 3, said, figures)

    return [lambda name=name, of=of: step(name, of) for name, of in SHARES.items()]  # type: ignore[misc]


def overhead_steps(bench: Bench) -> list[Callable[[], Step]]:
    """Driver calls bare and under the limit, medians in turn."""

    def step(word: str, unit: str) -> Step:
        program, seen = bench.scratch / "partition_overhead", {False: [0.0] * 0, True: [0.0] * 0}
        for limited in (False, True) * bench.rounds:
            ours = bench.environment(
                "overhead" if limited else None, BERTH_GPU_MEM_MIB=str(bench.gpu.mem_mib)
            )
            if not limited:
                ours.pop("BERTH_GPU_MEM_MIB")
            seen[limited].append(
                float(bench.run([program, word], ours).split()[0])
            )  # `launch` tells its rests too
        bare, with_it = statistics.median(seen[False]), statistics.median(seen[True])
        more, most = with_it - bare, MOST_MORE.get(word)
        said = f"{bare:.1f} {unit} bare, {with_it:.1f} limited, {more:+.1f}"
        figures = {"bare": bare, "limited": with_it, "unit": unit}
        if most is None:
            return Step(f"overhead: {word}", True, said, figures)
        # Runs of one call differ by more on a real card, so a miss there needs several runs.
        most = max(most, bare / 100)  # 1 % of a slow call
        return Step(f"overhead: {word}", more <= most, f"{said}, at most {most:+g}", figures | {"most": most})

    return [lambda word=word, unit=unit: step(word, unit) for word, unit in OPERATIONS.items()]  # type: ignore[misc]


def tried(bench: Bench, name: str, program: list[str], **more: str) -> Step:
    """A program that must be refused above the limit and go on below it."""
    ours = bench.environment(f"program-{name}", **more)
    answer = subprocess.run(
        program, env=ours, capture_output=True, text=True, check=False, timeout=bench.left_s(90)
    )
    said = "keeps to it" if answer.returncode == 0 else f"{answer.returncode}: {answer.stderr.strip()[-200:]}"
    return Step(f"program: {name}", answer.returncode == 0, said)


CUDART = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
limit, at, sizes = int(sys.argv[2]) << 20, ctypes.c_void_p(), (ctypes.c_size_t * 2)()
alloc = lambda size: runtime.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size))
started = runtime.cudaFree(None)
if started:
    sys.exit(f"the runtime does not start: error {started}")
assert alloc(limit + (1 << 20)) == 2, "over the limit and not refused"
assert alloc(limit // 4) == 0, "below the limit and refused"
assert runtime.cudaMemGetInfo(ctypes.byref(sizes, 0), ctypes.byref(sizes, 8)) == 0
assert sizes[1] == limit, f"{sizes[1]} bytes in all, not {limit}"
"""


def runtimes() -> list[Path]:
    """NVIDIA's runtime libraries: of the pip packages, and of a toolkit."""
    places = [Path(place) for place in sys.path if place.endswith("site-packages")]
    found = [path for place in places for path in sorted(place.glob("nvidia/**/libcudart.so.*"))]
    return found + sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so.*.*"))


def program_steps(bench: Bench) -> list[Callable[[], Step]]:
    def cudart() -> Step:
        libraries = [] if bench.fake else runtimes()
        if not libraries:
            return Step("program: libcudart", None, "the fake driver" if bench.fake else "not installed")
        words = [sys.executable, "-c", CUDART, str(libraries[-1]), str(bench.mem_mib)]
        return tried(bench, f"libcudart ({libraries[-1].name})", words)

    def python(name: str, module: str, program: str, more: dict[str, str]) -> Step:
        looked = [
            sys.executable,
            "-c",
            f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)",
        ]
        if subprocess.run(looked, check=False).returncode != 0 or bench.fake:
            return Step(f"program: {name}", None, "the fake driver" if bench.fake else "not installed")
        text = program.replace("{mem_mib}", str(bench.mem_mib))
        return tried(bench, name, [sys.executable, "-c", text], **more)

    def static() -> Step:
        compiler = shutil.which("nvcc")
        if compiler is None or bench.fake:
            return Step("program: nvcc, static runtime", None, "the fake driver" if bench.fake else "no nvcc")
        (bench.scratch / "static.cu").write_text(STATIC.format(mem_mib=bench.mem_mib))
        bench.run([compiler, "-o", bench.scratch / "static", bench.scratch / "static.cu"], dict(os.environ))
        return tried(bench, "nvcc, static runtime", [str(bench.scratch / "static")])

    def collective() -> Step:
        count = 1 if bench.fake else len(gpus())
        if count < 2:
            return Step("program: NCCL", None, "one GPU")
        (bench.scratch / "collective.py").write_text(NCCL.format(mem_mib=bench.mem_mib))
        both = ",".join(gpu.uuid for gpu in gpus()[:2])
        script = [sys.executable, str(bench.scratch / "collective.py")]
        return tried(bench, "NCCL", script, CUDA_VISIBLE_DEVICES=both)

    named = [lambda name=name, words=words: python(name, *words) for name, words in PROGRAMS.items()]  # type: ignore[misc]
    return [cudart, static, *named, collective]


def training_steps(bench: Bench) -> list[Callable[[], Step]]:
    """What the library costs a training: its steps per second bare and under the limit, where nothing is refused."""

    def rate(name: str, region: str | None) -> float:
        notes = bench.scratch / f"notes-{name}.json"
        words = [
            sys.executable,
            str(BENCH / "small_trainings.py"),
            name,
            str(min(bench.share_s, 4)),
            str(notes),
        ]
        bench.run(
            [*words, *(["--pretend"] if bench.fake else [])],
            bench.environment(region, BERTH_GPU_MEM_MIB=str(bench.gpu.mem_mib)),
        )
        (begun_s, before), *_, (ended_s, after) = json.loads(notes.read_text())
        return float((after - before) / (ended_s - begun_s))

    def step(name: str) -> Step:
        if not bench.fake and importlib.util.find_spec("torch") is None:
            return Step(f"training: {name}", None, "PyTorch is not installed")
        bare, limited = rate(name, None), rate(name, f"training-{name}")
        said = f"{bare:.1f} steps/s bare, {limited:.1f} limited, {100 * (limited / bare - 1):+.1f} %"
        figures = {"bare_per_s": bare, "limited_per_s": limited}
        return Step(f"training: {name}", limited >= 0.97 * bare, said, figures)

    return [lambda name=name: step(name) for name in ("recurrent", "convolutions", "tiny")]  # type: ignore[misc]


def versions(fake: bool) -> dict[str, str]:
    """The driver's version and the newest CUDA that it knows."""
    folder = f"{fake_driver_folder()}/" if fake else ""
    nvml, driver = open_nvml(Path(folder) if fake else None), ctypes.CDLL(f"{folder}libcuda.so.1")
    text, newest = ctypes.create_string_buffer(96), ctypes.c_int()
    nvml.nvmlSystemGetDriverVersion(text, 96)
    driver.cuDriverGetVersion(ctypes.byref(newest))
    return {
        "driver": text.value.decode(),
        "cuda": f"{newest.value // 1000}.{newest.value % 1000 // 10}",
        "berth": commit(),
    }


def commit() -> str:
    """Of this checkout; nothing where it is a copy without git."""
    words = ["git", "-C", str(BENCH), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""


def card_name(gpu: Gpu, fake: bool) -> str:
    nvml = open_nvml(fake_driver_folder() if fake else None)
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetHandleByUUID(gpu.uuid.encode(), ctypes.byref(handle))
    nvml.nvmlDeviceGetName(handle, name, 96)
    return name.value.decode()


def all_steps(bench: Bench) -> list[Step]:
    done = []
    kinds = (
        fact_steps, prove_steps, memory_steps, checkpoint_steps, overhead_steps, nvml_steps, share_steps, program_steps,
        training_steps,
    )  # fmt: skip
    for steps in kinds:
        for number, step in enumerate(steps(bench)):
            if time.monotonic() >= bench.ends:
                done.append(
                    Step(f"{steps.__name__.removesuffix('_steps')} {number}", None, "no time was left")
                )
                continue
            began = time.monotonic()
            try:
                done.append(step())
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                name = f"{steps.__name__.removesuffix('_steps')} {number}"
                done.append(Step(name, False, f"{error}: {getattr(error, 'stderr', '')}"[-300:]))
            done[-1].took_s = round(time.monotonic() - began, 1)
            mark = {True: "ok", False: "FAILED", None: "not run"}[done[-1].ok]
            print(f"{mark:<8}{done[-1].took_s:>5} s  {done[-1].name:<44}{done[-1].said}", flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpu", default="0", help="index or UUID")
    parser.add_argument("--mem-mib", type=int, default=2048, help="the limit")
    parser.add_argument("--seconds", type=float, default=540, help="the time for all of it")
    parser.add_argument("--share-s", type=float, default=15, help="seconds of each measurement of shares")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each driver call, bare and limited")
    parser.add_argument("--out", type=Path, default=BENCH / "results" / "partition_real_gpu.json")
    parser.add_argument("--fake-gpu", action="store_true", help="over the fake driver")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="berth-real-") as folder:
        scratch = Path(folder)
        if words.fake_gpu:
            os.environ |= {"BERTH_FAKE_CARD": str(scratch / "card"), "BERTH_FAKE_MODULE_KIB": "65536"}
        try:
            known = gpus(fake_driver_folder() if words.fake_gpu else None)
            if not known:
                raise PartitionError("NVML knows of none")
        except PartitionError as error:
            print(f"not run: there is no GPU on this machine ({error})")
            return
        try:
            gpu = gpu_named(words.gpu, known)
        except PartitionError as error:
            sys.exit(f"error: {error}")
        began = time.monotonic()
        more = (words.mem_mib, words.share_s, words.rounds, began + words.seconds)
        bench = Bench(gpu, scratch, words.fake_gpu, *more)
        for source in ("partition_real_gpu", "partition_overhead"):
            built(source, scratch)
        steps = all_steps(bench)
        result = {
            "card": card_name(gpu, words.fake_gpu),
            "uuid": gpu.uuid,
            "mem_mib": gpu.mem_mib,
            "versions": versions(words.fake_gpu),
            "machine": machine(),
            "date": time.strftime("%Y-%m-%d"),
            "took_s": round(time.monotonic() - began, 1),
            "steps": [asdict(step) for step in steps],
        }
    words.out.parent.mkdir(parents=True, exist_ok=True)
    words.out.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"wrote {words.out}: {result['card']}, driver {versions(words.fake_gpu)['driver']}, {result['took_s']} s"
    )
    if any(step.ok is False for step in steps):
        sys.exit(1)


if __name__ == "__main__":
    main()
