"""Metrics as Prometheus reads them, on a port and on a socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from berth.live.local import exporter
from tests.live.local.world import World, berth


def scrape(path: Path) -> dict[str, float]:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(b"GET /metrics HTTP/1.0\r\nHost: here\r\n\r\n")
        answer = b""
        while part := client.recv(1 << 16):
            answer += part
    head, _, body = answer.decode().partition("\r\n\r\n")
    assert "200 OK" in head
    families = text_string_to_metric_families(body)
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for family in families
        for sample in family.samples
    }


def serves(path: Path) -> bool:
    """Whether a queue that is up is told of; the socket is there before anybody listens to it."""
    with suppress(ConnectionRefusedError, FileNotFoundError):
        return scrape(path).get("berth_up[]") == 1
    return False


def test_metrics_tell_what_the_gpus_hold_and_what_has_happened() -> None:
    world = World()
    path = world.folder / "metrics"
    world.options = ["--metrics", str(path)]
    try:
        world.up()
        job = world.submit("while [ ! -e go ]; do sleep 0.02; done", mem="8G", gpus="0.5")
        done = world.submit("true", gpus=0)
        world.wait(done)
        world.until(lambda: world.state_of(job) == "running" and path.exists(), "it runs")
        world.until(lambda: serves(path), "metrics are served")
        told = scrape(path)
        assert told["berth_gpu_allocated_milli['0', 'A100-80G']"] == 500
        assert told["berth_gpu_allocated_bytes['0', 'A100-80G']"] == 8 << 30
        assert told["berth_jobs['running']"] == 1
        assert told["berth_attempts_ended_total['completed']"] == 1
        assert told["berth_queue_wait_seconds_count[]"] == 2
        assert told["berth_decision_seconds_count[]"] >= 1
        assert told["berth_refused_allocations_total[]"] == 0
        (world.folder / "go").touch()
        world.wait(job)
    finally:
        world.close()


def test_why_no_metrics_are_served_is_said_and_the_file_stays(tmp_path: Path) -> None:
    kept = tmp_path / "results.csv"
    kept.write_text("1,2\n")
    world = World(gpus="", options=["--metrics", str(kept)])
    try:
        world.up(ready=False)
        wanted = f"no metrics are served: --metrics {kept}: this is not a socket"
        world.until(lambda: wanted in str((world.status() or {})["trouble"]), "it is said")
        assert kept.read_text() == "1,2\n"
        status = world.status() or {}
        told = berth(world, "status").stdout
        assert ("--host-mem: counted when jobs are placed, not enforced" in told) != status[
            "host_mem_enforced"
        ]
    finally:
        world.close()


def test_a_scraper_that_reads_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "SCRAPE_S", 0.5)
    path, states = tmp_path / "metrics", {f"state{number}": 1.0 for number in range(30_000)}
    counts = dict.fromkeys(("submitted", "refused_allocations", "decisions", "brain_restarts", "commits"), 0)
    times = {
        name: {"buckets": [("+Inf", 0)], "sum": 0} for name in ("queue_wait_seconds", "decision_seconds")
    }
    empty: dict[str, Any] = {"gpus": [], "ended": {}, "growth": {}, "uncounted_mib": {}}
    answer = {"jobs": states, "policy": "fifo", "ready": True, **counts, **times, **empty}

    async def scrape_without_reading() -> bytes:
        asked = asyncio.Event()

        def measured() -> dict[str, Any]:
            asked.set()
            return answer

        serving = asyncio.create_task(exporter.serve_metrics(str(path), measured))
        async with asyncio.timeout(300):
            while not path.exists():
                await asyncio.sleep(0.01)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
                client.setblocking(False)
                await asked.wait()
                while asyncio.all_tasks() != {asyncio.current_task(), serving}:
                    await asyncio.sleep(0.01)
                got = b""
                while part := await asyncio.get_running_loop().sock_recv(
                    client, 1 << 16
                ):  # the end may come later
                    got += part
        serving.cancel()
        return got

    head, _, body = asyncio.run(scrape_without_reading()).partition(b"\r\n\r\n")
    assert 0 < len(body) < int(head.rpartition(b" ")[2])
