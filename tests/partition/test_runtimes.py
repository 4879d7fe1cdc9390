"""The same partition through whole runtimes: Podman with CDI and the hook, containerd with the hook, rootless."""

from __future__ import annotations

import json
import os
import shutil
import site
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.partition.conftest import ROOT, Card
from tests.partition.test_containers import Containers, hooked, root_file_system

from berth import partition as partitions
from berth.partition import oci
from berth.partition.cdi import specification
from berth.partition.gpus import gpus

pytestmark = pytest.mark.slow

INSIDE = ["BERTH_FAKE_CARD=/card/card", "LD_LIBRARY_PATH=/opt/fake", "BERTH_TEST_FDS=1"]


def made_partition(card: Card, monkeypatch: pytest.MonkeyPatch, user: int | None = None) -> str:
    """A partition of 64 MiB of a fake card that containers see as /card/card."""
    (card.folder / "shared").mkdir()
    monkeypatch.setenv("BERTH_FAKE_CARD", str(card.folder / "shared" / "card"))
    (gpu,) = gpus(card.native / "fake")
    name = f"test-{os.getpid()}"
    access = partitions.Access(uid=user)
    partitions.create(name, gpu, partitions.Limit(64), access=access, root=card.folder / "root")
    return name


@dataclass
class Podman:
    """Podman with a store and an image of its own."""

    card: Card
    name: str
    runtime: str

    @property
    def command(self) -> list[str]:
        store = ["--root", str(self.card.folder / "store"), "--runroot", str(self.card.folder / "run")]
        podman = [
            shutil.which("podman") or "podman",
            *store,
            "--storage-driver",
            "vfs",
            "--cgroup-manager",
            "cgroupfs",
        ]
        return [*podman, "--hooks-dir", str(self.card.folder / "hooks"), "--runtime", self.runtime]

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *words], capture_output=True, text=True, check=False, timeout=300
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"]
        variables = [word for value in INSIDE for word in ("-e", value)]
        shared = ["-v", f"{self.card.folder / 'shared'}:/card"]
        return self("run", "--rm", "--network", "none", *limits, *variables, *shared, *words)


def wait_for_its_cleaners(folder: Path) -> None:
    """Podman has another process clean up after each container, which writes into the store once more."""

    def busy() -> bool:
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(folder).encode() in process.read_bytes():
                    return True
            except OSError:  # it has ended meanwhile
                continue
        return False

    deadline = time.monotonic() + 120
    while busy() and time.monotonic() < deadline:
        time.sleep(0.1)


