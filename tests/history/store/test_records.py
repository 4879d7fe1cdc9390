"""Records from events, stored, and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from berth import traces
from berth.cli.app import app
from berth.cluster import Cluster
from berth.engine import simulate
from berth.errors import HistoryError, SettingError, TraceError
from berth.experiments.compare import compare
from berth.gpu_models import gpu_model
from berth.history.store.record_files import recorded, records, write_records
from berth.model import Event, EventKind, GpuSlot, Job, Node, Reason, Record, RecordState, Share
from tests.examples import examples
from tests.history.histories import read_records

NODES = (Node("a", 2, gpu_model("T4")), Node("b", 2, gpu_model("P100")))
JOB = Job("job", 5, 100, user="ada", application="bert", gpus=2, nodes=0, cpu_milli=9, virtual_cluster="vc")


def _event(
    time_ms: int,
    kind: EventKind,
    *slots: tuple[int, int],
    job: Job = JOB,
    attempt: int = 1,
    reason: Reason = Reason.NONE,
) -> Event:
    return Event(time_ms, kind, job, attempt, tuple(GpuSlot(*slot) for slot in slots), Share(600), reason)


def _record(
    attempt: int,
    queued_ms: int,
    start_ms: int | None,
    end_ms: int,
    state: RecordState,
    *nodes: str,
    reason: Reason = Reason.NONE,
) -> Record:
    return Record(
        job_id="job",
        attempt=attempt,
        user="ada",
        application="bert",
        virtual_cluster="vc",
        submit_ms=5,
        queued_ms=queued_ms,
        start_ms=start_ms,
        end_ms=end_ms,
        state=state,
        gpus=2,
        share=Share(600),
        cpu_milli=9,
        mem_mib=0,
        nodes=nodes,
        gpu_model={"a": "T4", "b": "P100", "": ""}[nodes[0] if nodes else ""],
        work_ms=100,
        node_count=len(nodes),
        end_reason=reason.value,
        gpu_slots=tuple(f"{name}:{index}" for name in nodes for index in range(2 // len(nodes))),
        priority=0,
    )


def test_every_try_has_a_record_and_so_has_a_rejection() -> None:
    events = [
        _event(5, EventKind.SUBMIT),
        _event(7, EventKind.START, (1, 0), (0, 0)),
        _event(9, EventKind.EVICT, (1, 0), (0, 0)),
        _event(9, EventKind.SUBMIT, attempt=2),
        _event(20, EventKind.START, (0, 0), (0, 1), attempt=2),
        _event(30, EventKind.FAIL, (0, 0), (0, 1), attempt=2, reason=Reason.OUT_OF_MEMORY),
        _event(30, EventKind.SUBMIT, attempt=3),
        _event(31, EventKind.START, (0, 0), (0, 1), attempt=3),
        _event(131, EventKind.FINISH, (0, 0), (0, 1), attempt=3),
        _event(140, EventKind.SUBMIT, attempt=4),
        _event(150, EventKind.REJECT, attempt=4, reason=Reason.PATIENCE),
    ]
    assert list(records(events, NODES)) == [
        _record(1, 5, 7, 9, RecordState.PREEMPTED, "b", "a"),
        _record(2, 9, 20, 30, RecordState.OUT_OF_MEMORY, "a", reason=Reason.OUT_OF_MEMORY),
        _record(3, 30, 31, 131, RecordState.COMPLETED, "a"),
        _record(4, 140, None, 150, RecordState.REJECTED, reason=Reason.PATIENCE),
    ]


@pytest.mark.parametrize(
    ("reason", "state"),
    [
        (Reason.NODE_LOST, RecordState.NODE_FAIL),
        (Reason.TIME_LIMIT, RecordState.TIMEOUT),
        (Reason.NONE, RecordState.FAILED),
    ],
)
def test_why_a_try_failed_is_its_state(reason: Reason, state: RecordState) -> None:
    events = [_event(5, EventKind.SUBMIT), _event(6, EventKind.START, (0, 0), (0, 1))]
    failure = _event(8, EventKind.FAIL, (0, 0), (0, 1), reason=reason)
    assert list(records([*events, failure], NODES)) == [_record(1, 5, 6, 8, state, "a", reason=reason)]


def test_a_withdrawn_job_has_a_record_whether_it_waited_or_ran() -> None:
    waited = [_event(5, EventKind.SUBMIT), _event(9, EventKind.CANCEL)]
    assert list(records(waited, NODES)) == [_record(1, 5, None, 9, RecordState.CANCELLED)]
    slots = ((0, 0), (0, 1))
    ran = [waited[0], _event(6, EventKind.START, *slots), _event(9, EventKind.CANCEL, *slots)]
    assert list(records(ran, NODES)) == [_record(1, 5, 6, 9, RecordState.CANCELLED, "a")]


def test_a_failed_start_has_a_record_that_says_so() -> None:
    reason, slots = Reason.FAILED_TO_START, ((0, 0), (0, 1))
    never = [_event(5, EventKind.SUBMIT), _event(9, EventKind.FAIL, reason=reason)]
    assert list(records(never, NODES)) == [_record(1, 5, None, 9, RecordState.FAILED, reason=reason)]
    held = [
        never[0],
        _event(6, EventKind.START, *slots),
        _event(9, EventKind.FAIL, *slots, reason=reason),
        _event(9, EventKind.SUBMIT, attempt=2),
    ]
    assert list(records(held, NODES)) == [_record(1, 5, 6, 9, RecordState.FAILED, "a", reason=reason)]


def test_no_estimate_is_ever_recorded_as_work() -> None:
    told = {"estimate_ms": 7, "time_limit_ms": 400}
    jobs = [Job(f"job-{at}", at, 100 + at, **told) for at in range(6)]
    for policy in ("sjf-estimated", "sjf-requested", "sjf"):
        found = list(records(simulate(jobs, Cluster(NODES), policy), NODES))
        assert {record.job_id: record.work_ms for record in found} == {job.id: job.work_ms for job in jobs}
    unknown = replace(JOB, work_ms=None, **told)
    events = [
        _event(5, EventKind.SUBMIT, job=unknown),
        _event(6, EventKind.START, (0, 0), (0, 1), job=unknown),
        _event(8, EventKind.FINISH, (0, 0), (0, 1), job=unknown),
    ]
    assert [record.work_ms for record in records(events, NODES)] == [None]


def test_an_event_out_of_place_is_refused() -> None:
    with pytest.raises(HistoryError, match="job 'job', attempt 1: finish at 8 ms without a start before it"):
        list(records([_event(8, EventKind.FINISH, (0, 0))], NODES))
    with pytest.raises(HistoryError, match="start at 8 ms without a submission before it"):
        list(records([_event(8, EventKind.START, (0, 0))], NODES))


TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0|"), max_size=4)
USES = st.none() | st.floats(0, 1)
RECORDS = st.builds(
    Record,
    job_id=TEXTS.filter(bool),
    attempt=st.integers(1, 9),
    user=TEXTS,
    application=TEXTS,
    virtual_cluster=TEXTS,
    submit_ms=st.integers(0, 10**12),
    queued_ms=st.integers(0, 10**12),
    start_ms=st.none() | st.integers(0, 10**12),
    end_ms=st.integers(0, 10**12),
    state=st.sampled_from(RecordState),
    gpus=st.integers(0, 128),
    share=st.builds(Share, st.integers(1, 1000), st.integers(0, 10**6)),
    cpu_milli=st.integers(0, 10**6),
    mem_mib=st.integers(0, 10**6),
    nodes=st.lists(TEXTS.filter(bool), max_size=3).map(tuple),
    gpu_model=TEXTS,
    work_ms=st.none() | st.integers(0, 10**12),
    gpu_use_mean=USES,
    gpu_use_peak=USES,
    gpu_mem_mean=USES,
    gpu_mem_peak=USES,
    name=TEXTS,
    comment=TEXTS,
    command=TEXTS,
    exit_code=st.none() | st.integers(-(2**31), 2**31 - 1),
    end_reason=st.sampled_from(Reason).map(str),
)


@settings(
    max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(history=st.lists(RECORDS, max_size=4))
def test_every_field_of_every_record_survives(tmp_path: Path, history: list[Record]) -> None:
    path = tmp_path / "history.parquet"
    assert write_records(history, path) == len(history)
    assert read_records(path) == history


def test_a_damaged_file_of_records_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "history.parquet"
    path.write_bytes(b"PAR1 and nothing more")
    with pytest.raises(TraceError, match="a whole Parquet file"):
        list(traces.read(path))


def test_the_history_is_a_trace_of_the_jobs_that_made_it(tmp_path: Path) -> None:
    path = tmp_path / "history"
    other = Job("other", 4, 50, gpus=1)
    unknown = Job("unknown", 3, 0)
    history = [
        *(
            _record(1, 5, 7, 9, RecordState.PREEMPTED, "b", "a"),
            _record(2, 9, 20, 120, RecordState.COMPLETED, "a", "b"),
        ),
    ]
    history += records(
        [
            *(_event(4, EventKind.SUBMIT, job=other), _event(6, EventKind.START, (0, 0), job=other)),
            _event(56, EventKind.FINISH, (0, 0), job=other),
        ],
        NODES,
    )
    write_records(history, path)
    trace = traces.read_trace(path)
    assert trace.format == "history"
    assert list(trace.jobs()) == [
        Job("other", 4, 50, gpus=1, share=Share(600)),
        Job("job", 5, 100, "ada", "bert", 2, Share(600), nodes=0, cpu_milli=9, virtual_cluster="vc"),
    ]
    assert unknown.id not in {job.id for job in trace.jobs()}


def test_jobs_of_two_clusters_stay_two_and_keep_their_time_limits(tmp_path: Path) -> None:
    path = tmp_path / "history"
    again = (
        _record(1, 5, 7, 9, RecordState.PREEMPTED, "a"),
        _record(2, 9, 20, 120, RecordState.COMPLETED, "a"),
    )
    alpha = [replace(record, cluster="alpha", time_limit_ms=500) for record in again]
    beta = replace(_record(1, 5, 30, 60, RecordState.COMPLETED, "b"), cluster="beta", work_ms=30, user="bob")
    alone = replace(beta, job_id="alone", submit_ms=6)
    write_records([*alpha, beta, alone], path)
    job = Job("alpha/job", 5, 100, "ada", "bert", 2, Share(600), cpu_milli=9, virtual_cluster="vc")
    assert list(traces.read(path)) == [
        replace(job, time_limit_ms=500),
        replace(job, id="beta/job", work_ms=30, user="bob"),
        replace(job, id="alone", submit_ms=6, work_ms=30, user="bob"),
    ]


def test_records_of_before_there_were_clusters_and_limits_are_a_trace_still(tmp_path: Path) -> None:
    path, old = tmp_path / "history", tmp_path / "old.parquet"
    write_records([_record(1, 5, 7, 107, RecordState.COMPLETED, "a")], path)
    chosen = f"SELECT * EXCLUDE (cluster, time_limit_ms) FROM read_parquet('{path}')"
    duckdb.sql(f"COPY ({chosen}) TO '{old}' (FORMAT parquet)")
    assert list(traces.read(old)) == list(traces.read(path))


@pytest.mark.slow
def test_the_records_of_a_simulation_are_those_of_its_events_and_its_trace_again(tmp_path: Path) -> None:
    path, trace = tmp_path / "records.parquet", "synthetic:demo?jobs=80"
    asked = ["simulate", trace, "--policy", "sjf", "--seed", "3", "--records", str(path), "--json"]
    done = CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    seeded = traces.read_trace(f"{trace}&seed=3")
    nodes = seeded.nodes or ()
    jobs = tuple(seeded.jobs())
    assert read_records(path) == list(records(simulate(jobs, Cluster(nodes), "sjf"), nodes))
    assert [
        (job.id, job.submit_ms, job.work_ms, job.gpus, job.time_limit_ms) for job in traces.read(path)
    ] == [(job.id, job.submit_ms, job.work_ms, job.gpus, job.time_limit_ms) for job in jobs]
    path.unlink()
    CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "out")])
    assert path.exists()  # a run that is kept is made anew for its records


def test_events_pass_while_records_are_written(tmp_path: Path) -> None:
    events = [_event(5, EventKind.SUBMIT), _event(7, EventKind.START, (0, 0), (0, 1))]
    path = tmp_path / "records.parquet"
    assert list(recorded(events, NODES, path)) == events  # the try has not ended, and has no record
    assert read_records(path) == []
    events.append(_event(9, EventKind.FINISH, (0, 0), (0, 1)))
    assert list(recorded(events, NODES, path)) == events
    assert len(read_records(path)) == 1


def test_records_are_of_one_run(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="records are of one run, not of 2"):
        compare("synthetic:demo?jobs=5", ["fifo", "sjf"], records=tmp_path / "records.parquet")
    with pytest.raises(SettingError, match=r"records are to be written to .* no folder"):
        compare("synthetic:demo?jobs=5", "fifo", records=tmp_path / "none" / "records.parquet")


def test_a_large_number_behind_many_small_ones_is_written_as_it_is(tmp_path: Path) -> None:
    """DuckDB would take a column whose first thousands of values are small for one of 32 bits."""
    small = Record(
        "0", 1, "u", "a", "", 0, 0, 0, 1, RecordState.COMPLETED, 1, Share(), 0, 0, ("n",), "V100", 1
    )
    large = replace(small, job_id="large", end_ms=2**40, work_ms=2**40)
    many = [replace(small, job_id=str(at), work_ms=None if at % 2 else 5) for at in range(9000)]
    write_records([*many, large], tmp_path / "r.parquet")
    assert read_records(tmp_path / "r.parquet") == [*many, large]
