"""What Podman does to a command, as unkindly as it does: an environment of the image's own, no file that is not
mounted, options that it does not know refused with 125, a container that lives on without it."""

from __future__ import annotations

import argparse
import os
import signal
import sys

IMAGE = "example.org/trainer:1"
ITS_OWN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "container": "podman"}
HOST = ("pid", "network", "ipc")


def refuse(why: str) -> None:
    print(f"Error: {why}", file=sys.stderr)
    sys.exit(125)


def main() -> None:
    """Run a command as in a container, and end as it does."""
    if "LD_PRELOAD" in os.environ:
        refuse("a library is preloaded into podman itself")
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("do", choices=["run"])
    for flag in ("rm", "interactive", "tty"):
        parser.add_argument(f"--{flag}", action="store_true")
    for name in (*HOST, "cgroups", "log-driver", "security-opt", "workdir", "userns", "entrypoint", "memory"):
        parser.add_argument(f"--{name}")
    for name in ("volume", "device", "env"):
        parser.add_argument(f"--{name}", action="append", default=[])
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if asked.image != IMAGE:
        refuse(f"{asked.image}: manifest unknown")
    if asked.userns is not None and (asked.userns != "keep-id" or os.geteuid() == 0):
        refuse("keep-id is only supported in rootless mode")
    if asked.device:
        refuse(f"unresolvable CDI devices {asked.device[0]}")
    if any(getattr(asked, name) != "host" for name in HOST):
        refuse("the container's own process numbers would not be those of the machine")
    if asked.cgroups == "disabled":
        refuse("containers not creating Cgroups must create a private PID namespace: invalid argument")
    mounted = []
    for volume in asked.volume:
        outside, _, inside = volume.partition(":")
        if not os.path.exists(outside):
            refuse(f"statfs {outside}: no such file or directory")
        if outside in mounted:
            refuse(f"{inside}: duplicate mount destination")
        mounted.append(outside)
    if asked.workdir not in mounted:
        refuse(f'workdir "{asked.workdir}" does not exist on container {asked.image}')
    environment = dict(ITS_OWN)
    for word in asked.env:
        name, given, value = word.partition("=")
        if given or name in os.environ:
            environment[name] = value if given else os.environ[name]
    for path in filter(None, [environment.get("LD_PRELOAD"), environment.get("BERTH_REGION")]):
        if not any(path == each or path.startswith(f"{each}/") for each in mounted):
            environment.pop("LD_PRELOAD", None)  # the loader says so, and goes on
    made: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda sent, _frame: [os.kill(each, sent) for each in made])
    container = os.fork()
    if container == 0:
        os.setsid()  # conmon's: it has no part in what its maker's group is sent
        os.chdir(asked.workdir)
        try:
            os.execvpe(asked.command[0], asked.command, environment)
        except OSError:
            print(f'Error: executable file "{asked.command[0]}" not found in $PATH', file=sys.stderr)
            os._exit(127)
    made.append(container)
    _, status = os.waitpid(container, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
