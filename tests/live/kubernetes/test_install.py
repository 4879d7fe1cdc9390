"""What is installed can be put on a real cluster, gives the steerer the rights that it uses, and no others."""

from __future__ import annotations

import asyncio
import csv
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from berth.cli import kubernetes
from berth.cli.app import app
from berth.console.sources.kubernetes import KubernetesSource
from berth.errors import ApiError, KubernetesError, MissingExtraError, PolicyError, SettingError
from berth.live.driver.snapshot import Snapshot
from berth.live.kubernetes import client, names, tenants
from berth.live.kubernetes.access import from_kubeconfig
from berth.live.kubernetes.client import Api
from berth.live.kubernetes.installing import apply
from berth.live.kubernetes.manifests import TEMPLATE, Install, helm_chart, manifests
from berth.live.local.request import SHARED_MILLI
from tests.every_policy import some
from tests.live.kubernetes.conftest import Played
from tests.live.kubernetes.server import Server
from tests.live.kubernetes.world import World

IMAGE = "registry.example/berth:1"
DISCOVERY = re.compile(r"/apis/[^/]+(/v[^/]+)?")
NOT_SERVED = {"scheduling.x-k8s.io"}
"""An API group that a server may lack, of which the steerer asks no more than whether it has it."""
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


def berth(*words: str, kubeconfig: Path | None = None) -> Any:
    """Run a command as an operator does, in this process."""
    environment = {"KUBECONFIG": str(kubeconfig or ""), "COLUMNS": "150"}
    return CliRunner().invoke(app, ["k8s", *words], env=environment)


def nowhere(folder: Path) -> Path:
    """A kubeconfig of a port on which no server listens."""
    path = folder / "kubeconfig"
    path.write_text("""
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
""")
    return path


def right(method: str, path: str, params: dict[str, str]) -> tuple[str, str]:
    """The resource and verb of a request."""
    words = [word for word in re.sub(r"^/apis?/([^/]+\.[^/]+/)?v\d+", "", path).split("/") if word]
    named = len(words)
    if words[:1] == ["namespaces"] and len(words) > 2:
        words = words[2:]
        named = len(words)
    resource = words[0] if words else ""
    if named == 3:
        resource = f"{words[0]}/{words[2]}"
    verb = VERBS[method]
    if verb == "get" and named == 1:
        verb = "watch" if params.get("watch") else "list"
    return resource, verb


