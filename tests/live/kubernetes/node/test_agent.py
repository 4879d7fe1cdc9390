"""The agent tells what each pod uses, what ended and how, and whose process got out of its limit."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import berth.live.local.cards as cards_module
from berth.history.store.folder import open_history
from berth.live.kubernetes.collecting import Collector
from berth.live.kubernetes.names import MEASURED
from berth.live.kubernetes.node.agent import EXPORT, SEEN, Agent, Seen, is_member, pod_uid_of
from berth.live.kubernetes.node.allotments import Allotment, Holder, Part
from berth.live.kubernetes.node.api_server import Container, Pod
from berth.live.kubernetes.node.reaper import Reaper
from berth.live.kubernetes.node.recording import MOST_SAMPLES, record_of, samples_of, thin_out, thinned
from berth.live.kubernetes.node.serving import NodeCollector
from berth.live.kubernetes.node.xid import XidWatch
from berth.live.local.cards import Cards
from berth.live.local.samples import Sample
from berth.model import Profile
from berth.profiles import BEGUN, RUNNING, Profiles
from tests.live.kubernetes.node.containers import of_cdi, share_of, start
from tests.live.kubernetes.node.node_world import NodeWorld
from tests.partition.test_reconciling import forge

ROOT = Path(__file__).resolve().parents[4]
UID = "11111111-2222-3333-4444-{:012d}"
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes and mount namespaces")


class Watched(NodeWorld):
    """A node with an agent, and processes in containers of its pods."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.reaper = Reaper(self.allotments, self.api, None)
        self.dra()
        self.reaper.claims = self.claims
        self.uids: dict[int, str] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.nvml = Cards(fake=True)
        self.now_ms = 1_700_000_000_000
        self.start_agent()

    def start_agent(self) -> None:
        self.agent = Agent(
            *(self.folder / "state", self.nvml, self.allotments, self.api, self.reaper),
            lambda pid: self.uids.get(pid, ""),
            pods_every_s=0,
        )

    def look(self) -> Any:
        self.now_ms += 2000
        return asyncio.run(self.agent.step(self.now_ms))

    def pod(
        self, number: int, gpu: int, milli: int, mem_mib: int, *, gpus: int = 1, **annotations: str
    ) -> Pod:
        """A running pod with a claim that is prepared, for a part of a GPU and of those after it."""
        name = f"pod{number}"
        parts = [(at, milli, mem_mib) for at in range(gpu, gpu + gpus)]
        claim = self.api.add_claim(f"claim-{name}", *parts, uid=f"claim-{name}")
        asyncio.run(self.claims.prepare([claim]))
        pod = self.api.add_pod(name, uid=UID.format(number), containers=[Container("main", 0)], **annotations)
        pod = replace(
            pod, claims=(claim.name,), phase="Running", start_ms=self.now_ms, created_ms=self.now_ms,
            program="image:1 train",
        )  # fmt: skip
        self.api.known_pods[pod.namespace, pod.name] = pod
        return pod

    def process(self, pod: Pod, *, library: bool = True) -> dict[str, Any]:
        """A process in the pod's container that takes all it may have and keeps it; what it found."""
        prepared = self.allotments.of_holder(pod.claims[0])
        edits = of_cdi(self.cdi, [f"gpu.berth.dev/claim={each.name}" for each in prepared])
        if not library:
            edits.mounts = [each for each in edits.mounts if "preload" not in each[1]]
        scratch = self.folder / f"scratch{len(self.processes)}"
        process = start(edits, share_of("hold"), scratch)
        self.processes.append(process)
        self.uids[process.pid] = pod.uid
        assert process.stdout is not None
        found: dict[str, Any] = json.loads(process.stdout.readline())
        return found

    def end(self, pod: Pod, phase: str, exit_code: int) -> None:
        """The pod's processes end, and the API server says how."""
        for process in self.processes:
            if self.uids.get(process.pid) == pod.uid and process.poll() is None:
                process.communicate("\n")
        ended = replace(pod, phase=phase, exit_code=exit_code, end_ms=self.now_ms)
        self.api.known_pods[pod.namespace, pod.name] = ended
        self.claims.unprepare(pod.claims[0])

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    copy = folder / "nvml"  # a library of its own: a process has one fake card for each
    shutil.copytree(ROOT / "build" / "native" / "fake", copy)
    monkeypatch.setattr(cards_module, "fake_driver_folder", lambda: copy)
    monkeypatch.setenv("BERTH_FAKE_CARD", str(folder / "card"))
    monkeypatch.setenv("BERTH_FAKE_MODEL", "A100-80G")
    world = Watched(folder)
    yield world
    world.close()


