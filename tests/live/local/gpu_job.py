"""A program of CUDA: takes MiB of GPU memory, keeps it until a file is there, and exits with 1 where it is refused."""

from __future__ import annotations

import ctypes
import os
import sys
import time


def main() -> int:
    """`gpu_job.py MIB [FILE]`"""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for told in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
        if told != 0:
            print(f"no GPU: {told}", flush=True)
            return 2
    told = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]) << 20))
    if told != 0:
        print("out of memory", flush=True)
        return 1
    print("holds", sys.argv[1], flush=True)
    while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
        time.sleep(0.02)
    return 0


if __name__ == "__main__":
    sys.exit(main())
