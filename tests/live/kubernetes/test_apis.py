"""The messages of the kubelet's interfaces have the fields that Kubernetes publishes."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from berth.live.kubernetes.apis import dra, plugins, pod_resources, registration


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
    "v1.PodResources": "name=1s namespace=2s containers=3m*",
    "v1.ContainerResources": "name=1s devices=2m*",
    "v1.ContainerDevices": "resource_name=1s device_ids=2s*",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_message_has_the_published_fields(name: str) -> None:
    message = name.rpartition(".")[2]
    packages = (dra, plugins, pod_resources, registration)
    classes = [vars(each)[message].DESCRIPTOR for each in packages if message in vars(each)]
    (found,) = [each for each in classes if each.full_name == name]
    assert fields(found) == PUBLISHED[name]


def test_what_a_message_says_comes_back_over_the_wire() -> None:
    said = plugins.ContainerAllocateResponse(envs={"A": "1"}, annotations={"b": "2"})
    said.mounts.add(container_path="/in", host_path="/out", read_only=True)
    assert plugins.ContainerAllocateResponse.FromString(said.SerializeToString()) == said
    # field 1, length 6: key "A", value "1", as protoc's encoders write a map
    assert said.SerializeToString().startswith(b"\x0a\x06\x0a\x01A\x12\x011")
    device = dra.Device(device_name="gpu-0")
    assert not device.HasField("share_id")
    assert dra.Device(share_id="").HasField("share_id")
