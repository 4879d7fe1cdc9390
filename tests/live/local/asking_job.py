"""A program of CUDA that takes and gives back GPU memory at random, pauses, and says how it ended.

`asking_job.py STEPS MOST_MIB FILE` appends its job's id to FILE when it is done, and `ID refused` for each allocation
that it did not get.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time

PIECE_MIB = 1024


def main() -> int:
    steps, most_mib, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    job = os.environ["BERTH_JOB_ID"]
    draw = random.Random(job)
    cuda, held = ctypes.CDLL("libcuda.so.1"), list[ctypes.c_uint64]()
    context = ctypes.c_void_p()
    if cuda.cuInit(0) != 0 or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) != 0:
        return 2

    def tell(text: str) -> None:
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{text}\n")

    for _ in range(steps):
        if len(held) * PIECE_MIB < most_mib and draw.random() < 0.7:
            memory = ctypes.c_uint64()
            if cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(PIECE_MIB << 20)) == 0:
                held.append(memory)
            else:
                tell(f"{job} refused")
        elif held and cuda.cuMemFree_v2(held.pop()) != 0:
            return 3
        if cuda.cuCtxSynchronize() != 0:
            return 4
        time.sleep(draw.choice((0.0, 0.01, 0.02, 0.1, 0.6)))
    tell(job)
    return 0


if __name__ == "__main__":
    sys.exit(main())
