"""A program on the fake GPU: `gpu_program.py MIB KERNEL_MS` holds memory and runs kernels one after the other."""

from __future__ import annotations

import ctypes
import sys

mib, kernel_us = int(sys.argv[1]), round(float(sys.argv[2]) * 1000)
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *words: object) -> None:
    status = getattr(cuda, name)(*words)
    assert status == 0, (name, status)


context, module, function, memory = (ctypes.c_void_p() for _ in range(4))
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(mib << 20))
call("cuModuleLoadData", ctypes.byref(module), b"")
call("cuModuleGetFunction", ctypes.byref(function), module, f"spin_{kernel_us}".encode())
print("ready", flush=True)
while True:
    call("cuLaunchKernel", function, *[1] * 6, 0, None, None, None)
    call("cuStreamSynchronize", None)