@pytest.mark.slow
@pytest.mark.usefixtures("kube_scheduler")
def test_the_steerer_has_every_right_that_it_uses_and_no_other(
    play: Played, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: set[tuple[str, str]] = set()
    opened, asked = Api._open, Api._once

    def note(self: Api, method: str, path: str, **keywords: Any) -> Any:
        if "steerer" in self._agent and not DISCOVERY.fullmatch(path):
            used.add(right(method, path, keywords.get("params") or {}))
        return opened(self, method, path, **keywords)

    async def lose_first(self: Api, method: str, path: str, *rest: Any) -> bytes:
        is_first = ("pods", "patch") not in used
        answer = await asked(self, method, path, *rest)
        if method == "PATCH" and ("pods", "patch") in used and is_first:
            raise ApiError(path, 0, "Unreachable", "the answer is lost", 0.0)
        return answer

    async def test(world: World) -> None:
        for each in [each for made in manifests(Install(IMAGE)).values() for each in made]:
            what = f"{each['kind']} {each['metadata']['name']}"
            if "AdmissionPolicy" in each["kind"]:  # they would hold for what other tests write
                continue
            assert await apply(world.api, each) in (f"{what} made", f"{what} is up to date")
            assert "is up to date" in await apply(world.api, each)
        await world.node("n1", 1)
        meta = {"name": names.TENANTS}
        path = f"/api/v1/namespaces/{names.NAMESPACE}/configmaps"
        await world.make(path, {"kind": "ConfigMap", "metadata": meta})
        await world.pod("low")
        monkeypatch.setattr(Api, "_open", note)
        monkeypatch.setattr(Api, "_once", lose_first)
        async with world.steerer(
            token="steerertoken", elect=True, policy="preempt+fifo+best-fit", agent="steerer"
        ):
            await world.until_bound("low")
            await world.pod("waits")
            await world.until_told("waits", "room")
            body = {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
            path = "/apis/scheduling.k8s.io/v1/priorityclasses"
            await world.api.request("POST", path, {"apiVersion": "scheduling.k8s.io/v1", **body})
            await world.until("the class is known", lambda: world.pod("high", priorityClassName="high"))
            await world.until_bound("high")
            await world.until_event("Preempted", "low")

            async def renewed() -> bool:
                return ("leases", "update") in used

            await world.until("the lease is renewed", renewed)

            async def noted() -> bool:
                return ("configmaps", "patch") in used

            await world.until("what is in force is noted", noted)
        await world.api.request("DELETE", f"{path}/high")

    play(test)
    given = {
        (resource, verb)
        for made in manifests(Install(IMAGE, gathers=False))["steerer-rights"]
        for rule in made.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if not NOT_SERVED & set(rule["apiGroups"])
    }
    assert used == given


@pytest.mark.usefixtures("kube_scheduler")
def test_without_its_rights_the_steerer_says_which_it_lacks_and_goes_on_when_it_has_them(
    play: Played, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 1)
        await world.pod("a")
        rights = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        async with world.steerer(token="nobodytoken"):

            async def said() -> bool:
                return '"nobody" cannot list resource "nodes"' in caplog.text

            await world.until("it says what it lacks", said)
            binding = {
                "apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "test-nobody"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
                "subjects": [{"kind": "User", "name": "nobody"}],
            }  # fmt: skip
            await world.api.request("POST", rights, binding)
            try:
                await world.until_bound("a")
            finally:
                await world.api.request("DELETE", f"{rights}/test-nobody")

    play(test)


def test_the_chart_is_what_is_applied(tmp_path: Path) -> None:
    options = "--image", IMAGE, "--policy", "learned", "--mode", "place"
    done = berth("install", "--write", str(tmp_path), *options)
    assert done.exit_code == 0, done.output
    said = berth("install", "--dry-run", *options).stdout
    applied = manifests(Install(IMAGE, policy="learned", mode="place")).values()
    assert list(yaml.safe_load_all(said)) == [each for made in applied for each in made]
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert (values["policy"], values["replicas"]) == ("learned", 2)
    template = (tmp_path / "templates" / "steerer.yaml").read_text()
    assert {"image", "policy", "mode", "knowledge", "replicas"} == set(
        re.findall(r"\.Values\.(\w+)", template)
    )
    assert names.NAMESPACE not in template


def test_the_manifests_say_no_name_that_the_programs_do_not_use() -> None:
    told = TEMPLATE.read_text()
    words = set(re.findall(r"(?<![\w.])berth\.dev/[\w-]+", told)) - {"berth.dev/gpus"}  # the operator's label
    assert words == words & {each for each in vars(names).values() if isinstance(each, str)}
    assert f"? {SHARED_MILLI} : int(variables.milli)" in told
    assert f"? '{SHARED_MILLI}' : '1000'" in told


def test_steerers_are_apart_and_leave_one_at_a_time_and_an_agent_that_hangs_starts_anew() -> None:
    made = manifests(Install(IMAGE))
    deployment, budget = made["steerer"]
    pod = deployment["spec"]["template"]
    (apart,) = pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert apart["podAffinityTerm"]["labelSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert budget["kind"] == "PodDisruptionBudget"
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": pod["metadata"]["labels"]}}
    steerer = pod["spec"]["containers"][0]
    asks = steerer["livenessProbe"]["exec"]["command"][-1]
    assert steerer["command"][-2:] == ["--alive-file", "/tmp/alive"]
    assert "find /tmp/alive -mmin -2" in asks
    (agent,) = made["node"][0]["spec"]["template"]["spec"]["containers"]
    assert agent["livenessProbe"]["httpGet"] == {"path": "/metrics", "port": agent["ports"][0]["name"]}


def test_the_pods_of_the_steerer_pass_the_restricted_rules() -> None:
    pod = manifests(Install(IMAGE))["steerer"][0]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_the_chart_keeps_every_option_and_its_release_may_have_any_namespace() -> None:
    install = Install(
        IMAGE,
        right_size="advise",
        replicas=3,
        fake_gpus="2xA100-80G",
        claims=True,
        grow="suspend",
        uncounted="throttle",
    )
    chart = helm_chart(install, "1")
    assert "advise" in chart["templates/steerer.yaml"]
    assert {"2xA100-80G", "all", "--grow", "suspend", "--uncounted", "throttle"} <= set(
        re.findall(r"- ([\w-]+)$", chart["templates/node.yaml"], re.MULTILINE)
    )
    assert "templates/device-class.yaml" in chart
    assert yaml.safe_load(chart["values.yaml"])["replicas"] == 3
    assert not [name for name, text in chart.items() if names.NAMESPACE in text]
    assert "metadata.namespace" in chart["templates/steerer.yaml"]  # where the Lease is


@pytest.mark.slow
def test_the_history_is_gathered_beside_the_steerer_and_kept_by_a_claim_of_the_operators() -> None:
    def parts(*words: str) -> tuple[Any, Any]:
        done = berth("install", "--image", IMAGE, "--dry-run", *words)
        assert done.exit_code == 0, done.output
        made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
        return made["Deployment", "berth-steerer"]["spec"], made["Role", "berth-steerer"]["rules"]

    spec, rules = parts("--history-claim", "kept")
    pod = spec["template"]["spec"]
    reads, gathers = pod["containers"]
    assert gathers["command"] == ["berth", "k8s", "history", names.HISTORY_FOLDER, "--follow"]
    assert f"history?begin={names.HISTORY_FOLDER}" in reads["command"]
    mounts = [each["volumeMounts"][-1] for each in (gathers, reads)]
    assert mounts == [
        {"name": "history", "mountPath": names.HISTORY_FOLDER},
        {"name": "history", "mountPath": names.HISTORY_FOLDER, "readOnly": True},
    ]
    assert pod["volumes"][-1] == {"name": "history", "persistentVolumeClaim": {"claimName": "kept"}}
    assert (pod["securityContext"]["fsGroup"], spec["strategy"]) == (65534, {"type": "Recreate"})
    assert {"apiGroups": [""], "resources": ["pods/proxy"], "verbs": ["get"]} in rules
    spec, _ = parts()
    assert spec["template"]["spec"]["volumes"][-1] == {"name": "history", "emptyDir": {}}
    spec, rules = parts("--knowledge", "user")
    assert len(spec["template"]["spec"]["containers"]) == 1
    assert not [each for each in rules if "pods/proxy" in each["resources"]]
    refused = berth(
        "install", "--image", IMAGE, "--dry-run", "--knowledge", "user", "--history-claim", "kept"
    )
    assert isinstance(refused.exception, SettingError)
    assert "--history-claim 'kept'" in str(refused.exception)


def test_quotas_become_the_config_map_of_tenants_and_a_policy_without_them_is_refused() -> None:
    words = (
        "install",
        "--image",
        IMAGE,
        "--dry-run",
        "--quota",
        "team-a=8,team-b=4",
        "--borrow",
        "--reclaim",
    )
    done = berth(*words, "--policy", "priority+best-fit")
    made = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    quotas = {"quotas": "team-a=8,team-b=4", "borrow": "true", "reclaim": "true"}
    assert made["ConfigMap", names.TENANTS]["data"] == quotas
    refused = berth(*words)
    assert isinstance(refused.exception, PolicyError)
    assert "has no quotas" in str(refused.exception)


def test_a_quota_that_makes_no_sense_is_answered_with_the_form_that_is_expected() -> None:
    refused = berth("install", "--image", IMAGE, "--dry-run", "--quota", "team-a:8")
    expected = "quota 'team-a:8' is not NAMESPACE=GPUS, such as vision=8 or vision+speech=8"
    assert expected in str(refused.exception)


def test_no_image_is_run_that_was_not_named() -> None:
    done = berth("install", "--dry-run")
    assert done.exit_code == 2
    assert "--image" in done.output


class Older:
    """A server of Kubernetes 1.35, on which the namespace of berth has this metadata."""

    def __init__(self, **namespace: str) -> None:
        self.namespace = namespace
        self.asked: list[str] = []

    async def request(self, _: Api, method: str, path: str, *__: Any, **___: Any) -> bytes:
        """What it answers."""
        self.asked.append(f"{method} {path}")
        if path.endswith("/namespaces/berth-system") and self.namespace:
            return json.dumps({"metadata": self.namespace}).encode()
        if path.endswith("/v1"):
            return b'{"resources": [{"name": "mutatingwebhookconfigurations"}]}'
        raise ApiError(path, 404, "NotFound", "there is none")


def on(server: Older, monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str) -> Any:
    """What comes of `install` there."""

    async def request(api: Api, *args: Any, **more: Any) -> bytes:
        return await server.request(api, *args, **more)

    monkeypatch.setattr(Api, "request", request)
    return berth("install", "--image", IMAGE, *words, kubeconfig=nowhere(folder))


def test_a_dry_run_asks_the_cluster_what_adds_the_gate_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kubernetes, "_certificate", lambda: ("Y2VydA==", "a2V5"))
    done = on(server := Older(), monkeypatch, tmp_path, "--dry-run")
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout)}
    assert ("MutatingWebhookConfiguration" in kinds, "MutatingAdmissionPolicy" in kinds) == (True, False)
    assert [each for each in server.asked if not each.startswith("GET ")] == []


