"""How to reach a cluster: from a kubeconfig, or from inside a pod."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from berth.errors import KubernetesError, cause_of

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_KEPT_S = 60.0
"""How long a token is used before its file is read again: the kubelet exchanges it."""


@dataclass(frozen=True)
class Access:
    """An API server and the right to ask it. It prints without the token."""

    server: str
    tls: ssl.SSLContext
    token: Callable[[], str] = field(repr=False)
    """The bearer token of the moment; empty: none, a client certificate speaks."""
    namespace: str = "default"
    name: str = ""
    """Of the context or the pod, to be printed."""


def find_access(kubeconfig: str | None = None, context: str | None = None) -> Access:
    """What kubectl would use: the file named, $KUBECONFIG, ~/.kube/config; inside a pod its service account.

    Raises KubernetesError where there is none, or what there is cannot be used.
    """
    asked = kubeconfig or context or os.environ.get("KUBECONFIG")
    if not asked and "KUBERNETES_SERVICE_HOST" in os.environ:
        return in_cluster()
    path = Path(kubeconfig or os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
    if not path.exists():
        raise KubernetesError(
            f"no cluster: there is no kubeconfig {path}; name one by --kubeconfig or KUBECONFIG, or run inside a pod"
        )
    return from_kubeconfig(path, context)


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Access:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").exists():
        raise KubernetesError(f"not inside a pod: no KUBERNETES_SERVICE_HOST, or no token in {folder}")
    host = f"[{host}]" if ":" in host else host
    return Access(
        server=f"https://{host}:{port}",
        tls=ssl.create_default_context(cafile=str(folder / "ca.crt")),
        token=_TokenFile(folder / "token"),
        namespace=_read(folder / "namespace") or "default",
        name="in-cluster",
    )


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """The access that a kubeconfig's context gives, by default its current one."""
    import yaml

    try:
        config = yaml.safe_load(path.read_text("utf-8"))
        name = context or config.get("current-context") or ""
        chosen = _named(config, "contexts", name, "context")
        cluster = _named(config, "clusters", chosen.get("cluster", ""), "cluster")
        user = _named(config, "users", chosen.get("user", ""), "user") if chosen.get("user") else {}
    except (AttributeError, TypeError) as error:
        raise KubernetesError(f"{path} is no kubeconfig: it has no clusters, users and contexts") from error
    except (OSError, yaml.YAMLError) as error:
        raise KubernetesError(f"kubeconfig {path} cannot be read: {cause_of(error)}") from error
    except KeyError as error:
        raise KubernetesError(f"kubeconfig {path}: {error.args[0]}") from error
    server = str(cluster.get("server", ""))
    if not server.startswith("https://"):
        raise KubernetesError(
            f"kubeconfig {path}: server '{server}' of cluster '{chosen.get('cluster')}'; expected https://…, for"
            " berth talks over TLS only"
        )
    odd = [key for key in ("exec", "auth-provider") if key in user]
    if odd:
        raise KubernetesError(
            f"kubeconfig {path}: user '{chosen.get('user')}' signs in by {odd[0]}, which berth does not run; give it a"
            " token (kubectl create token), or a client certificate"
        )
    folder = path.parent
    return Access(
        server=server.rstrip("/"),
        tls=_tls(cluster, user, folder),
        token=_token(user, folder),
        namespace=chosen.get("namespace") or "default",
        name=name,
    )


class _TokenFile:
    """A token that is read again now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._token, self._read_s = "", -1e9

    def __call__(self) -> str:
        if time.monotonic() - self._read_s > TOKEN_KEPT_S:
            self._token, self._read_s = _read(self.path), time.monotonic()
        return self._token


def _token(user: dict[str, Any], folder: Path) -> Callable[[], str]:
    if user.get("tokenFile"):
        return _TokenFile(folder / user["tokenFile"])
    token = str(user.get("token", ""))
    return lambda: token


def _tls(cluster: dict[str, Any], user: dict[str, Any], folder: Path) -> ssl.SSLContext:
    tls = ssl.create_default_context()
    try:
        if authority := _data(cluster, "certificate-authority", folder):
            tls = ssl.create_default_context(cadata=authority.decode("ascii"))
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        _load_certificate(tls, user, folder)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise KubernetesError(f"the certificates of the kubeconfig cannot be used: {error}") from error
    return tls


def _load_certificate(tls: ssl.SSLContext, user: dict[str, Any], folder: Path) -> None:
    """Load the client certificate; ssl takes files alone, so that data goes through one that only we can read."""
    certificate, key = _data(user, "client-certificate", folder), _data(user, "client-key", folder)
    if not certificate or not key:
        return
    handle = os.memfd_create("client-certificate")
    try:
        os.write(handle, certificate + b"\n" + key)
        tls.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


def _data(holder: dict[str, Any], key: str, folder: Path) -> bytes:
    if inline := holder.get(f"{key}-data"):
        return base64.b64decode(inline)
    return (folder / holder[key]).read_bytes() if holder.get(key) else b""


def _named(config: dict[str, Any], of: str, name: str, field_name: str) -> dict[str, Any]:
    for each in config.get(of) or []:
        if each.get("name") == name:
            found: dict[str, Any] = each.get(field_name) or {}
            return found
    there = ", ".join(str(each.get("name")) for each in config.get(of) or [])
    raise KeyError(f"no {field_name} '{name}'; there are {there or 'none'}")


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""
