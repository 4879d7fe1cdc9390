"""The API: what its document tells, what it answers to anything at all, and metrics."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import hypothesis
import pytest
from prometheus_client.parser import text_string_to_metric_families

from berth.console.queue import State
from berth.console.roles import Role
from berth.live.driver.snapshot import UNENDED, Gpu, MoreCards, Stranger, Tenant
from tests.console.values import ValuesSource, look_of
from tests.console.world import World

ROOT = Path(__file__).parents[2]

SETTINGS = hypothesis.settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
OURS = "/(api/v1/(gpus|queue|jobs|sources|actions)|metrics)"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, sources=[ValuesSource(look_of(gpus=8, waiting=12))], actions=True)


def test_the_document_tells_the_type_of_each_answer(world: World) -> None:
    document = world.program("ann").get("/api/v1/openapi.json").json()
    told = {
        path: answers["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        for path, answers in document["paths"].items()
        if path in ("/api/v1/gpus", "/api/v1/queue", "/api/v1/jobs/{job_id}")
    }
    assert told == {
        "/api/v1/gpus": {"$ref": "#/components/schemas/GpusAnswer"},
        "/api/v1/queue": {"$ref": "#/components/schemas/QueueAnswer"},
        "/api/v1/jobs/{job_id}": {"$ref": "#/components/schemas/JobAnswer"},
    }


def test_gpus_do_not_come_again_where_nothing_changed(world: World) -> None:
    client = world.program("ann")
    answer = client.get("/api/v1/gpus")
    assert len(answer.json()["gpus"]) == 8
    assert client.get("/api/v1/gpus", headers={"If-None-Match": answer.headers["ETag"]}).status_code == 304


def test_metrics_need_a_token_and_name_each_gpu(world: World) -> None:
    assert world.stranger().get("/metrics").status_code == 401
    text = world.program("prometheus", Role.VIEWER).get("/metrics").text
    assert 'berth_source_up{source="local"} 1.0' in text
    assert 'berth_jobs{source="local",state="waiting"} 12.0' in text
    assert 'berth_gpu_tenants{gpu="1",model="A100-80G",node="node0000",source="local"} 2\n' in text
    assert 'berth_gpu_drained{gpu="3",model="H100-80G",node="node0001",source="local"} 1\n' in text
    job = 'berth_gpu_job{gpu="1",model="A100-80G",node="node0000",source="local",hpc_job="'
    assert sum(line.startswith(job) for line in text.splitlines()) == 2
    assert {family.name for family in text_string_to_metric_families(text)} >= {
        "berth_jobs",
        "berth_gpu_used_bytes",
    }


def test_metrics_tell_the_memory_of_jobs_that_may_grow(tmp_path: Path) -> None:
    grows = Tenant("7", "ann", "", 300, 6144, used_mib=6000, promise_mib=4096, max_mib=8192)
    other = Tenant("8", "bob", "", 300, 1024, used_mib=1000)
    gpu = Gpu("n1", 0, "A100", 81_920, (grows, other))
    source = ValuesSource(replace(look_of(), gpus=(gpu,)), "slurm")
    text = World(tmp_path, sources=[source]).program("prometheus", Role.VIEWER).get("/metrics").text
    (family,) = (
        each for each in text_string_to_metric_families(text) if each.name == "berth_job_gpu_memory_bytes"
    )
    assert {tuple(sample.labels.values()): sample.value for sample in family.samples} == {
        ("0", "A100", "n1", "slurm", "7", kind): mem_mib << 20
        for kind, mem_mib in {"promise": 4096, "limit": 6144, "max": 8192, "used": 6000}.items()
    }


def test_metrics_count_memory_of_strangers_once(tmp_path: Path) -> None:
    inside = Stranger("process 4711", 6000, "train", pid=4711)
    gpu = Gpu("n1", 0, "A100", 81_920, (), (inside, Stranger("partition a", 8192)))
    source = ValuesSource(replace(look_of(), gpus=(gpu,)), "slurm")
    text = World(tmp_path, sources=[source]).program("prometheus", Role.VIEWER).get("/metrics").text
    (held,) = (line for line in text.splitlines() if line.startswith("berth_gpu_stranger_bytes{"))
    assert held.endswith(f" {8192 << 20}")


def test_metrics_say_how_many_more_cards_would_start_jobs(tmp_path: Path) -> None:
    source = ValuesSource(replace(look_of(), more_cards=(MoreCards("A100-80G", 3, 5),)), "kubernetes")
    text = World(tmp_path, sources=[source]).program("prometheus", Role.VIEWER).get("/metrics").text
    assert 'berth_more_cards{model="A100-80G",source="kubernetes"} 3.0\n' in text
    assert 'berth_more_cards_jobs{model="A100-80G",source="kubernetes"} 5.0\n' in text


def test_the_board_for_slurm_shows_metrics_that_the_console_has(world: World) -> None:
    board = json.loads((ROOT / "deploy" / "grafana-slurm.json").read_text())
    text = world.program("prometheus", Role.VIEWER).get("/metrics").text
    has = {family.name for family in text_string_to_metric_families(text)}
    asked = [each["expr"] for panel in board["panels"] for each in panel["targets"]]
    shown = {name for expr in asked for name in re.findall(r"berth_\w+", expr)}
    assert shown <= has
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= board.keys()
    places = [panel["gridPos"] for panel in board["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert (
        len({panel["id"] for panel in board["panels"]})
        == len({(p["x"], p["y"]) for p in places})
        == len(places)
    )


@pytest.mark.slow
def test_whatever_is_asked_nothing_breaks(world: World) -> None:
    import schemathesis  # here, as it takes a second of every process that collects the tests

    world.app.state.too_many.wait_s = lambda *_: 0.0
    token = world.token("ann", Role.OPERATOR)
    schema = schemathesis.openapi.from_asgi(
        "/api/v1/openapi.json", world.app, headers={"Authorization": f"Bearer {token}"}
    ).include(path_regex=OURS)
    asked = []
    for found in schema.get_all_operations():
        operation = found.ok()

        @SETTINGS
        @hypothesis.given(case=operation.as_strategy())
        def whatever(case: schemathesis.Case) -> None:
            answer = case.call(headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code < 500, (case.path, answer.text)
            if answer.status_code == 200 and "json" in str(answer.headers.get("content-type")):
                case.operation.validate_response(answer)

        whatever()
        asked.append(operation.label)
    assert sorted(asked) == [
        "GET /api/v1/gpus",
        "GET /api/v1/jobs/{job_id}",
        "GET /api/v1/queue",
        "GET /api/v1/sources",
        "GET /metrics",
        "POST /api/v1/actions",
        "POST /api/v1/jobs",
    ]


def test_the_queue_can_be_asked_for_each_state_of_a_job_that_has_not_ended() -> None:
    assert get_args(State) == ("", *UNENDED)
