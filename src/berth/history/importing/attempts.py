"""What an attempt of a job is, as SQL: from judged rows and what their texts stand for to the columns of a record."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from berth.gpu_models import GPU_MODELS
from berth.history.store.identity import IS_LABEL
from berth.history.store.import_result import Options
from berth.history.store.pseudonyms import PSEUDONYMISED

_AMBIGUOUS: Final = frozenset(("V100", "P100"))
"""Names under which cards of different memory are sold."""


def attempts_of(options: Options) -> str:
    """A SELECT of the `judged` rows that come in, with every column of a record but `attempt` and `submit_ms`.

    It joins the tables `tres`, `hosts`, `apps` and, with a key, `hidden`. `whole_gpus` is a column more.
    """
    names = {kind: f"judged.{kind}" for kind in PSEUDONYMISED}
    hidden = ""
    if options.key:
        names = {kind: f"hidden_{kind}.pseudonym" for kind in PSEUDONYMISED}
        hidden = " ".join(
            f"JOIN hidden hidden_{kind} ON hidden_{kind}.kind = '{kind}' AND hidden_{kind}.text = judged.{kind}"
            for kind in PSEUDONYMISED
        )
    ran = "start_ms IS NOT NULL"
    # A number of nodes that Slurm marks as none, or that is not there, is that of the names, or of the resources.
    nodes = (
        "coalesce(node_count, nullif(len(hosts.names), 0), nullif(given.nodes, 0), nullif(asked.nodes, 0), 0)"
    )
    gpus = f"coalesce(nullif({{0}}.gpus, 0), {{0}}.a_node * greatest({nodes}, 1))"
    given, asked = gpus.format("given"), gpus.format("asked")
    milli, of_shards = "1000", ""
    if options.shards_per_gpu:
        shards = f"(CASE WHEN {ran} THEN given.shards ELSE asked.shards END)"
        of_shards = (
            f"WHEN {shards} > 0 THEN greatest(1, ceil({shards} / {options.shards_per_gpu}.0))::INTEGER"
        )
        held = f"(ceil({shards} / {options.shards_per_gpu}.0)::BIGINT * {options.shards_per_gpu})"
        one = f"{shards} * 1000 // {held}"
        milli = f"CASE WHEN whole_gpus = 0 AND {shards} > 0 THEN {one} ELSE 1000 END"
    # Slurm's CODE:SIGNAL, or a code alone; a job that never ran has 0:0 there.
    code, signal = (f"try_cast(split_part(judged.exit::VARCHAR, ':', {at}) AS INTEGER)" for at in (1, 2))
    exit_code = f"CASE WHEN {code} = 0 AND {signal} BETWEEN 1 AND 127 THEN 128 + {signal} ELSE {code} END"
    comment, command = ("''", "''") if options.key else ("judged.comment", "judged.command")
    of_all, memory = "gpu_mem_peak / nullif(gpus, 0)", _memory_mib("gpu_model")
    return f"""
        SELECT * REPLACE (
            CASE WHEN gpus > 0 AND gpu_use_peak > 0 THEN least(gpu_use_peak / 100 / gpus, 1.0) END AS gpu_use_peak,
            CASE WHEN {of_all} <= {memory} THEN {of_all} / {memory} END AS gpu_mem_peak) FROM (
        SELECT id AS job_id, {names["user"]} AS user,
            coalesce(nullif(judged.application, ''), apps.application) AS application,
            partition AS virtual_cluster, submit_ms AS queued_ms, start_ms, end_ms, state,
            (CASE WHEN {ran} THEN {given} ELSE {asked} END) AS whole_gpus,
            (CASE WHEN whole_gpus > 0 THEN whole_gpus {of_shards} ELSE 0 END)::INTEGER AS gpus,
            ({milli})::INTEGER AS share_milli, 0::BIGINT AS share_mem_mib,
            1000 * coalesce(nullif(given.cpus, 0), nullif(asked.cpus, 0), judged.cpus, 0) AS cpu_milli,
            coalesce(nullif(given.mem_mib, 0), asked.mem_mib) AS mem_mib,
            hosts.names AS nodes,
            coalesce(nullif(given.gpu_model, ''), nullif(asked.gpu_model, ''),
                CASE WHEN whole_gpus > 0 THEN hosts.gpu_model ELSE '' END) AS gpu_model,
            NULL::BIGINT AS work_ms, gpu_use AS gpu_use_mean,
            gpu_peak_pct::DOUBLE AS gpu_use_peak, gpu_mem AS gpu_mem_mean, gpu_peak_mib::DOUBLE AS gpu_mem_peak,
            cluster, {names["name"]} AS name,
            {names["account"]} AS account, qos,
            (CASE WHEN {ran} THEN {nodes} ELSE 0 END)::INTEGER AS node_count,
            limit_min * 60000 AS time_limit_ms, eligible_ms,
            (CASE WHEN reason = 'None' THEN '' ELSE reason END) AS wait_reason,
            {comment} AS comment, {command} AS command,
            (CASE WHEN {ran} THEN {exit_code} END)::INTEGER AS exit_code, '' AS end_reason,
            CASE WHEN label <> id OR {IS_LABEL.format("id")} THEN label ELSE '' END AS label,
            CASE WHEN {ran} THEN suspended_ms END AS suspended_ms, cpu_used_ms, mem_peak_mib,
            nullif(energy_j, 0) AS energy_j, -- 0 is what Slurm writes where nothing measures it
            []::VARCHAR[] AS gpu_slots, NULL::BIGINT AS priority
        FROM judged {hidden}
        JOIN tres given ON given.text = alloc JOIN tres asked ON asked.text = req
        JOIN hosts ON hosts.text = node_list
        JOIN apps ON apps.name = judged.name AND apps.comment = judged.comment AND apps.command = judged.command
        WHERE why IS NULL)
    """


@lru_cache(maxsize=1)
def _memory_cases() -> str:
    return " ".join(
        f"WHEN '{name.upper()}' THEN {model.mem_mib}.0"
        for name, model in GPU_MODELS.items()
        if model.mem_mib and name not in _AMBIGUOUS
    )


def _memory_mib(column: str) -> str:
    """The memory of one GPU of this model; NULL where its name does not tell."""
    return f"(CASE replace(upper({column}), '_', '-') {_memory_cases()} END)"
