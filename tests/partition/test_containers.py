"""Two real containers on one card: one goes over, gets its error and works on; the other notices nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import Card

from berth import partition as partitions
from berth.errors import PartitionError
from berth.partition import oci
from berth.partition.cdi import specification
from berth.partition.gpus import gpus

pytestmark = pytest.mark.slow

PROGRAMS = ("check", "routes")


def root_file_system(card: Card, folder: Path) -> None:
    """busybox, the C library and the test programs: an image made on the spot."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox to make an image of")
    for name in ("bin", "etc", "proc", "dev", "tmp", "run", "sys", "card", "opt"):
        (folder / name).mkdir(parents=True)
    shutil.copy(busybox, folder / "bin" / "busybox")
    for name in ("sh", "sleep", "cat", "env", "echo", "touch"):
        (folder / "bin" / name).symlink_to("busybox")
    needed: set[str] = set()
    for program in (*(card.native / name for name in PROGRAMS), card.native / "libberth.so", Path(busybox)):
        listed = subprocess.run(
            ["ldd", program], capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]}
        )
        needed |= {
            word for line in listed.stdout.splitlines() for word in line.split() if word.startswith("/")
        }
    for name in needed:
        if "/fake/" in name:
            continue
        place = folder / name.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, place)
    for name in PROGRAMS:
        shutil.copy(card.native / name, folder / "opt" / name)
    shutil.copytree(card.native / "fake", folder / "opt" / "fake")


def apply(edits: dict[str, Any], config: dict[str, Any]) -> None:
    """What a runtime does with a CDI specification's edits."""
    config["process"]["env"] += edits["env"]
    for mount in edits["mounts"]:
        bound = {"destination": mount["containerPath"], "source": mount["hostPath"], "type": "bind"}
        config["mounts"].append(bound | {"options": [*mount["options"], "rbind"]})


def hooked(card: Card, partition: str, config: dict[str, Any]) -> None:
    """What a runtime makes of a hooks.d file that fits: the hook in the configuration, with its annotation."""
    berth = Path(sys.executable).parent / "berth"
    variables = [f"BERTH_ROOT={card.folder / 'root'}", f"PATH={os.environ['PATH']}"]
    made = oci.definition({"path": str(berth), "args": [str(berth), "partition", "inject"], "env": variables})
    config["hooks"] = {stage: [made["hook"]] for stage in made["stages"]}
    config.setdefault("annotations", {})[oci.ANNOTATION] = partition


