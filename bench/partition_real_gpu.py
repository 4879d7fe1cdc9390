"""On a machine with a GPU: what works under a limit, what the library adds, whether shares are kept. Prints the table.

    python bench/partition_real_gpu.py [--gpu 0] [--mem-mib 4096]

Each program is tried that is installed: PyTorch with its default allocator and with expandable segments, JAX, CuPy, a
program that nvcc builds with its static runtime, NCCL where there are two GPUs. Each must get an out-of-memory error
above the limit and must be able to go on below it. Then the driver calls of bench/partition_overhead.c, with and
without the library, and a training alone and two at once at 30 and 70 %. The last line is to be pasted into
docs/compatibility.md. Without a GPU it says so and runs nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from berth.errors import PartitionError
from berth.partition import fake_driver_folder, library_path
from berth.partition.gpus import Gpu, gpu_named, gpus
from berth.partition.regions import read, regions_in

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
TRAINING = """
import time, torch
a = torch.randn(4096, 4096, device="cuda")
end, steps = time.monotonic() + 20, 0
while time.monotonic() < end:
    a = torch.nn.functional.normalize(a @ a)
    torch.cuda.synchronize()
    steps += 1
print(steps)
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
OPERATIONS = ("alloc", "live", "async", "launch", "info", "dlsym", "start1")
"""Of bench/partition_overhead.c; ns an operation, ms for the start."""


def environment(gpu: Gpu, folder: Path, mem_mib: int, **more: str) -> dict[str, str]:
    ours = {"LD_PRELOAD": str(library_path()), "BERTH_REGION": str(folder), "BERTH_GPU_MEM_MIB": str(mem_mib)}
    return os.environ | ours | {"CUDA_VISIBLE_DEVICES": gpu.uuid} | more


def installed(module: str) -> bool:
    return (
        subprocess.run(
            [sys.executable, "-c", f"import {module}"], capture_output=True, check=False
        ).returncode
        == 0
    )


def tried(program: list[str], ours: dict[str, str]) -> str:
    """What came of a program under the limit."""
    answer = subprocess.run(program, env=ours, capture_output=True, text=True, check=False)
    if answer.returncode == 0:
        return "keeps to it"
    return f"FAILED ({answer.returncode}): {answer.stderr.strip()[-200:]}"


