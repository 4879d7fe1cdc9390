"""Ways to a cluster: kubeconfigs of all kinds, the inside of a pod, and what is wrong with others."""

from __future__ import annotations

import base64
import ssl
import subprocess
from pathlib import Path

import pytest
import yaml

from berth.errors import ApiError, KubernetesError
from berth.live.kubernetes.access import find_access, from_kubeconfig, in_cluster


def kubeconfig(folder: Path, user: dict[str, object], cluster: dict[str, object] | None = None) -> Path:
    path = folder / "config"
    body = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/", **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(body))
    return path


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    made = tmp_path / "tls.crt", tmp_path / "tls.key"
    words = "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=berth"
    subprocess.run(
        ["openssl", *words.split(), "-out", made[0], "-keyout", made[1]], check=True, capture_output=True
    )
    return made


def test_a_kubeconfig_gives_server_token_and_namespace_and_prints_no_secret(tmp_path: Path) -> None:
    access = from_kubeconfig(kubeconfig(tmp_path, {"token": "s3cret"}))
    assert (access.server, access.token(), access.namespace) == ("https://10.0.0.1:6443", "s3cret", "team")
    assert access.tls.verify_mode is ssl.CERT_REQUIRED
    assert "s3cret" not in repr(access)


def test_a_token_file_and_certificates_inline_or_in_files_are_read(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    (tmp_path / "token").write_text("from-file\n")
    access = from_kubeconfig(
        kubeconfig(tmp_path, {"tokenFile": "token"}, {"certificate-authority": str(certificate[0])})
    )
    assert access.token() == "from-file"
    assert len(access.tls.get_ca_certs()) == 1
    data = {
        f"client-{name}-data": base64.b64encode(path.read_bytes()).decode()
        for name, path in zip(("certificate", "key"), certificate, strict=True)
    }
    assert from_kubeconfig(kubeconfig(tmp_path, data)).token() == ""


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"exec": {"command": "aws"}}, {}, "signs in by exec, which berth does not run"),
        ({"token": "t"}, {"server": "http://10.0.0.1"}, "over TLS only"),
        ({"client-certificate": "none.crt", "client-key": "none.key"}, {}, "cannot be used"),
    ],
)
def test_what_cannot_be_used_is_named(
    tmp_path: Path, user: dict[str, object], cluster: dict[str, object], said: str
) -> None:
    with pytest.raises(KubernetesError, match=said):
        from_kubeconfig(kubeconfig(tmp_path, user, cluster))


@pytest.mark.parametrize("text", ["words", "[1, 2]", "contexts: [words]", "contexts: 3"])
def test_a_file_of_another_form_is_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd"
    path.write_text(text)
    with pytest.raises(KubernetesError, match="odd is no kubeconfig: it has no clusters, users and contexts"):
        from_kubeconfig(path)


def test_a_context_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(KubernetesError, match="no context 'other'; there are c"):
        from_kubeconfig(kubeconfig(tmp_path, {"token": "t"}), "other")


def test_inside_a_pod_the_service_account_speaks(
    tmp_path: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "namespace").write_text("berth-system")
    certificate[0].rename(tmp_path / "ca.crt")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(KubernetesError, match="not inside a pod"):
        in_cluster(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = in_cluster(tmp_path)
    assert (access.server, access.token(), access.namespace) == (
        "https://[fd00::1]:443",
        "of-the-pod",
        "berth-system",
    )


def test_without_any_cluster_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubernetesError, match="name one by --kubeconfig or KUBECONFIG"):
        find_access()


def test_a_server_that_does_not_answer_has_no_status_in_its_error() -> None:
    assert str(ApiError("GET /api", 0, "Unreachable", "no route")) == "GET /api: Unreachable: no route"
    assert str(ApiError("GET /api", 403, "Forbidden", "no")) == "GET /api: 403 Forbidden: no"
