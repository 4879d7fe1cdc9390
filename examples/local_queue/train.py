"""Takes GPU memory through the CUDA driver and holds it for a while: `train.py GIB SECONDS`.

It stands for a training run: it works on a real card and on the fake one alike, and ends with 1 where it is refused
memory, as a framework does.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time


def main() -> int:
    """Take the memory, hold it, and say so."""
    gib, seconds = float(sys.argv[1]), float(sys.argv[2])
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    for answer in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
        if answer != 0:
            print(f"the driver says {answer}")
            return 2
    if cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(gib * (1 << 30)))) != 0:
        print(f"out of memory: {gib:g} GiB")
        return 1
    print(f"job {os.environ.get('BERTH_JOB_ID', '?')} holds {gib:g} GiB")
    time.sleep(seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
