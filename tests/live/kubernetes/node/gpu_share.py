"""A program of CUDA that takes all that it may have of each GPU, then one step more, and says how that went.

`gpu_share.py [MIB] [hold]` prints JSON: of each GPU its UUID, the memory that the driver shows, what was taken in MiB,
and the driver's answer to one MiB more (2: out of memory). With a number it takes at most that much, and with `hold` it
keeps the memory until it is told to end.
"""

import ctypes
import json
import os
import sys

MIB = 1 << 20
MOST = min((int(word) for word in sys.argv if word.isdigit()), default=1 << 30) * MIB
cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *words):
    told = getattr(cuda, name)(*words)
    if told:
        print(json.dumps({"error": f"{name} answered {told}"}), flush=True)
        sys.exit(3)


def share(device):
    uuid, total, context = (ctypes.c_ubyte * 16)(), ctypes.c_size_t(), ctypes.c_void_p()
    call("cuDeviceGetUuid_v2", uuid, device)
    call("cuDeviceTotalMem_v2", ctypes.byref(total), device)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    free, memory = ctypes.c_size_t(), ctypes.c_uint64()
    call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(ctypes.c_size_t()))
    took = min(free.value, MOST)
    call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(took))
    more = cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(MIB))
    return {"uuid": bytes(uuid).hex(), "total_mib": total.value / MIB, "took_mib": took / MIB, "more": more}


count = ctypes.c_int()
call("cuInit", 0)
call("cuDeviceGetCount", ctypes.byref(count))
shares = [share(device) for device in range(count.value)]
nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
print(json.dumps({"gpus": shares, "nodes": nodes}), flush=True)
if "hold" in sys.argv:
    sys.stdin.readline()