def metrics(world: Watched) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(NodeCollector(world.agent, world.nvml.cards, lambda: {"dra": 1}))
    lines = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_a_pod_that_is_refused_memory_is_told_of_once(watched: Watched) -> None:
    pod = watched.pod(1, 0, 300, 4000)
    watched.process(pod)
    watched.look()
    watched.look()
    (event,) = watched.api.events
    assert event[:2] == ("pod1", "GpuMemoryRefused")
    assert "the pod's part of it is 4000 MiB" in event[2]


def test_a_pod_that_began_and_ended_between_two_lists_is_recorded(watched: Watched) -> None:
    watched.agent._pods_every_s = 1e6
    watched.look()
    watched.end(watched.pod(1, 0, 300, 4000), "Succeeded", 0)
    watched.look()
    assert list(watched.api.annotations) == ["pod1"]


def test_each_pod_of_a_shared_gpu_has_its_own_use(watched: Watched) -> None:
    first, second = watched.pod(1, 0, 300, 4000), watched.pod(2, 0, 500, 6000)
    watched.process(first)
    watched.process(second)
    view = watched.look()
    assert [
        (one.pod.name, one.part.index, one.region.limit_bytes >> 20, one.region.used_bytes >> 20)
        for one in view.parts
    ] == [("pod1", 0, 4000, 4000), ("pod2", 0, 6000, 6000)]
    told = metrics(watched)
    of = 'container="r0",gpu="0",namespace="default",pod="pod2"'
    assert told[f"berth_pod_gpu_used_bytes{{{of}}}"] == 6000 << 20
    assert told[f"berth_pod_gpu_refused_calls_total{{{of}}}"] == 1  # the one step more
    assert told['berth_gpu_allocated_milli{gpu="0",model="A100-80G"}'] == 800
    assert told['berth_gpu_used_bytes{gpu="0",model="A100-80G"}'] >= 10_000 << 20
    watched.end(first, "Succeeded", 0)
    tenants = 'berth_gpu_tenants{gpu="0",model="A100-80G"}'
    assert metrics(watched)[tenants] == 2, "a scrape shows one look"
    watched.look()
    assert metrics(watched)[tenants] == 1
    assert (told["berth_escaped_processes"], told['berth_registrations_total{plugin="dra"}']) == (0, 1)


def test_the_board_for_kubernetes_shows_metrics_that_agents_or_the_console_have(watched: Watched) -> None:
    watched.process(watched.pod(1, 0, 300, 4000))
    watched.look()
    has = {name.partition("{")[0] for name in metrics(watched)} | {
        "berth_more_cards",
        "berth_more_cards_jobs",
    }
    board = json.loads((ROOT / "deploy" / "grafana-kubernetes.json").read_text())
    asked = [each["expr"] for panel in board["panels"] for each in panel["targets"]]
    assert {name for expr in asked for name in re.findall(r"berth_\w+", expr)} <= has
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert len({(place["x"], place["y"]) for place in places}) == len(places)


def test_a_process_without_the_library_is_told_of_once(watched: Watched) -> None:
    good, bad = watched.pod(1, 0, 300, 4000), watched.pod(2, 1, 300, 4000)
    watched.process(good)
    assert watched.process(bad, library=False)["gpus"][0]["took_mib"] > 4000
    assert watched.look().escaped == ()  # it may have been about to join
    (found,) = watched.look().escaped
    watched.look()
    assert (found.pod_uid, found.pid) == (bad.uid, watched.processes[1].pid)
    (_, told) = watched.api.events  # the first: the good one took all it had, and a step more
    name, reason, message = told
    assert (name, reason) == ("pod2", "GpuLimitLost")
    assert f"process {found.pid} (python" in message
    assert metrics(watched)["berth_escaped_processes"] == 1