def static_runtime(gpu: Gpu, scratch: Path, mem_mib: int) -> str:
    """A program linked to NVIDIA's runtime as nvcc does by default."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        return "no nvcc"
    (scratch / "static.cu").write_text(STATIC.format(mem_mib=mem_mib))
    built = subprocess.run(
        [compiler, "-o", scratch / "static", scratch / "static.cu"],
        capture_output=True,
        text=True,
        check=False,
    )
    if built.returncode != 0:
        return f"FAILED to build: {built.stderr.strip()[-200:]}"
    return tried([str(scratch / "static")], environment(gpu, scratch / "static-region", mem_mib))


def collective(scratch: Path, mem_mib: int, count: int) -> str:
    """NCCL between two processes on two GPUs."""
    if count < 2:
        return "one GPU"
    if not installed("torch"):
        return "PyTorch is not installed"
    (scratch / "collective.py").write_text(NCCL.format(mem_mib=mem_mib))
    ours = os.environ | {
        "LD_PRELOAD": str(library_path()),
        "BERTH_REGION": str(scratch / "nccl"),
        "BERTH_GPU_MEM_MIB": str(mem_mib),
    }
    return tried([sys.executable, str(scratch / "collective.py")], ours)


def overhead(gpu: Gpu, scratch: Path, mem_mib: int) -> list[tuple[str, str]]:
    """Driver calls bare and under the limit, medians of five runs each."""
    program = scratch / "overhead"
    source = Path(__file__).parent / "partition_overhead.c"
    link = [
        f"-L{fake_driver_folder()}",
        "-l:libcuda.so.1",
        "-ldl",
    ]  # at run time the loader finds the real one
    subprocess.run([shutil.which("cc") or "cc", "-O2", "-std=c11", source, "-o", program, *link], check=True)
    ours = environment(gpu, scratch / "overhead-region", mem_mib)
    bare = {name: value for name, value in ours.items() if name not in ("LD_PRELOAD", "BERTH_REGION")}
    bare.pop("BERTH_GPU_MEM_MIB")
    rows = []
    for word in OPERATIONS:
        seen: dict[bool, list[float]] = {False: [], True: []}
        for limited in (False, True) * 5:
            answer = subprocess.run(
                [program, word], env=ours if limited else bare, capture_output=True, text=True, check=False
            )
            if answer.returncode == 0:
                seen[limited].append(float(answer.stdout))
        if seen[False] and seen[True]:
            low, high = statistics.median(seen[False]), statistics.median(seen[True])
            rows.append((word, f"{low:.1f} bare, {high:.1f} limited, {high - low:+.1f}"))
        else:
            rows.append((word, "FAILED"))
    return rows


def trainings(gpu: Gpu, folder: Path) -> list[tuple[str, str]]:
    """Steps of a training alone, then of two at once at 30 and 70 per cent; and the GPU time each was charged."""

    def start(region: Path, **more: str) -> subprocess.Popen[str]:
        words = environment(gpu, region, gpu.mem_mib // 3, **more)
        return subprocess.Popen(
            [sys.executable, "-c", TRAINING], env=words, stdout=subprocess.PIPE, text=True
        )

    alone = int(start(folder / "alone").communicate()[0] or 0)
    running = [start(folder / str(pct), BERTH_GPU_CORE_PCT=str(pct)) for pct in (30, 70)]
    steps = [int(process.communicate()[0] or 0) for process in running]
    charged = [
        sum(read(folder / str(pct), uuid, "").gpu_ns for uuid in regions_in(folder / str(pct)))
        for pct in (30, 70)
    ]
    return [
        (
            f"training at {pct} %",
            f"{100 * done / max(alone, 1):.1f} % of its steps alone, {ns / 1e9:.1f} s charged",
        )
        for pct, done, ns in zip((30, 70), steps, charged, strict=True)
    ]


def versions() -> str:
    """The driver's version and the newest CUDA that it knows."""
    nvml, driver = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.CDLL("libcuda.so.1")
    text, newest = ctypes.create_string_buffer(96), ctypes.c_int()
    nvml.nvmlInit_v2()
    nvml.nvmlSystemGetDriverVersion(text, 96)
    driver.cuDriverGetVersion(ctypes.byref(newest))
    return f"driver {text.value.decode()}, CUDA {newest.value // 1000}.{newest.value % 1000 // 10}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--mem-mib", type=int, default=4096)
    words = parser.parse_args()
    try:
        known = gpus()
        if not known:
            raise PartitionError("NVML knows of none")
    except PartitionError as error:
        print(f"not run: there is no GPU on this machine ({error})")
        return
    try:
        gpu = gpu_named(words.gpu, known)
    except PartitionError as error:
        sys.exit(f"error: {error}")
    results = [("versions", versions())]
    with tempfile.TemporaryDirectory(prefix="berth-real-") as folder:
        scratch = Path(folder)
        for number, (name, (module, program, more)) in enumerate(PROGRAMS.items()):
            if not installed(module):
                results.append((name, "not installed"))
                continue
            text = program.replace("{mem_mib}", str(words.mem_mib))
            ours = environment(gpu, scratch / str(number), words.mem_mib, **more)
            results.append((name, tried([sys.executable, "-c", text], ours)))
        results.append(("nvcc, static runtime", static_runtime(gpu, scratch, words.mem_mib)))
        results.append(("NCCL", collective(scratch, words.mem_mib, len(known))))
        results += overhead(gpu, scratch, words.mem_mib)
        if installed("torch"):
            results += trainings(gpu, scratch)
    for name, result in results:
        print(f"{name:<34}{result}")
    print(f"| {gpu.uuid} | {' | '.join(result for _, result in results)} |")


if __name__ == "__main__":
    main()
