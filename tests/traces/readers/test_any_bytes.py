"""Whatever is in a file, reading it gives jobs or says what is wrong; nothing else comes out."""

from __future__ import annotations

import gzip
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from berth import traces
from berth.errors import TraceError
from berth.model import Job
from tests.examples import examples

SAMPLES = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time,scheduled_time\n"
    'a,1000,1024,1,500,T4|P100,0,10.5,5\n"b",1,1,0,0,,3,,\n',
    "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,c\n"
    "2017-10-08 07:01:55.25,66.0,8,66.0,c\n",
    "id,submit_ms,work_ms,gpus,models,keeps_work,priority\na,0,5,2,T4|G2,true,-3\nb,2,5,0,,,\n",
)


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A good file in which some bytes were replaced, left out or put in."""
    data = bytearray(draw(st.sampled_from(SAMPLES)).encode())
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b'"', b",", b"\n", b"\r", b"\0", b"\xff", b"-", b"nan", b"9" * 25, b"|", b"1e9", b" "]
            )
        )
    return gzip.compress(bytes(data))[: draw(st.integers(10, 400))] if draw(st.booleans()) else bytes(data)


def outcome(path: Path, skip_bad: list[TraceError] | None = None) -> list[Job] | TraceError:
    """The jobs, or what was raised."""
    try:
        return list(traces.read(path, skip_bad=skip_bad))
    except TraceError as error:
        return error


@settings(
    max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=spoilt())
def test_a_spoilt_file_gives_jobs_or_says_what_is_wrong(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "trace"
    path.write_bytes(data)
    skipped: list[TraceError] = []
    skipping = outcome(path, skipped)
    strict = outcome(path)
    if isinstance(skipping, TraceError):  # of the header: there is nothing to skip to
        assert str(strict) == str(skipping)
        assert str(skipping).startswith(str(path))
        return
    assert strict == skipping if not skipped else str(strict) == str(skipped[0])
    traces.write(skipping, tmp_path / "good.csv")
    assert list(traces.read(tmp_path / "good.csv")) == skipping