class Containers:
    """runc, with bundles in a folder; partitions come by CDI or by the OCI hook."""

    def __init__(self, card: Card, way: str) -> None:
        self.card, self.way, self.names = card, way, list[str]()
        self.state = card.folder / "runc"

    def runc(self, *words: str, check: bool = True) -> str:
        answer = subprocess.run(
            ["runc", "--root", str(self.state), *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if check and answer.returncode != 0:
            raise RuntimeError(f"runc {words}: {answer.stdout} {answer.stderr}")
        return answer.stdout + answer.stderr

    def bundle(self, name: str, partition: str) -> Path:
        """A container's root file system and configuration, with a partition in it."""
        bundle = self.card.folder / name
        root_file_system(self.card, bundle / "rootfs")
        subprocess.run(["runc", "spec"], cwd=bundle, check=True)
        config = json.loads((bundle / "config.json").read_text())
        config["process"] |= {"terminal": False, "args": ["/bin/sleep", "600"]}
        config["root"]["readonly"] = False
        shared = {
            "destination": "/card",
            "source": str(self.card.folder / "shared"),
            "type": "bind",
            "options": ["rw", "rbind"],
        }
        config["mounts"].append(shared)
        config["process"]["env"] += [
            "BERTH_FAKE_CARD=/card/card",
            "BERTH_TEST_FDS=1",
            "LD_LIBRARY_PATH=/opt/fake",
        ]
        root = self.card.folder / "root"
        if self.way == "cdi":
            found = partitions.find(partition, root)
            made = specification(partition, found, self.card.native / "libberth.so")
            apply(made["devices"][0]["containerEdits"], config)
        else:
            hooked(self.card, partition, config)
        config["linux"].pop("resources", None)
        config["linux"]["cgroupsPath"] = ""
        (bundle / "config.json").write_text(json.dumps(config))
        return bundle

    def start(self, name: str, partition: str) -> None:
        bundle = self.bundle(name, partition)
        command = ["runc", "--root", str(self.state), "run", "-d", "-b", str(bundle), name]
        with (bundle / "log").open("w") as log:
            ran = subprocess.run(
                command,
                check=False,
                timeout=300,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        said = (bundle / "log").read_text()
        if ran.returncode != 0:
            pytest.skip(f"runc cannot start a container here: {said[-300:]}")
        self.names.append(name)

    def status(self, name: str) -> str:
        return str(json.loads(self.runc("state", name))["status"])

    def run(self, name: str, *command: str) -> tuple[int, str]:
        words = ["runc", "--root", str(self.state), "exec", name, *command]
        answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        return answer.returncode, answer.stdout + answer.stderr

    def hold(self, name: str) -> subprocess.Popen[str]:
        """A process in this container that takes 40 MiB and waits for a line."""
        words = ["runc", "--root", str(self.state), "exec", name, "/opt/check", "hold"]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def end(self) -> None:
        for name in self.names:
            self.runc("delete", "-f", name, check=False)


@pytest.fixture(params=["cdi", "hook"])
def containers(
    card: Card, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Containers]:
    if shutil.which("runc") is None or os.geteuid() != 0:
        pytest.skip("no runc to start containers with, or not root")
    (card.folder / "shared").mkdir()
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "shared" / "card"))
    (gpu,) = gpus(card.native / "fake")
    for name in ("blue", "red"):
        partitions.create(name, gpu, partitions.Limit(64), root=card.folder / "root")
    made = Containers(card, request.param)
    try:
        made.start("blue", "blue")
        made.start("red", "red")
        yield made
    finally:
        made.end()


def test_one_container_goes_over_gets_its_error_and_works_on(containers: Containers) -> None:
    card = containers.card
    holder = containers.hold("red")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert containers.run("blue", "/opt/check", "linear") == (
        0,
        "",
    )  # over its limit three times, an error each time
    assert containers.run("blue", "/opt/check", "threads") == (0, "")
    assert containers.status("blue") == "running"
    assert holder.poll() is None
    root = card.folder / "root"
    (blue,), (red,) = partitions.find("blue", root), partitions.find("red", root)
    assert (blue.refused > 0, red.refused) == (True, 0)
    assert [process.held_bytes for process in red.processes] == [40 << 20]
    assert holder.communicate("\n")[0] == ""
    assert holder.returncode == 0


def test_the_limit_holds_without_an_environment(containers: Containers) -> None:
    words = (
        "/bin/env",
        "-i",
        "BERTH_FAKE_CARD=/card/card",
        "LD_LIBRARY_PATH=/opt/fake",
        "/opt/check",
        "total",
    )
    assert containers.run("blue", *words) == (0, "64\n")


def test_a_container_cannot_raise_its_own_limit(containers: Containers) -> None:
    for more in ((), ("BERTH_REGION=/tmp/mine",), ("BERTH_REGION=/tmp/mine", "BERTH_GPU_CORE_PCT=100")):
        words = ("/bin/env", "BERTH_GPU_MEM_MIB=8192", *more, "/opt/check", "total")
        assert containers.run("blue", *words) == (0, "64\n")
    (limit,) = (containers.card.folder / "root" / "blue").glob("*.limit")
    code, said = containers.run("blue", "/bin/sh", "-c", f"echo > /run/berth/region/{limit.name}")
    assert code != 0
    assert "Read-only file system" in said


def test_a_container_that_is_killed_leaves_nothing_behind(containers: Containers) -> None:
    holder = containers.hold("red")
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    containers.runc("kill", "red", "KILL")
    holder.communicate()
    root = containers.card.folder / "root"
    until = time.monotonic() + 300
    while (red := partitions.find("red", root)[0]).used_bytes and time.monotonic() < until:
        time.sleep(0.05)
    assert (red.used_bytes, red.processes) == (0, ())


@pytest.mark.parametrize("where", ["run", "run/berth", "run/berth/libberth.so", "etc/ld.so.preload"])
def test_an_images_symbolic_link_does_not_lead_the_hook_out_of_it(tmp_path: Path, where: str) -> None:
    """Before its root is the root, a container's links point into the host."""
    root, host = tmp_path / "rootfs", tmp_path / "host"
    (root / "etc").mkdir(parents=True)
    host.mkdir()
    place = root / where
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(host if "." not in place.name else host / "file")
    inside = f"/{where}" if "." in place.name else "/run/berth/libberth.so"
    with pytest.raises(PartitionError, match="symbolic link"):
        os.close(oci._open_inside(root, inside))
    assert list(host.iterdir()) == []


def test_a_container_that_asks_for_no_partition_is_left_alone() -> None:
    assert oci.partition_asked({}, {"process": {"env": ["PATH=/bin", "BERTH_PARTITION="]}}) is None
    assert oci.partition_asked({}, {"process": {"env": ["BERTH_PARTITION=blue"]}}) == "blue"
    assert oci.partition_asked({"annotations": {"dev.berth/partition": "red"}}, {}) == "red"


def test_what_is_no_containers_state_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", json.dumps({"bundle": str(tmp_path)})):
        with pytest.raises(PartitionError, match="not the state of a container"):
            oci.read_container(text)