def test_a_pod_that_writes_into_its_counters_is_told_of_once_and_its_neighbour_is_not(
    watched: Watched,
) -> None:
    pods = watched.pod(1, 0, 300, 4000), watched.pod(2, 0, 300, 5000)
    for pod in pods:
        watched.process(pod)
    watched.look()
    before = len(watched.api.events)  # both took all they had, and a step more
    assert not watched.agent.suspects
    (folder,) = {each.region.folder for each in watched.agent.view.parts if each.pod.name == "pod1"}
    (use,) = folder.glob("*.use")
    (seen,) = (each.region for each in watched.agent.view.parts if each.pod.name == "pod1")
    forge(use, seen.used_bytes)
    assert (watched.look().uncounted, watched.agent.suspects) == ((), True)
    (found,) = watched.look().uncounted
    watched.look()
    assert (found.name, found.gpu, found.counted_mib, found.seen_mib >= 4000) == (pods[0].uid, 0, 0, True)
    ((name, reason, message),) = watched.api.events[before:]
    assert (name, reason) == ("pod1", "GpuMemoryUncounted")
    assert "its partition counted 0 B: a process of it has unloaded libberth" in message
    of = 'gpu="0",namespace="default",pod="pod1"'
    assert metrics(watched)[f"berth_pod_uncounted_bytes{{{of}}}"] == found.uncounted_mib << 20


def test_a_pod_that_uses_a_gpu_unasked_is_told_of(watched: Watched) -> None:
    ours = watched.pod(1, 0, 300, 4000)
    watched.process(ours, library=False)
    stranger = watched.api.add_pod("stranger", uid=UID.format(9))
    watched.uids = {watched.processes[0].pid: stranger.uid}
    watched.look()
    watched.look()
    assert [(name, reason) for name, reason, _ in watched.api.events] == [("stranger", "GpuWithoutLimit")]


@pytest.mark.slow
def test_out_of_memory_is_recognised_and_what_was_needed_is_told(watched: Watched) -> None:
    pod = watched.pod(1, 0, 300, 4000)
    watched.process(pod)
    watched.look()
    watched.end(pod, "Failed", 1)
    watched.look()
    assert json.loads(watched.api.annotations["pod1"][MEASURED]) == {
        "peak_mib": 4000, "refused": 1, "needed_mib": 4001,
    }  # fmt: skip
    assert watched.agent.out_of_memory == 1
    assert watched.allotments.given == {}
    asyncio.run(watched.agent.record())
    (record,) = open_history(watched.folder / "state" / "history").records()
    assert (record.job_id, record.state.value, record.end_reason, record.gpus) == (
        "default/pod1", "out-of-memory", "out-of-memory", 1,
    )  # fmt: skip
    assert list((watched.folder / "state" / SEEN).iterdir()) == []


def test_a_run_that_completes_alone_becomes_a_profile(watched: Watched) -> None:
    pod = watched.pod(1, 0, 1000, 4000, application="resnet")
    watched.process(pod)
    for _ in range(4):
        watched.look()
    watched.end(pod, "Succeeded", 0)
    watched.look()
    asyncio.run(watched.agent.record())
    history = watched.folder / "state" / "history"
    profile = Profiles.of_history(history, wrong=[])["default/resnet"]
    assert round(float(profile.usage[:, 1].max()) * profile.hardware.mem_mib) == 4000
    (record,) = open_history(history).records()
    assert (record.application, record.state.value) == ("default/resnet", "completed")


def life_of(world: Watched, application: str) -> tuple[Profile, dict[str, Any]]:
    """An application's profile, and how many runs and windows it is of."""
    history = world.folder / "state" / "history"
    profile = Profiles.of_history(history, wrong=[])[application]
    (home,) = (history / "profiles" / "versions").glob(f"*{application.partition('/')[2]}*")
    return profile, json.loads((home / "life.json").read_text())