def test_a_dry_run_without_a_cluster_is_for_kubernetes_1_36_which_is_said(tmp_path: Path) -> None:
    done = berth("install", "--image", IMAGE, "--dry-run", kubeconfig=tmp_path / "none")
    kinds = {each["kind"] for each in yaml.safe_load_all(done.stdout)}
    assert ("MutatingWebhookConfiguration" in kinds, "MutatingAdmissionPolicy" in kinds) == (False, True)
    assert "this is for Kubernetes 1.36 or later; no cluster was asked: " in done.stderr


def test_nothing_is_made_while_the_namespace_is_being_deleted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = Older(name="berth-system", deletionTimestamp="2026-11-29T12:00:00Z")
    done = on(server, monkeypatch, tmp_path)
    assert "namespace berth-system is still being deleted; run it again when" in str(done.exception)
    assert server.asked == ["GET /version", "GET /api/v1/namespaces/berth-system"]


def test_every_version_of_helm_gets_a_chart_with_a_version() -> None:
    chart = yaml.safe_load(helm_chart(Install(IMAGE), "1.2.3")["Chart.yaml"])
    assert (chart["apiVersion"], chart["version"]) == ("v2", "1.2.3")


@pytest.mark.slow
def test_commands_show_the_cluster_and_place_once(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        await world.node("n1", 2)
        await world.pod("a", milli=250, mem=20_000)
        await world.pod("b", mem=90_000)
        await world.pod("whole")

    play(test)
    kubeconfig = server.kubeconfig()
    done = berth("steerer", "--once", "--no-elect", kubeconfig=kubeconfig)
    assert (done.exit_code, done.stdout) == (0, "placed 2, advised 0, evicted 0, failed 0\n"), done.output
    status = berth("status", "--json", kubeconfig=kubeconfig)
    shown = json.loads(status.stdout)
    assert set(shown) == {field.name for field in fields(Snapshot)}
    tenants = [(each["job"], each["mem_mib"]) for gpu in shown["gpus"] for each in gpu["tenants"]]
    assert tenants == [("default/a", 20_000), ("default/whole", 81_920)]
    assert [job["id"] for job in shown["jobs"] if job["state"] == "waiting"] == ["default/b"]
    listed = berth("status", "--csv", kubeconfig=kubeconfig).stdout
    assert [row["index"] for row in csv.DictReader(listed.splitlines())] == ["0", "1"]
    assert "19.5G of 80G" in berth("status", kubeconfig=kubeconfig).stdout
    assert "1 less than 90000 MiB on a GPU" in berth("why", "b", kubeconfig=kubeconfig).stdout
    told = berth("why", "default/a", kubeconfig=kubeconfig).stdout
    assert told.startswith("default/a is starting on n1 GPU ")
    assert told.strip().endswith("alone")
    missing = berth("why", "nobody", kubeconfig=kubeconfig)
    assert isinstance(missing.exception, KubernetesError)
    assert str(missing.exception) == "no such pod 'default/nobody'; name it as NAMESPACE/NAME"


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = berth("status", "--kubeconfig", str(tmp_path / "none"))
    assert isinstance(done.exception, KubernetesError)
    assert "there is no kubeconfig" in str(done.exception)


@pytest.mark.parametrize(
    "words", some([("status",), ("why", "a"), ("steerer", "--once", "--no-elect"), ("uninstall",)])
)
def test_a_server_that_cannot_be_reached_ends_a_command_that_ends_by_itself(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "REACH_S", 2.0)
    done = berth(*words, kubeconfig=nowhere(tmp_path))
    assert isinstance(done.exception, ApiError)
    assert str(done.exception).startswith("GET /version: Unreachable: Cannot connect to host 127.0.0.1:1 ")


def test_the_console_does_not_wait_for_a_server_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "REACH_S", 2.0)
    with pytest.raises(ApiError, match=r"^GET /version: Unreachable"):
        asyncio.run(KubernetesSource(nowhere(tmp_path)).look())


