"""A real API server with its etcd, on loopback: from `KUBEBUILDER_ASSETS`, or from what `build_server.sh` built.

Kubernetes' own scheduler runs beside it for the tests that need one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_ports

HERE = Path(__file__).parent
VERSION = re.findall(r"k8s.io/kubernetes v([\d.]+)", (HERE / "servers" / "go.mod").read_text())[0]
USERS = {
    "admintoken": ("admin", "system:masters"),
    "steerertoken": ("system:serviceaccount:berth-system:berth-steerer", "system:serviceaccounts"),
    "nodetoken": ("system:serviceaccount:berth-system:berth-node", "system:serviceaccounts"),
    "nobodytoken": ("nobody", ""),
}
"""Tokens of this server, and which users they are."""


@dataclass(frozen=True)
class Assets:
    """The programs that a server is made of."""

    apiserver: Path
    etcd: Path
    version: str


def find_assets() -> Assets | str:
    """The programs, or why there are none. Where CI is set, they are built if need be."""
    named = os.environ.get("KUBEBUILDER_ASSETS")
    etcd = shutil.which("etcd", path=f"{named}:{os.environ['PATH']}" if named else None)
    if etcd is None:
        return "no etcd; apt-get install etcd-server"
    if named:
        server = Path(named) / "kube-apiserver"
        return (
            _assets(server, Path(etcd)) if server.exists() else f"no {server}, which KUBEBUILDER_ASSETS names"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    built = cache / "berth-tests" / f"kubernetes-{VERSION}" / "kube-apiserver"
    if not built.exists() and os.environ.get("CI"):
        done = subprocess.run([HERE / "build_server.sh"], capture_output=True, text=True)
        if done.returncode:
            return f"build_server.sh failed: {done.stderr[-2000:]}"
    if not built.exists():
        return (
            f"no kube-apiserver in {built.parent}; run {HERE / 'build_server.sh'}, or set KUBEBUILDER_ASSETS"
        )
    return _assets(built, Path(etcd))


def _assets(apiserver: Path, etcd: Path) -> Assets:
    said = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=True).stdout
    return Assets(apiserver, etcd, said.strip())


class Server:
    """One API server with RBAC, without controllers: what is posted stays as it is."""

    def __init__(self, assets: Assets, folder: Path) -> None:
        self.assets = assets
        self.folder = folder
        self.port, self.etcd_port, peer = free_ports(3)
        self._peer = peer
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokens.csv").write_text(
            "".join(f'{token},{user},{user},"{groups}"\n' for token, (user, groups) in USERS.items())
        )
        users = [user for user, groups in USERS.values() if groups == "system:serviceaccounts"]
        audited = {"level": "Metadata", "users": users, "omitStages": ["RequestReceived"]}
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [audited, {"level": "None"}]}
        (folder / "audit.yaml").write_text(json.dumps(policy))
        subprocess.run(
            ["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True
        )

    def is_at_least(self, minor: int) -> bool:
        """Whether it is Kubernetes 1.`minor` or later."""
        return int(self.assets.version.split(".")[1]) >= minor

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def audit(self) -> Path:
        """What berth's service accounts asked of it, a line each."""
        return self.folder / "audit.log"

    def rights_used(self, user: str) -> set[tuple[str, str]]:
        """Resource and verb of all that a service account was allowed so far."""
        found = set()
        for line in self.audit.read_text().splitlines() if self.audit.exists() else ():
            told = json.loads(line)
            of = told.get("objectRef", {})
            if told["user"]["username"].endswith(f":{user}") and "resource" in of:
                assert told.get("responseStatus", {}).get("code") != 403, told
                resource = "/".join(filter(None, (of["resource"], of.get("subresource"))))
                found.add((resource, told["verb"]))
        return found

    def kubeconfig(self, token: str = "admintoken") -> Path:
        """A kubeconfig for the user of this token. It is written once: a program that has just started may read it."""
        path = self.folder / f"{token}.kubeconfig"
        if path.exists():
            return path
        path.write_text(
            f"""apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "{self.url}", insecure-skip-tls-verify: true}}}}]
users: [{{name: u, user: {{token: {token}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""
        )
        return path

    def start(self) -> None:
        """Start etcd and the API server, and wait until it is ready."""
        etcd = f"http://127.0.0.1:{self.etcd_port}"
        peer = f"http://127.0.0.1:{self._peer}"
        self._start(
            "etcd", self.assets.etcd, "--data-dir", self.folder / "etcd", "--unsafe-no-fsync",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--quota-backend-bytes", "8589934592",
        )  # fmt: skip
        self.start_api()

    def start_api(self) -> None:
        """Start the API server alone, and wait until it is ready."""
        key = self.folder / "sa.key"
        self._start(
            "api", self.assets.apiserver, f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", f"--secure-port={self.port}",
            f"--cert-dir={self.folder}/certs", "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            f"--token-auth-file={self.folder}/tokens.csv", "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            f"--audit-policy-file={self.folder}/audit.yaml", f"--audit-log-path={self.audit}",
            "--max-requests-inflight=3000", "--max-mutating-requests-inflight=1000",
        )  # fmt: skip
        self._until_ready()

    def stop_api(self, how: int = signal.SIGTERM) -> None:
        """Stop the API server alone; etcd keeps what there is."""
        process = self._processes.pop("api")
        process.send_signal(how)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill_scheduler(self) -> None:
        """Kill kube-scheduler as a machine that loses power does."""
        process = self._processes.pop("scheduler")
        process.kill()
        process.wait()

    @contextlib.contextmanager
    def etcd_stalls(self) -> Iterator[None]:
        """etcd answers nothing within, as if its disk hung; requests to the API server wait."""
        process = self._processes["etcd"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def start_scheduler(self, *, qps: int = 50) -> str:
        """Start kube-scheduler if it does not run yet. Returns why there is none; empty if it runs. `qps`: the requests
        a second that it may send, 50 by its own default."""
        if "scheduler" in self._processes:
            return ""
        program = self.assets.apiserver.with_name("kube-scheduler")
        if not program.exists() and os.environ.get("CI") and "KUBEBUILDER_ASSETS" not in os.environ:
            subprocess.run([HERE / "build_server.sh", "kube-scheduler"], capture_output=True, check=True)
        if not program.exists():
            return f"no {program}; run {HERE / 'build_server.sh'} kube-scheduler"
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 1,
            "clientConnection": {"kubeconfig": str(self.kubeconfig()), "qps": qps, "burst": 2 * qps},
        }  # fmt: skip
        (self.folder / "scheduler.json").write_text(json.dumps(config))
        self._start("scheduler", program, f"--config={self.folder / 'scheduler.json'}", "--secure-port=0")
        return ""

    def start_jobs(self) -> str:
        """Start the controller of Jobs. Returns why there is none; empty if it runs."""
        program = self.assets.apiserver.with_name("kube-controller-manager")
        if not program.exists():
            return f"no {program}; run {HERE / 'build_server.sh'} kube-controller-manager"
        options = ["--controllers=job-controller", "--leader-elect=false", "--secure-port=0"]
        self._start("controllers", program, f"--kubeconfig={self.kubeconfig()}", *options)
        return ""

    def stop(self) -> None:
        """Stop all."""
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()
        self._processes.clear()

    def processor_s(self) -> dict[str, float]:
        """Processor time that each program has used since it started, seconds."""
        return {name: processor_s(process) for name, process in self._processes.items()}

    def _start(self, name: str, *words: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(list(map(str, words)), stdout=log, stderr=log)

    def _until_ready(self, patience_s: float = 300) -> None:
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admintoken"})
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if self._processes["api"].poll() is not None:
                break
            try:
                with urllib.request.urlopen(request, context=tls, timeout=60) as reply:
                    if reply.status == 200:
                        return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"the API server is not ready: {(self.folder / 'api.log').read_text()[-3000:]}")


def processor_s(process: subprocess.Popen[bytes]) -> float:
    """Processor time that a program has used since it started, seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system
