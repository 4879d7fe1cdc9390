"""On a machine with a GPU: what works under a limit, and whether shares are kept. Prints the table.

    python bench/partition_real_gpu.py [--gpu 0] [--mem-mib 4096]

Each program is tried that is installed: PyTorch with its default allocator and with expandable segments,
JAX, CuPy. Each must get an out-of-memory error above the limit and must be able to go on below it. The last
line is to be pasted into docs/compatibility.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from berth.errors import PartitionError
from berth.partition import library_path
from berth.partition.gpus import Gpu, gpu_named, gpus

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
PROGRAMS = {
    "PyTorch": ("torch", TORCH, {}),
    "PyTorch, expandable segments": ("torch", TORCH, {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    "JAX": ("jax", JAX, {}),
    "CuPy": ("cupy", CUPY, {}),
}


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


def trainings(gpu: Gpu, folder: Path) -> tuple[int, int]:
    """Steps of two trainings at 30 and 70 per cent, at once."""
    running = []
    for core_pct in (30, 70):
        words = environment(gpu, folder / str(core_pct), gpu.mem_mib // 3, BERTH_GPU_CORE_PCT=str(core_pct))
        running.append(
            subprocess.Popen([sys.executable, "-c", TRAINING], env=words, stdout=subprocess.PIPE, text=True)
        )
    first, second = (int(process.communicate()[0] or 0) for process in running)
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--mem-mib", type=int, default=4096)
    words = parser.parse_args()
    try:
        gpu = gpu_named(words.gpu, gpus())
    except PartitionError as error:
        sys.exit(f"not run: {error}")
    results = []
    with tempfile.TemporaryDirectory(prefix="berth-real-") as scratch:
        for number, (name, (module, program, more)) in enumerate(PROGRAMS.items()):
            if not installed(module):
                results.append((name, "not installed"))
                continue
            text = program.replace("{mem_mib}", str(words.mem_mib))
            ours = environment(gpu, Path(scratch) / str(number), words.mem_mib, **more)
            answer = subprocess.run(
                [sys.executable, "-c", text], env=ours, capture_output=True, text=True, check=False
            )
            results.append(
                (name, "keeps to it" if answer.returncode == 0 else f"FAILED: {answer.stderr.strip()[-200:]}")
            )
        if installed("torch"):
            first, second = trainings(gpu, Path(scratch))
            percent = [100 * steps / max(first + second, 1) for steps in (first, second)]
            said = f"{percent[0]:.1f} % and {percent[1]:.1f} % of the steps"
            results.append(("two trainings at 30 and 70 %", said))
    for name, result in results:
        print(f"{name:<34}{result}")
    print(f"| {gpu.uuid} | {' | '.join(result for _, result in results)} |")


if __name__ == "__main__":
    main()