@pytest.mark.slow
def test_quotas_are_installed_from_a_machine_without_what_the_policy_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def lacking(*_: object) -> None:
        raise MissingExtraError("the policy learned", "learn", "jax")

    monkeypatch.setattr(tenants, "make_policy", lacking)
    made = tmp_path / "chart"
    done = berth("install", "--image", IMAGE, "--quota", "a=8", "--write", str(made))
    assert (done.exit_code, done.stdout.split()) == (0, ["wrote", "the", "chart", str(made)]), done.output
    wrong = berth("install", "--image", IMAGE, "--quota", "a=many", "--write", str(made))
    assert isinstance(wrong.exception, SettingError)


@pytest.mark.slow
def test_where_only_advice_is_given_from_now_on_no_gate_is_left(play: Played, server: Server) -> None:
    async def test(world: World) -> None:
        await world.pod("a", milli=250, mem=20_000)

    async def specs() -> list[dict[str, Any]]:
        async with Api(from_kubeconfig(server.kubeconfig())) as api:
            return [pod["spec"] for pod in (await World(api, server.kubeconfig()).pods()).values()]

    play(test)
    done = berth("install", "--image", IMAGE, "--mode", "advise", kubeconfig=server.kubeconfig())
    assert done.exit_code == 0, done.output
    assert "the gate of pod default/a is lifted" in done.stdout.splitlines()
    assert ["schedulingGates" in spec for spec in asyncio.run(specs())] == [False]