@pytest.fixture
def podman(card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    runtime = shutil.which("runc")
    if shutil.which("podman") is None or runtime is None or os.geteuid() != 0:
        pytest.skip("no podman with runc, or not root")
    made = Podman(card, made_partition(card, monkeypatch), runtime)
    (card.folder / "hooks").mkdir()
    root_file_system(card, card.folder / "rootfs")
    subprocess.run(["tar", "-C", card.folder / "rootfs", "-cf", card.folder / "image.tar", "."], check=True)
    try:
        loaded = made("import", str(card.folder / "image.tar"), made.name)
        plain = made.run(made.name, "/bin/echo")
        if loaded.returncode != 0 or plain.returncode != 0:
            pytest.skip(f"podman cannot start a container here: {loaded.stderr[-200:]} {plain.stderr[-300:]}")
        yield made
    finally:
        made("rmi", "--force", made.name)
        wait_for_its_cleaners(card.folder)
        subprocess.run(["umount", card.folder / "store" / "vfs"], capture_output=True, check=False)


def keeps_to_its_limit(podman: Podman, *asks: str) -> None:
    for command, said in (("total", "64\n"), ("linear", "")):
        ran = podman.run(*asks, podman.name, "/opt/check", command)
        assert (ran.returncode, ran.stdout) == (0, said), ran.stderr
    stranger = podman.run(podman.name, "/opt/check", "total")
    assert (stranger.returncode, stranger.stdout) == (
        0,
        "16384\n",
    )  # a container that asks for no partition gets none


def test_podman_injects_a_partition_by_its_cdi_name(podman: Podman) -> None:
    device = Path("/var/run/cdi") / f"berth-{podman.name}.json"
    device.parent.mkdir(parents=True, exist_ok=True)
    found = partitions.find(podman.name, podman.card.folder / "root")
    device.write_text(json.dumps(specification(podman.name, found, podman.card.native / "libberth.so")))
    try:
        keeps_to_its_limit(podman, "--device", f"berth.dev/gpu={podman.name}")
    finally:
        device.unlink()


def test_podman_injects_a_partition_by_the_hook(podman: Podman) -> None:
    berth = str(Path(sys.executable).parent / "berth")
    variables = [f"BERTH_ROOT={podman.card.folder / 'root'}", f"PATH={os.environ['PATH']}"]
    made = oci.definition({"path": berth, "args": [berth, "partition", "inject"], "env": variables})
    (podman.card.folder / "hooks" / "berth.json").write_text(json.dumps(made))
    keeps_to_its_limit(podman, "--annotation", f"{oci.ANNOTATION}={podman.name}")
    missing = podman.run("--annotation", f"{oci.ANNOTATION}=none-such", podman.name, "/bin/echo")
    assert missing.returncode != 0
    assert "no partition 'none-such'" in missing.stderr


@dataclass
class RootlessPodman(Podman):
    """Podman as a user without privileges, whom only a mount namespace of its own knows."""

    @property
    def command(self) -> list[str]:
        home = self.card.folder / "home"
        known = f"for name in passwd group subuid subgid; do mount --bind {home}/$name /etc/$name || exit 125; done"
        user = "setpriv --reuid 12345 --regid 12345 --clear-groups"
        variables = f"HOME={home} TMPDIR={home} XDG_RUNTIME_DIR={home}/run"
        become = f'cd {home}; exec {user} env {variables} "$@"'
        return ["unshare", "-m", "sh", "-c", f"{known}; {become}", "sh", *super().command]


@pytest.fixture
def rootless_podman(card: Card, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    needed = ("podman", "runc", "newuidmap", "unshare", "setpriv")
    if not all(map(shutil.which, needed)) or os.geteuid() != 0 or not Path("/etc/subuid").exists():
        pytest.skip(f"one of {', '.join(needed)} or /etc/subuid is not here, or not root")
    made = RootlessPodman(card, made_partition(card, monkeypatch, 12345), shutil.which("runc") or "runc")
    home = card.folder / "home"
    for name in ("", "run", "hooks", "store"):
        (home / name).mkdir()
    for name, line in (
        ("passwd", f"berth-test:x:12345:12345::{home}:/bin/sh"),
        ("group", "berth-test:x:12345:"),
    ):
        (home / name).write_text(Path(f"/etc/{name}").read_text() + line + "\n")
    for name in ("subuid", "subgid"):
        (home / name).write_text("berth-test:200000:65536\n")
    root_file_system(card, card.folder / "rootfs")
    subprocess.run(["tar", "-C", card.folder / "rootfs", "-cf", card.folder / "image.tar", "."], check=True)
    for name in ("store", "run", "hooks"):
        (card.folder / name).mkdir()
    subprocess.run(
        ["chown", "-R", "12345:12345", home, *(card.folder / name for name in ("store", "run", "hooks"))],
        check=True,
    )
    (home / "run").chmod(0o700)
    card.folder.chmod(0o755)
    (card.folder / "shared").chmod(0o777)
    try:
        loaded = made("import", str(card.folder / "image.tar"), made.name)
        plain = made.run(made.name, "/bin/echo")
        if loaded.returncode != 0 or plain.returncode != 0:
            pytest.skip(f"podman is not rootless here: {loaded.stderr[-200:]} {plain.stderr[-300:]}")
        yield made
    finally:
        wait_for_its_cleaners(card.folder)
        made("system", "reset", "--force")  # ends the process that holds its user namespace, too
        wait_for_its_cleaners(card.folder)
        Path("/dev/shm/libpod_rootless_lock_12345").unlink(missing_ok=True)


def test_rootless_podman_injects_a_partition_by_its_cdi_name(rootless_podman: Podman) -> None:
    card, name = rootless_podman.card, rootless_podman.name
    library = card.folder / "libberth.so"  # where any user gets to
    shutil.copy(card.native / "libberth.so", library)
    device = Path("/var/run/cdi") / f"berth-{name}.json"
    device.parent.mkdir(parents=True, exist_ok=True)
    device.write_text(json.dumps(specification(name, partitions.find(name, card.folder / "root"), library)))
    try:
        keeps_to_its_limit(rootless_podman, "--device", f"berth.dev/gpu={name}")
    finally:
        device.unlink()


@pytest.fixture
def containerd(card: Card) -> Iterator[Path]:
    """The socket of a containerd of its own."""
    if shutil.which("containerd") is None or shutil.which("ctr") is None or os.geteuid() != 0:
        pytest.skip("no containerd, or not root")
    folder = card.folder / "containerd"
    folder.mkdir()
    socket = folder / "socket"
    (folder / "config.toml").write_text(
        "version = 2\n"
        f'root = "{folder}/root"\nstate = "{folder}/state"\n'
        'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
        f'[grpc]\naddress = "{socket}"\n[ttrpc]\naddress = "{socket}.ttrpc"\n'
    )
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            ["containerd", "--config", folder / "config.toml"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while subprocess.run(["ctr", "-a", socket, "version"], capture_output=True, check=False).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"containerd does not start here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        yield socket
    finally:
        server.terminate()
        server.wait()


def test_containerd_injects_a_partition_by_the_hook(
    card: Card, containerd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("runc") is None:
        pytest.skip("no runc")
    name = made_partition(card, monkeypatch)
    bundle = Containers(card, "hook").bundle("blue", name)
    config = json.loads((bundle / "config.json").read_text())
    config["root"]["path"] = str(bundle / "rootfs")
    for number, (command, said) in enumerate((("total", "64\n"), ("linear", ""))):
        config["process"]["args"] = ["/opt/check", command]
        (bundle / "config.json").write_text(json.dumps(config))
        words = ["ctr", "-a", str(containerd), "run", "--rm", "--config", str(bundle / "config.json")]
        ran = subprocess.run(
            [*words, f"{name}-{number}"], capture_output=True, text=True, check=False, timeout=300
        )
        assert (ran.returncode, ran.stdout) == (0, said), ran.stderr


@pytest.fixture
def docker(card: Card) -> Iterator[list[str]]:
    """The client's words for a dockerd of its own, without a network."""
    if shutil.which("dockerd") is None or shutil.which("docker") is None or os.geteuid() != 0:
        pytest.skip("no dockerd and docker, or not root")
    folder = card.folder / "docker"
    folder.mkdir()
    client = ["docker", "-H", f"unix://{folder}/socket"]
    words = [
        "dockerd",
        "-H",
        f"unix://{folder}/socket",
        "--pidfile",
        folder / "pid",
        "--storage-driver",
        "vfs",
    ]
    words += ["--data-root", folder / "root", "--exec-root", folder / "exec", "--bridge", "none"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [*words, "--iptables=false", "--ip6tables=false"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        deadline = time.monotonic() + 120
        while subprocess.run([*client, "version"], capture_output=True, check=False).returncode:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip(f"dockerd does not start here: {(folder / 'log').read_text()[-300:]}")
            time.sleep(0.1)
        yield client
    finally:
        server.terminate()
        server.wait()
        subprocess.run(["umount", folder / "root" / "vfs"], capture_output=True, check=False)


def test_docker_without_cdi_takes_the_specifications_mounts(
    card: Card, docker: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What docs/partition.md says of Docker before 25: each mount of the specification as `-v`."""
    name = made_partition(card, monkeypatch)
    root_file_system(card, card.folder / "rootfs")
    subprocess.run(["tar", "-C", card.folder / "rootfs", "-cf", card.folder / "image.tar", "."], check=True)
    loaded = subprocess.run(
        [*docker, "import", card.folder / "image.tar", name], capture_output=True, text=True, check=False
    )
    found = partitions.find(name, card.folder / "root")
    (device,) = specification(name, found, card.native / "libberth.so")["devices"]
    mounts = device["containerEdits"]["mounts"]
    volumes = [
        word
        for mount in mounts
        for word in ("-v", f"{mount['hostPath']}:{mount['containerPath']}:{mount['options'][0]}")
    ]

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        variables = [word for value in INSIDE for word in ("-e", value)]
        shared = ["-v", f"{card.folder / 'shared'}:/card"]
        command = [*docker, "run", "--rm", "--network", "none", *variables, *shared, *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    plain = run(name, "/bin/echo")
    if loaded.returncode != 0 or plain.returncode != 0:
        pytest.skip(f"docker cannot start a container here: {loaded.stderr[-200:]} {plain.stderr[-300:]}")
    for command, said in (("total", "64\n"), ("linear", "")):
        ran = run(*volumes, name, "/opt/check", command)
        assert (ran.returncode, ran.stdout) == (0, said), ran.stderr
    more = ["-e", "BERTH_GPU_MEM_MIB=9999", "-e", "BERTH_REGION=/tmp/other"]
    assert run(*volumes, *more, name, "/opt/check", "total").stdout == "64\n"
    assert run(name, "/opt/check", "total").stdout == "16384\n"


def command_for_all_users(user: list[str]) -> dict[str, Any]:
    """The hook as that user may run it: this Python may lie where only its owner gets to."""
    path = os.pathsep.join(str(folder) for folder in (ROOT / "src", *site.getsitepackages()))
    program = "import sys, berth.cli; sys.argv[0] = 'berth'; berth.cli.main()"
    for python in (sys.executable, "/usr/bin/python3"):
        try:
            can = subprocess.run(
                [*user, python, "-c", "import berth.cli.partition"],
                env={"PYTHONPATH": path},
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if can.returncode == 0:
            args = [python, "-c", program, "partition", "inject"]
            return {"path": python, "args": args, "more": f"PYTHONPATH={path}"}
    pytest.skip("no Python that another user may run, with what berth needs")


def test_a_rootless_container_gets_its_partition_by_the_hook(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """runc as a user without privileges, in a user namespace; the partition is the operator's."""
    if shutil.which("runc") is None or shutil.which("setpriv") is None or os.geteuid() != 0:
        pytest.skip("no runc or setpriv, or not root")
    user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", "env"]
    name = made_partition(card, monkeypatch, 12345)
    card.folder.chmod(0o755)
    (card.folder / "shared").chmod(0o777)
    bundle = card.folder / "own"
    root_file_system(card, bundle / "rootfs")
    subprocess.run(["chown", "-R", "12345:12345", bundle], check=True)
    subprocess.run([*user, "runc", "spec", "--rootless"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"] |= {"terminal": False, "args": ["/bin/true"]}
    config["root"]["readonly"] = False
    shared = {"destination": "/card", "source": str(card.folder / "shared"), "type": "bind"}
    config["mounts"].append(shared | {"options": ["rw", "rbind"]})
    config["process"]["env"] += INSIDE

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        config["process"]["args"] = list(command)
        (bundle / "config.json").write_text(json.dumps(config))
        words = [*user, "runc", "--root", str(bundle / "state"), "run", "-b", str(bundle), f"{name}-own"]
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)

    plain = run("/bin/echo")
    if plain.returncode != 0:
        pytest.skip(f"runc cannot start a rootless container here: {plain.stderr[-300:]}")
    hooked(card, name, config)
    (hook,) = config["hooks"]["createContainer"]
    for_all = command_for_all_users(user)
    hook["env"].append(for_all.pop("more"))
    hook |= for_all
    for command, said in (("total", "64\n"), ("linear", "")):
        ran = run("/opt/check", command)
        assert (ran.returncode, ran.stdout) == (0, said), ran.stderr
