"""What a container needs of the GPU driver to use its part: device nodes and libraries, real ones or the fake ones."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from berth.errors import KubernetesError
from berth.files import write_whole
from berth.partition.library import fake_driver_folder, library_path
from berth.partition.regions import INSIDE, Mount

COMMON_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
LIBRARIES = (
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-ml.so",
    "libnvidia-nvvm.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-gpucomp.so",
    "libnvidia-opencl.so",
)
LIBRARY_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
FAKE_INSIDE = f"{INSIDE}/fake"


@dataclass(frozen=True, slots=True)
class DriverFiles:
    nodes: Mapping[int, Path]
    """Of each GPU by its index."""
    common: tuple[Path, ...]
    """Nodes that every container with a GPU needs."""
    mounts: tuple[Mount, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def nodes_of(self, gpus: Sequence[int]) -> list[Path]:
        """The nodes for a container that has these GPUs; their names are those inside."""
        return [*self.common, *(self.nodes[gpu] for gpu in gpus if gpu in self.nodes)]


def real_driver(minors: Mapping[int, int]) -> DriverFiles:
    """NVIDIA's driver; `minors` tells the number of /dev/nvidiaN of each GPU."""
    mounts = [
        Mount(path.resolve(), str(path))
        for folder in LIBRARY_FOLDERS
        for name in LIBRARIES
        for path in sorted(Path(folder).glob(f"{name}.[0-9]"))
    ]
    common = tuple(path for name in COMMON_NODES if (path := Path("/dev") / name).exists())
    nodes = {index: Path(f"/dev/nvidia{minor}") for index, minor in minors.items()}
    return DriverFiles(nodes, common, tuple(mounts))


def fake_driver(gpus: Sequence[int], folder: Path, card: Path) -> DriverFiles:
    """The fake driver: its libraries, its card's file, and stand-ins for the nodes, made in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    inside = folder / "fake"
    if not inside.exists():
        shutil.copytree(fake_driver_folder(), inside)
    nodes = {gpu: folder / "nodes" / f"nvidia{gpu}" for gpu in gpus}
    for path in nodes.values():
        _stand_in(path)
    if not card.exists():
        raise KubernetesError(f"the fake card {card} is not there yet; ask NVML first, which makes it")
    settings = {name: value for name, value in os.environ.items() if name.startswith("BERTH_FAKE_")}
    mounts = [Mount(inside, FAKE_INSIDE), Mount(card, f"{INSIDE}/fake-card", writable=True)]
    return DriverFiles(
        nodes,
        (),
        tuple(mounts),
        settings
        | {
            "BERTH_FAKE_CARD": f"{INSIDE}/fake-card",
            "BERTH_FAKE_NODES": "/dev",
            "LD_LIBRARY_PATH": FAKE_INSIDE,
        },
    )


def _stand_in(path: Path) -> None:
    """A device node like /dev/null: a runtime takes it for one of a GPU."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        return
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError as error:
        raise KubernetesError(
            f"{path} cannot be made ({error.strerror}); the node's agent runs as root"
        ) from error


def node_folder(folder: Path, nodes: Sequence[Path]) -> None:
    """Make `folder` hold exactly these device nodes: a runtime that is given it reads it when it makes a container."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {node.name: node for node in nodes}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, node in wanted.items():
        found = node.stat()
        if (folder / name).exists():
            if (folder / name).stat().st_rdev == found.st_rdev:
                continue
            (folder / name).unlink()
        os.mknod(folder / name, stat.S_IFCHR | 0o666, found.st_rdev)


def with_library(driver: DriverFiles, folder: Path) -> DriverFiles:
    """The driver with libberth.so and the loader's preload list before it. They are installed below `folder`.

    A version that containers have mounted stays: each has a name of its own.
    """
    source = library_path()
    status = source.stat()
    place = folder / f"{status.st_mtime_ns:x}-{status.st_size:x}"
    place.mkdir(parents=True, exist_ok=True)
    for name, text in (
        ("libberth.so", source.read_bytes()),
        ("ld.so.preload", f"{INSIDE}/libberth.so\n".encode()),
    ):
        if not (place / name).exists():
            write_whole(place / name, text)
            (place / name).chmod(0o644)
    library = Mount(place / "libberth.so", f"{INSIDE}/libberth.so")
    preload = Mount(place / "ld.so.preload", "/etc/ld.so.preload")
    return replace(driver, mounts=(library, preload, *driver.mounts))
