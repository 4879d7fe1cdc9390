"""A real kubelet with containerd and runc on this machine, over a real API server: one node named `here`.

The device plugins' folder is /var/lib/kubelet/device-plugins wherever the kubelet's other files are, so the whole of
/var/lib/kubelet is the test's; where there is one already, the test skips. One test at a time has it: `kubelets_turn`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.live.kubernetes.server import VERSION

ROOT = Path(__file__).resolve().parents[4]
KUBELET_FOLDER = Path("/var/lib/kubelet")
LOGS = Path("/var/log/pods")
CONTAINERD = """version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/berth-test:1"
  disable_tcp_service = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/../cdi"]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "{snapshotter}"
    default_runtime_name = "runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    BinaryName = "{runc}"
"""
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "address": "127.0.0.1",
    "port": 20250, "readOnlyPort": 0, "healthzPort": 20248, "healthzBindAddress": "127.0.0.1",
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}, "x509": {}},
    "authorization": {"mode": "AlwaysAllow"}, "cgroupDriver": "cgroupfs", "failSwapOn": False,
    "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    "imageGCHighThresholdPercent": 100, "resolvConf": "", "nodeStatusUpdateFrequency": "1s",
    "syncFrequency": "2s", "maxPods": 200, "registerWithTaints": [], "failCgroupV1": False, "oomScoreAdj": 0,
}  # fmt: skip
CNI = {
    "cniVersion": "0.4.0", "name": "berth-test", "plugins": [{
        "type": "ptp", "ipam": {"type": "host-local", "subnet": "10.88.77.0/24", "dataDir": "{folder}/ipam"},
    }],
}  # fmt: skip


def programs() -> str:
    """What is missing of the programs; empty if nothing is."""
    needed = ("containerd", "ctr", "runc", "busybox", "containerd-shim-runc-v2")
    missing = [name for name in needed if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if not Path("/usr/lib/cni/ptp").exists():
        missing.append("containernetworking-plugins")
    if kubelet() is None and os.environ.get("CI"):
        subprocess.run([ROOT / "tests/live/kubernetes/build_server.sh", "kubelet"], check=True, timeout=3600)
    if kubelet() is None:
        missing.append("kubelet (tests/live/kubernetes/build_server.sh kubelet)")
    if KUBELET_FOLDER.exists():
        return f"{KUBELET_FOLDER} is another kubelet's"
    return f"missing: {', '.join(missing)}" if missing else ""


def kubelet() -> Path | None:
    """The real kubelet: of KUBEBUILDER_ASSETS, or built."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth-tests"
    folders = [os.environ.get("KUBEBUILDER_ASSETS"), cache / f"kubernetes-{VERSION}"]
    found = [Path(folder) / "kubelet" for folder in folders if folder]
    return next((path for path in found if path.exists()), None)


def image(path: Path) -> None:
    """An image of busybox, the C library and the driver's test programs, which waits as a pause container does."""
    native = ROOT / "build" / "native"
    files = {"bin/busybox": Path(str(shutil.which("busybox"))), "opt/check": native / "check"}
    for program in [*files.values(), native / "libberth.so"]:
        listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files |= {
            word.lstrip("/"): Path(word)
            for word in listed.split()
            if word.startswith("/") and "fake" not in word
        }
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "etc", "proc", "dev", "tmp", "run", "sys", "opt"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        for name, source in sorted(files.items()):
            tar.add(source.resolve(), name)
        for name in ("sh", "sleep", "cat", "env", "echo", "ls", "grep", "dd"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    data = layer.getvalue()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Cmd": ["/bin/sleep", "1000000"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [digest]},
    }).encode()  # fmt: skip
    manifest = [{"Config": "config.json", "RepoTags": ["localhost/berth-test:1"], "Layers": ["layer.tar"]}]
    with tarfile.open(path, "w") as tar:
        for name, content in (
            ("manifest.json", json.dumps(manifest).encode()), ("config.json", config), ("layer.tar", data),
        ):  # fmt: skip
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


class RealNode:
    """containerd and a kubelet."""

    def __init__(self, folder: Path, kubeconfig: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.folder, self._kubeconfig = folder, kubeconfig
        self._settings = {**KUBELET, **(settings or {})}
        """Of the kubelet."""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.socket = folder / "ct" / "containerd.sock"
        self._logs: set[Path] = set()
        """Of pods that are not the test's."""

    def start(self) -> None:
        """Start both, with the image there."""
        made = self.folder / "ct"
        self._logs = set(LOGS.glob("*"))
        (made / "cni").mkdir(parents=True)
        (made / "cni" / "10-test.conflist").write_text(json.dumps(CNI).replace("{folder}", str(made)))
        runc = shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin")
        (made / "config.toml").write_text(
            CONTAINERD.replace("{folder}", str(made))
            .replace("{runc}", str(runc))
            .replace("{snapshotter}", "native")
        )
        self._run("containerd", "containerd", "--config", str(made / "config.toml"))
        self._until(self.socket.exists)
        image(made / "image.tar")
        # From containerd 2 on its transfer service would unpack it, which is set up for one snapshotter.
        local = ["--local"] if "--local" in self.ctr("images", "import", "--help") else []
        self.ctr("images", "import", *local, "--snapshotter", "native", str(made / "image.tar"))
        self.start_kubelet()

    def ctr(self, *words: str) -> str:
        command = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start_kubelet(self) -> None:
        """Start the kubelet alone."""
        settings = {**self._settings, "containerRuntimeEndpoint": f"unix://{self.socket}"}
        (self.folder / "kubelet.yaml").write_text(json.dumps(settings))
        self._run(
            "kubelet", str(kubelet()), f"--config={self.folder}/kubelet.yaml", f"--kubeconfig={self._kubeconfig}",
            "--hostname-override=here", "--v=2",
        )  # fmt: skip

    def stop_kubelet(self) -> None:
        """Kill the kubelet; its containers run on."""
        process = self._processes.pop("kubelet")
        process.kill()
        process.wait()

    def said(self, name: str) -> str:
        """The end of what a process wrote."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else f"no {name} was started"

    def close(self) -> None:
        """End all of it, containers too."""
        if "kubelet" in self._processes:
            self.stop_kubelet()
        if self.socket.exists() and "containerd" in self._processes:
            for task in self.ctr("tasks", "list", "--quiet").split():
                subprocess.run(
                    ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", "tasks", "delete", "--force", task],
                    capture_output=True, check=False, timeout=300,
                )  # fmt: skip
        for process in self._processes.values():
            process.terminate()
            process.wait()
        self._unmount()
        shutil.rmtree(KUBELET_FOLDER, ignore_errors=True)
        for path in set(LOGS.glob("*")) - self._logs:
            shutil.rmtree(path)
        for group in Path("/sys/fs/cgroup").glob("*/kubepods"):
            for place in sorted((each for each in group.rglob("*") if each.is_dir()), reverse=True):
                place.rmdir()
            group.rmdir()

    def _unmount(self) -> None:
        for _ in range(3):
            mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
            for place in reversed(mounts):
                if place.startswith((str(self.folder), str(KUBELET_FOLDER))):
                    subprocess.run(["umount", "-l", place], capture_output=True, check=False)

    def _run(self, name: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            environment: dict[str, Any] = {**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
            self._processes[name] = subprocess.Popen(words, stdout=log, stderr=log, env=environment)

    def _until(self, is_so: Any, patience_s: float = 60) -> None:
        end = time.monotonic() + patience_s
        while not is_so():
            assert time.monotonic() < end, self.said("containerd")
            time.sleep(0.1)