def windows(world: Watched, count: int) -> None:
    """Look until that many windows of six seconds are over, and have each recorded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("berth.live.kubernetes.node.agent.WINDOW_S", 6)
        for _ in range(count):
            for _ in range(4):
                world.look()
            asyncio.run(world.agent.record())


@pytest.mark.slow
def test_a_service_is_profiled_while_it_runs_and_an_end_that_completes_counts_more(watched: Watched) -> None:
    pod = watched.pod(1, 0, 300, 4000, application="chat")
    watched.process(pod)
    windows(watched, 2)
    profile, life = life_of(watched, "default/chat")
    assert (profile.kind, life["runs"] >= 2) == (RUNNING, True)
    assert round(float(profile.usage[:, 1].max()) * profile.hardware.mem_mib) == 4000
    state = watched.folder / "state"
    assert (list(open_history(state / "history").records()), list((state / SEEN).iterdir())) == ([], [])
    took = Collector(watched.api, watched.folder)._take((state / EXPORT).read_bytes(), "here")  # type: ignore[arg-type]
    assert took == "0 new records, 1 profile"
    watched.end(pod, "Succeeded", 0)
    watched.look()
    asyncio.run(watched.agent.record())
    profile, _ = life_of(watched, "default/chat")
    assert (profile.kind, len(profile.usage) > 12) == ("live", True)
    (record,) = open_history(watched.folder / "state" / "history").records()
    assert (record.job_id, record.gpu_mem_peak) == ("default/pod1", 4000 / 81920)


@pytest.mark.slow
def test_each_gpu_of_a_pod_counts_in_its_profile(watched: Watched) -> None:
    pod = watched.pod(1, 0, 1000, 4000, gpus=2, application="wide")
    watched.process(pod)
    windows(watched, 1)
    assert life_of(watched, "default/wide")[1]["runs"] == 2
    watched.end(pod, "Succeeded", 0)
    watched.look()
    asyncio.run(watched.agent.record())
    profile, life = life_of(watched, "default/wide")
    assert (profile.kind, life["runs"]) == ("live", 4)
    (record,) = open_history(watched.folder / "state" / "history").records()
    assert record.gpu_slots == ("here:0", "here:1")


@pytest.mark.slow
def test_images_and_arguments_that_change_are_one_application_with_a_spread(watched: Watched) -> None:
    for number, (image, mem_mib) in enumerate([("a:1 train", 4000), ("b:2 eval", 8000)], 1):
        pod = replace(watched.pod(number, 0, 300, mem_mib, application="mixed"), program=image)
        watched.process(pod)
        for _ in range(4):
            watched.look()
        watched.end(pod, "Succeeded", 0)
        watched.look()
        asyncio.run(watched.agent.record())
    _, life = life_of(watched, "default/mixed")
    assert (life["runs"], life["spread"][1] > 0, life["peaks"]) == (2, True, [4000, 8000])


def test_samples_of_a_pod_that_runs_for_long_are_thinned_out_evenly(tmp_path: Path) -> None:
    old = [Sample(at * 4000, 50.0, 100, alone=True) for at in range(5000)]  # thinned out before
    new = [Sample(20_000_000 + at * 2000, 10.0, 100, alone=True) for at in range(10_000)]
    kept = thinned([*old, *new])
    early = sum(sample.use_pct == 50.0 for sample in kept)
    assert len(kept) <= MOST_SAMPLES + 1
    assert abs(early / len(kept) - 0.5) < 0.1
    assert thinned(old[:10]) == old[:10]
    file = tmp_path / "uid"
    file.write_text("".join(f"{each.time_ms} {each.use_pct} 100 1\n" for each in (*old, *new)))
    since_ms = new[-300].time_ms
    assert [sample.time_ms for sample in samples_of(file, since_ms)] == [each.time_ms for each in new[-300:]]
    file.write_text("1 - 0 1\n2 - 0 1\n3 - 0 1\n")
    thin_out(file)
    assert file.read_text() == "1 - 0 1\n3 - 0 1\n"


def test_a_pod_that_vanishes_is_recorded_and_its_part_is_free(watched: Watched) -> None:
    """Deleted by force, and never unprepared."""
    pod = watched.pod(1, 0, 300, 4000)
    watched.look()
    watched.api.known_pods.clear()
    watched.api.claims.clear()
    watched.look()
    watched.look()
    assert (watched.allotments.given, list(watched.cdi.iterdir())) == ({}, [])
    (kept,) = (watched.folder / "state" / SEEN).iterdir()
    record = record_of(msgspec.json.decode(kept.read_bytes(), type=Seen), [])
    assert (record.state.value, record.job_id) == ("cancelled", str(pod))


def test_a_container_of_the_device_plugin_is_free_only_where_api_server_and_kubelet_say_so(
    folder: Path,
) -> None:
    from berth.live.kubernetes.node.device_plugin import Held

    held = Held("default", "one", "main", frozenset({"gpu0-01"}), "uid-one")

    class Kubelet:
        def __init__(self) -> None:
            self.held: list[Held] = []

        async def all_held(self) -> list[Held]:
            return self.held

    world = NodeWorld(folder)
    pod = world.api.add_pod("one", (0, 300, 5000))
    holder = Holder(pod.namespace, pod.name, pod.uid, "main")
    world.allotments.give(Allotment("dp-1", holder, (Part(0, 5000, 300),), ("gpu0-01",), (1,)))
    kubelet = Kubelet()
    reaper = Reaper(world.allotments, world.api, kubelet)  # type: ignore[arg-type]
    assert asyncio.run(reaper.collect()) == []  # the kubelet has just restarted
    world.api.known_pods.clear()
    kubelet.held = [held]
    assert asyncio.run(reaper.collect()) == []  # deleted by force while its containers run
    kubelet.held = []
    assert [each.name for each in asyncio.run(reaper.collect())] == ["dp-1"]


def test_errors_of_a_gpu_are_heard_and_those_of_programs_are_not(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "xids"
    monkeypatch.setenv("BERTH_FAKE_XIDS", str(told))
    told.write_text("0 13\n1 79\n0 31\n0 48\n")
    heard: list[tuple[int, int]] = []
    watch = XidWatch(lambda gpu, xid: heard.append((gpu, xid)), watched.folder / "nvml")
    watch.start()
    try:
        limit_s = time.monotonic() + 300
        while len(heard) < 2 and time.monotonic() < limit_s:
            time.sleep(0.02)
    finally:
        watch.stop()
    assert heard == [(1, 79), (0, 48)]


def test_a_lost_gpu_ails(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    watched.agent.xids[0] = "48"
    assert watched.look().ailing == {0: "48"}
    monkeypatch.setenv("BERTH_FAKE_NVML", "lost")
    assert watched.look().ailing == {0: "48", 1: "lost"}


@pytest.mark.parametrize(
    "line",
    [
        "11:devices:/kubepods/burstable/pod6c2f7b52-0a53-4c69-9d1c-0b7f0e3f3a11/3f9c",
        "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod6c2f7b52_0a53_4c69_9d1c_0b7f0e3f3a11.slice/"
        "cri-containerd-ab12.scope",
    ],
)
def test_the_pod_of_a_process_is_known_by_its_cgroup(tmp_path: Path, line: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"12:pids:/\n{line}\n")
    assert pod_uid_of(7, tmp_path) == "6c2f7b52-0a53-4c69-9d1c-0b7f0e3f3a11"
    assert pod_uid_of(8, tmp_path) == ""


def test_a_process_is_a_member_by_its_own_namespaces_pid() -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    own = int(Path("/proc/self/status").read_text().partition("NSpid:")[2].split("\n")[0].split()[-1])
    assert is_member(os.getpid(), {(namespace, own)})
    assert not is_member(os.getpid(), {(namespace + 1, own)})


@pytest.mark.slow
def test_an_agent_that_is_killed_before_any_file_leaves_each_part_as_it_was_given(folder: Path) -> None:
    world = NodeWorld(folder)
    cards = json.dumps([[card.index, card.uuid, card.model, card.mem_mib] for card in world.cards])
    (folder / "killed").mkdir()
    words = [sys.executable, "-m", "tests.live.kubernetes.node.killed_agent", str(folder / "killed"), cards]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    kills, wrong = json.loads(told.stdout)
    assert kills > 20
    assert wrong == []


def test_the_first_half_minute_of_a_pod_counts_until_a_window_or_the_whole_run_is_seen(
    watched: Watched,
) -> None:
    pod = watched.pod(1, 0, 1000, 4000, application="new")
    watched.process(pod)

    def kind(looks: int) -> str:
        for _ in range(looks):
            watched.look()
        asyncio.run(watched.agent.record())
        found = Profiles.of_history(watched.folder / "state" / "history", wrong=[])
        return found["default/new"].kind if found else ""

    assert [kind(5), kind(15)] == ["", BEGUN]
    watched.end(pod, "Succeeded", 0)
    assert kind(1) == "live"


def test_the_beginning_of_a_pod_is_longer_at_each_look_and_also_after_the_agent_was_started_again(
    watched: Watched,
) -> None:
    watched.process(watched.pod(1, 0, 1000, 4000, application="new"))
    archive = watched.folder / "state" / EXPORT

    def seconds(looks: int) -> int:
        for _ in range(looks):
            watched.look()
        asyncio.run(watched.agent.record())
        return len(Profiles.of_history(watched.folder / "state" / "history")["default/new"].usage)

    first, second = seconds(20), seconds(20)
    assert 30 <= first < 40 < 60 <= second < 80
    watched.start_agent()
    assert seconds(20) >= second + 20  # all of it, not only what this agent has seen
    before = archive.read_bytes()
    watched.process(watched.pod(2, 1, 1000, 4000, application="new"))
    assert seconds(16) >= second + 20
    assert archive.read_bytes() == before  # collectors need not take over the same again
