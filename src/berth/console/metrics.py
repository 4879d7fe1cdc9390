"""`/metrics`: the live cluster for Prometheus; a scraper sends a token as a bearer's.

They are written as text here: as objects of prometheus_client, 10,000 GPUs would hold up all pages for seconds at each
scrape.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from fastapi import APIRouter, Request, Response

from berth.console.hub import Hub, Seen
from berth.console.identity import Who
from berth.live.driver.metrics import JOB_MEMORY, JOB_MEMORY_TEXT, OF_GPUS, OfGpus
from berth.live.driver.snapshot import Gpu

router = APIRouter()
_OF_GPU: OfGpus = {
    **OF_GPUS,
    "utilization_ratio": (
        "Part of the time in which the GPU works; absent where it is not measured.",
        lambda gpu: None if gpu.use_pct is None else gpu.use_pct / 100,
    ),
    "drained": (
        "Whether nothing new starts there because an operator said so.",
        lambda gpu: int(gpu.drained),
    ),
    "healthy": ("Whether nothing is wrong with it.", lambda gpu: int(not gpu.health)),
}
_JOB = "Compute of each job on the GPU, per mille; hpc_job joins DCGM's exporter, jobid that of Jobstats and Slurm's."


def _family(name: str, text: str, samples: Iterable[tuple[str, float | None]]) -> str:
    """A gauge in Prometheus' text format; samples are labels with values, None for what was not measured."""
    lines = [f"{name}{labels} {value}\n" for labels, value in samples if value is not None]
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n{''.join(lines)}"


def _labels(**values: object) -> str:
    return "{" + ",".join(f'{name}="{_escaped(str(value))}"' for name, value in values.items()) + "}"


def _source_text(seen: Mapping[str, Seen], pages: int) -> str:
    """Each family of the sources, and the pages that are open."""
    snapshots = {name: each.look for name, each in seen.items() if each.look is not None}
    more = [
        (_labels(model=each.model, source=name), each)
        for name, look in snapshots.items()
        for each in look.more_cards
    ]
    jobs = [
        (_labels(source=name, state=state), float(getattr(look, state)))
        for name, look in snapshots.items()
        for state in ("waiting", "running")
    ]
    up = [(_labels(source=name), float(name in snapshots)) for name in seen]
    cards = [(labels, float(each.cards)) for labels, each in more]
    started = [(labels, float(each.jobs)) for labels, each in more]
    return (
        _family("berth_source_up", "Whether the queue answers.", up)
        + _family("berth_jobs", "Jobs by state.", jobs)
        + _family("berth_more_cards", "Cards that would start jobs which wait for room.", cards)
        + _family("berth_more_cards_jobs", "Jobs that these would start.", started)
        + _family("berth_console_pages", "Pages that are being told what happens.", [("", float(pages))])
    )


def _gpu_text(gpus: Sequence[tuple[str, Gpu]]) -> str:
    """Each family of the GPUs."""
    of_gpus = [
        (_labels(gpu=gpu.index, model=gpu.model, node=gpu.node, source=name)[:-1], gpu) for name, gpu in gpus
    ]
    families = [
        _family(f"berth_gpu_{name}", text, ((f"{labels}}}", value_of(gpu)) for labels, gpu in of_gpus))
        for name, (text, value_of) in _OF_GPU.items()
    ]
    tenants = [(labels, each) for labels, gpu in of_gpus for each in gpu.tenants]
    shares = (
        (f"{labels},{_labels(hpc_job=each.job, jobid=each.job, user=each.user)[1:]}", each.milli)
        for labels, each in tenants
    )
    sizes = (
        (f"{labels},{_labels(job=each.job, kind=kind)[1:]}", mem_mib << 20)
        for labels, each in tenants
        for kind, mem_mib in each.sizes_mib.items()
    )
    families += [_family("berth_gpu_job", _JOB, shares), _family(JOB_MEMORY, JOB_MEMORY_TEXT, sizes)]
    return "".join(families)


def _escaped(text: str) -> str:
    """A label's value: the three signs that the format escapes, and nothing that UTF-8 cannot hold."""
    plain = text.encode("utf-8", "replace").decode()
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request, who: Who) -> Response:
    """Metrics in Prometheus' text format."""
    hub: Hub = request.app.state.hub
    seen = await hub.fresh()
    gpus = [(name, gpu) for name, each in seen.items() if each.look for gpu in each.look.gpus]
    text = _source_text(seen, hub.watchers) + await asyncio.to_thread(_gpu_text, gpus)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