@pytest.mark.slow  # rights are given one by one, each after it was missed
@pytest.mark.usefixtures("kube_scheduler")
def test_each_right_that_is_missing_is_named_and_work_goes_on_when_it_is_given(
    play: Played, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "test-nobody"}}
    given: list[dict[str, Any]] = []

    async def test(world: World) -> None:
        async def missed_and_given(verb: str, resource: str, group: str = "") -> None:
            async def said() -> bool:
                return f'"nobody" cannot {verb} resource "{resource}"' in caplog.text

            await world.until(f"it says that it may not {verb} {resource}", said)
            given.append({"apiGroups": [group], "resources": [resource], "verbs": [verb]})
            await world.patch(f"{role}/test-nobody", {"rules": given})

        await world.node("n1", 1)
        await world.pod("low")
        path = "/apis/scheduling.k8s.io/v1/priorityclasses"
        body = {"kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
        await world.api.request("POST", path, {"apiVersion": "scheduling.k8s.io/v1", **body})
        await world.api.request("POST", role, {**about, "rules": []})
        binding = {
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "test-nobody"},
            "subjects": [{"kind": "User", "name": "nobody"}],
        }  # fmt: skip
        await world.api.request(
            "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", {**about, **binding}
        )
        async with world.steerer(token="nobodytoken", elect=True, policy="preempt+fifo+best-fit"):
            for verb in ("get", "create", "update"):
                await missed_and_given(verb, "leases", "coordination.k8s.io")
            for resource in ("nodes", "pods"):
                for verb in ("list", "watch"):
                    await missed_and_given(verb, resource)
            await missed_and_given("patch", "pods")
            await world.until_bound("low")
            await missed_and_given("create", "events")
            await world.pod("waits")
            await missed_and_given("patch", "pods/status")
            await world.until_told("waits", "room")
            await world.until("the class is known", lambda: world.pod("high", priorityClassName="urgent"))
            await missed_and_given("create", "pods/eviction")
            await world.until_bound("high")

    async def whole(world: World) -> None:
        try:
            await test(world)
        finally:
            for left in (
                f"{role}/test-nobody",
                "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/test-nobody",
                "/apis/scheduling.k8s.io/v1/priorityclasses/urgent",
            ):
                await world.api.request("DELETE", left, patience_s=60)

    play(whole)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--policy", "fofi"), "no policy 'fofi' (did you mean 'fifo'?)"),
        (("--knowledge", "guess"), "no knowledge 'guess'; there are oracle, user, history, noisy"),
        (("--borrow",), "--borrow goes with --quota"),
        (("--reclaim",), "--reclaim goes with --quota"),
        (
            ("--quota", "a=2", "--reclaim", "--policy", "fifo+best-fit"),
            "--reclaim takes back what --borrow lends",
        ),
        (("--image", "two words"), "--image 'two words'; expected the image's name"),
        (("--image", ""), "--image ''; expected the image's name"),
    ],
)
def test_what_no_steerer_could_run_with_is_refused_before_anything_is_made(
    words: tuple[str, ...], said: str
) -> None:
    refused = berth("install", "--image", IMAGE, "--dry-run", *words)
    assert said in str(refused.exception)
    assert refused.stdout == ""


@pytest.mark.slow
def test_a_policy_that_only_the_image_has_is_installed() -> None:
    assert berth("install", "--image", IMAGE, "--dry-run", "--policy", "site.policies:ours").exit_code == 0


def test_claims_are_refused_before_anything_is_made_where_the_cluster_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, str]] = []

    async def request(self: Api, method: str, path: str, *rest: Any, **more: Any) -> bytes:
        asked.append((method, path))
        raise ApiError(f"{method} {path}", 404, "NotFound", "404 page not found")

    monkeypatch.setattr(Api, "request", request)
    done = berth("install", "--image", IMAGE, "--claims", kubeconfig=nowhere(tmp_path))
    assert isinstance(done.exception, SettingError)
    assert "--claims" in str(done.exception)
    assert "1.34" in str(done.exception)
    paths = ["/version", "/api/v1/namespaces/berth-system", "/apis/resource.k8s.io/v1"]
    assert asked == [("GET", path) for path in paths]
