"""Jobs in a container image: the words and the environment that Podman or Apptainer runs one with.

A container shares the machine's process numbers, network and /dev/shm, so that limits, signals and counts hold as for
any other job. libberth, the region and the run's folder are mounted at the paths that they have outside. Podman makes a
container in a cgroup of its own, which is given the job's host memory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence

from berth.errors import LiveError

RUNTIMES = ("podman", "apptainer")
OF_THE_IMAGE = frozenset(
    {
        *("PATH", "SHELL", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "HOSTNAME"),
        *("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
    }
)
"""Variables of the user that name places outside of the image, and are not taken into it by Podman; Apptainer has its
own list."""
_OF_THE_LOADER = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def runtime_for(image: str, path: str | None) -> str:
    """The program that runs an image: Apptainer for its files and addresses, else Podman if it is there.

    Raises LiveError if neither is on the PATH.
    """
    files = image.endswith(".sif") or "://" in image
    wanted = RUNTIMES[1:] if files else RUNTIMES
    for name in wanted:
        if found := shutil.which(name, path=path):
            return found
    raise LiveError(
        f"--image {image}: {' and '.join(wanted)} {'is' if files else 'are'} not on the PATH; install one, or run the"
        " command without an image"
    )


def contained(
    image: str,
    environment: Mapping[str, str],
    *,
    path: str | None,
    cwd: str,
    uid: int,
    mounts: Sequence[str],
    devices: Sequence[str],
    inside: Mapping[str, str],
    host_mem_mib: int,
    terminal: bool,
) -> tuple[list[str], dict[str, str]]:
    """The words before a command, and the environment of the program that they run.

    `path` is where the program is looked for, `uid` the job's user, `mounts` are files and folders besides the working
    folder, `devices` the uuids of its GPUs. `inside` are variables that only the job has: libberth is not preloaded
    into the program that makes the container. Raises LiveError if there is no such program.
    """
    program = runtime_for(image, path)
    own = {name: value for name, value in environment.items() if name not in _OF_THE_LOADER}
    taken = [name for name in own if name not in OF_THE_IMAGE]
    if os.path.basename(program) == "apptainer":
        binds = [word for each in (cwd, *mounts) for word in ("--bind", each)]
        words = [program, "exec", *(["--nv"] if devices else []), *binds, "--pwd", cwd]
        there = image if "://" in image or os.path.exists(os.path.join(cwd, image)) else f"docker://{image}"
        return [*words, there], own | {f"APPTAINERENV_{name}": value for name, value in inside.items()}
    words = [program, "run", "--rm", "--pid=host", "--network=host", "--ipc=host"]
    words += ["--log-driver=none", "--security-opt=label=disable", f"--workdir={cwd}"]
    words += ["--userns=keep-id"] if uid else []
    words += [f"--memory={host_mem_mib}m"] if host_mem_mib else []
    words += ["--interactive", "--tty"] if terminal else []
    words += [f"--volume={each}:{each}" for each in dict.fromkeys((cwd, *mounts))]
    words += [f"--device=nvidia.com/gpu={each}" for each in devices]
    words += [f"--env={name}" for name in taken]  # with the value that Podman has: others see its words
    words += [f"--env={name}={value}" for name, value in inside.items()]
    return [*words, "--entrypoint=", image], own
