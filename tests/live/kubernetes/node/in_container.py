"""Becomes a command in a mount namespace of its own: `in_container.py PLAN COMMAND…`, with the plan as JSON.

The plan names a scratch folder, mounts (of the host, inside, writable) and device nodes (major, minor, inside). It
mounts by the system call, since a program for each mount would take most of the time of the tests.
"""

import ctypes
import json
import os
import stat
import sys

RDONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


def call(name, *words):
    if getattr(libc, name)(*words) != 0:
        sys.exit(f"{name}{words}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind=None, flags=0, data=None):
    encoded = [None if word is None else word.encode() for word in (source, target, kind)]
    call("mount", *encoded, ctypes.c_ulong(flags), None if data is None else data.encode())


def node(path, major, minor):
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
    os.chmod(path, 0o666)


with open(sys.argv[1]) as file:
    plan = json.load(file)
scratch = plan["scratch"]
call("unshare", 0x20000)  # CLONE_NEWNS
mount("none", "/", None, REC | PRIVATE)
os.makedirs(scratch, exist_ok=True)
mount("tmpfs", scratch, "tmpfs")
for name in ("upper", "work"):
    os.mkdir(f"{scratch}/{name}")
layers = f"lowerdir=/etc,upperdir={scratch}/upper,workdir={scratch}/work"
mount("overlay", "/etc", "overlay", 0, layers)
for place in ("/run", "/dev"):
    mount("tmpfs", place, "tmpfs")
node("/dev/null", 1, 3)
node("/dev/urandom", 1, 9)
for major, minor, inside in plan["nodes"]:
    node(inside, major, minor)
for host, inside, writable in plan["mounts"]:
    if os.path.isdir(host):
        os.makedirs(inside, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        open(inside, "a").close()
    mount(host, inside, None, BIND)
    if not writable:
        mount(None, inside, None, REMOUNT | BIND | RDONLY)
os.execvp(sys.argv[2], sys.argv[2:])
