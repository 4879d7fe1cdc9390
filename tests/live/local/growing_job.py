"""A program of CUDA: a number takes that many MiB of GPU memory, a path waits until a file is there, in their order.

With `!` behind the number it asks again until it gets them."""

from __future__ import annotations

import ctypes
import os
import sys
import time


def main() -> int:
    """`growing_job.py MIB|FILE…`; exits with 1 where memory is refused."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, memory = ctypes.c_void_p(), ctypes.c_uint64()
    if cuda.cuInit(0) != 0 or cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) != 0:
        return 2
    for word in sys.argv[1:]:
        size = word.rstrip("!")
        if not size.isdigit():
            while not os.path.exists(word):
                time.sleep(0.02)
            continue
        while cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(size) << 20)) != 0:
            if size == word:
                print("refused", word, flush=True)
                return 1
            time.sleep(0.02)
        print("holds", size, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
