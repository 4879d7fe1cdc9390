"""The compiled interfaces are those of the .proto files, and the .proto files those that Kubernetes publishes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from berth.live.kubernetes.apis.services import dra_v1, dra_v1beta1, plugins, pod_resources, registration

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "src" / "berth" / "live" / "kubernetes" / "apis"


def test_the_compiled_files_are_what_the_compiler_makes_now(tmp_path: Path) -> None:
    protos = sorted(FOLDER.glob("*.proto"))
    words = ["-I", str(ROOT / "src"), f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", *map(str, protos)]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *words], check=True)
    made = {path.name: path.read_text() for path in tmp_path.rglob("*_pb2.py*")}
    kept = {path.name: path.read_text() for path in FOLDER.glob("*_pb2.py*")}
    assert len(protos) == 5
    assert made == kept, "run: make apis"


def fields(message: Descriptor) -> str:
    return " ".join(f"{each.name}={each.number}{_kind(each)}" for each in message.fields)


def _kind(each: FieldDescriptor) -> str:
    kind = {
        FieldDescriptor.TYPE_MESSAGE: "m",
        FieldDescriptor.TYPE_BOOL: "b",
        FieldDescriptor.TYPE_INT32: "i",
    }
    return kind.get(each.type, "s") + ("*" if each.is_repeated else "")


PUBLISHED = {
    "v1beta1.RegisterRequest": "version=1s endpoint=2s resource_name=3s options=4m",
    "v1beta1.DevicePluginOptions": "pre_start_required=1b get_preferred_allocation_available=2b",
    "v1beta1.ListAndWatchResponse": "devices=1m*",
    "v1beta1.Device": "ID=1s health=2s topology=3m",
    "v1beta1.ContainerPreferredAllocationRequest": (
        "available_deviceIDs=1s* must_include_deviceIDs=2s* allocation_size=3i"
    ),
    "v1beta1.ContainerAllocateRequest": "devices_ids=1s*",
    "v1beta1.PreStartContainerRequest": "devices_ids=1s*",
    "v1beta1.ContainerAllocateResponse": "envs=1m* mounts=2m* devices=3m* annotations=4m* cdi_devices=5m*",
    "v1beta1.Mount": "container_path=1s host_path=2s read_only=3b",
    "v1beta1.DeviceSpec": "container_path=1s host_path=2s permissions=3s",
    "pluginregistration.PluginInfo": "type=1s name=2s endpoint=3s supported_versions=4s*",
    "pluginregistration.RegistrationStatus": "plugin_registered=1b error=2s",
    "k8s.io.kubelet.pkg.apis.dra.v1.Claim": "namespace=1s uid=2s name=3s",
    "k8s.io.kubelet.pkg.apis.dra.v1.Device": (
        "request_names=1s* pool_name=2s device_name=3s cdi_device_ids=4s* share_id=5s"
    ),
    "k8s.io.kubelet.pkg.apis.dra.v1.NodePrepareResourceResponse": "devices=1m* error=2s",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.Device": (
        "request_names=1s* pool_name=2s device_name=3s cdi_device_ids=4s*"
    ),
    "v1.PodResources": "name=1s namespace=2s containers=3m*",
    "v1.ContainerResources": "name=1s devices=2m*",
    "v1.ContainerDevices": "resource_name=1s device_ids=2s*",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_message_has_the_published_fields(name: str) -> None:
    package, _, message = name.rpartition(".")
    (found,) = [
        module.DESCRIPTOR.message_types_by_name[message]
        for module in (dra_v1, dra_v1beta1, plugins, pod_resources, registration)
        if module.DESCRIPTOR.package == package
    ]
    assert fields(found) == PUBLISHED[name]
