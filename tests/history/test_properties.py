"""What holds of every history, however it came in."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berth.history.importing.sacct import import_text
from berth.history.store.folder import open_history
from berth.history.store.import_result import Options
from berth.statistics.accounting import DIMENSIONS, VARIABLES
from berth.statistics.tables import Tables
from tests.examples import examples
from tests.history import exports
from tests.history.by_records import GROUPS, VALUES, cdfs, usage, waits_by_cause

REASONS = (
    "None",
    "Resources",
    "Priority",
    "AssocGrpGRES",
    "Dependency",
    "BeginTime",
    "JobArrayTaskLimit",
    "Odd",
)
rows = st.lists(
    st.builds(
        lambda job, tries, user, app, gpus, nodes, waits, reason, started: [
            exports.line(
                JobIDRaw=job,
                User=user,
                Comment=app,
                State="COMPLETED" if at == tries - 1 else "NODE_FAIL",
                Submit=1_700_000_000 + job * 50_000 + at * 9000,
                Eligible=1_700_000_000 + job * 50_000 + at * 9000 + waits[0],
                Start=1_700_000_000 + job * 50_000 + at * 9000 + waits[0] + waits[1]
                if started
                else "Unknown",
                End=1_700_000_000 + job * 50_000 + at * 9000 + waits[0] + waits[1] + waits[2],
                NNodes=nodes,
                AllocTRES=f"cpu=4,gres/gpu={gpus}",
                NodeList=f"gpu[1-{nodes}]",
                Reason=reason,
            )
            for at in range(tries)
        ],
        st.integers(0, 12),
        st.integers(1, 3),
        st.sampled_from(("ann", "bob")),
        st.sampled_from(("pytorch", "tensorflow", "")),
        st.integers(0, 8),
        st.integers(1, 3),
        st.tuples(st.integers(0, 900), st.integers(0, 900), st.integers(0, 5000)),
        st.sampled_from(REASONS),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
).map(
    lambda jobs: list(
        {line.split("|")[0] + line.split("|")[7]: line for job in jobs for line in job}.values()
    )
)


@pytest.mark.slow
@settings(max_examples=examples(12), deadline=None)
@given(lines=rows, pieces=st.lists(st.integers(0, 30), max_size=3), order=st.randoms(use_true_random=False))
def test_a_history_is_the_same_however_its_import_is_cut_or_repeated(lines, pieces, order) -> None:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = open_history(Path(folder) / "whole"), open_history(Path(folder) / "cut")
        import_text(whole, exports.write(Path(folder) / "all", lines), Options())
        shuffled = lines.copy()
        order.shuffle(shuffled)
        ends = sorted({min(end, len(lines)) for end in pieces} | {len(lines)})
        for begin, end in zip([0, *ends], ends, strict=False):
            # A piece repeats what came before it: nothing may count twice.
            import_text(
                cut, exports.write(Path(folder) / "part", shuffled[max(begin - 2, 0) : end]), Options()
            )
        assert list(cut.records()) == list(whole.records())


@settings(max_examples=examples(10), deadline=None)
@given(lines=rows)
def test_tables_by_sql_are_those_of_the_records(lines) -> None:  # type: ignore[no-untyped-def]
    with tempfile.TemporaryDirectory() as folder:
        history = open_history(Path(folder) / "h")
        import_text(history, exports.write(Path(folder) / "f", lines), Options())
        records = list(history.records())
        with history.database() as database:
            tables = Tables(database)
            assert (tuple(GROUPS), tuple(VALUES)) == (DIMENSIONS, tuple(each.name for each in VARIABLES))
            for by in ((), *((name,) for name in DIMENSIONS), ("application", "month")):
                found, expected = tables.usage(by), usage(records, by)
                assert sorted(row.keys for row in found) == sorted(row.keys for row in expected)
                wanted = {row.keys: row for row in expected}
                for row in found:
                    other = wanted[row.keys]
                    assert (row.jobs, row.users) == (other.jobs, other.users)
                    assert math.isclose(row.gpu_hours, other.gpu_hours, abs_tol=1e-9)
                    assert math.isclose(row.run_hours, other.run_hours, abs_tol=1e-9)
                    assert math.isclose(row.wasted_gpu_hours, other.wasted_gpu_hours, abs_tol=1e-9)
            waits, others = tables.waits_by_cause(), waits_by_cause(records)
            assert waits.keys() == others.keys()
            assert all(math.isclose(waits[cause], others[cause], abs_tol=1e-9) for cause in waits)
            started = [r for r in records if r.start_ms is not None]
            waited = sum((r.start_ms - r.queued_ms) / 3_600_000 for r in started)  # type: ignore[operator]
            assert math.isclose(sum(waits.values()), waited, abs_tol=1e-9)
            expected_cdfs = cdfs(records)
            found_cdfs = tables.cdfs(sorted({r.application or "unknown" for r in records}))
            for application, by_variable in expected_cdfs.items():
                for variable, cdf in by_variable.items():
                    other_cdf = found_cdfs[application][variable]
                    np.testing.assert_allclose(other_cdf.values, cdf.values)
                    np.testing.assert_allclose(other_cdf.shares, cdf.shares)
                    assert (np.diff(cdf.shares) > 0).all()
                    assert (np.diff(cdf.values) > 0).all()
                    assert cdf.shares[-1] == 1.0
            for application in expected_cdfs:
                lines_of, counts = tables.lines(application)
                tries = [r for r in started if (r.application or "unknown") == application]
                assert counts.sum() == len(tries)
                if tries:
                    assert {int(n) for n in lines_of[:, 0]} == {r.node_count for r in tries}
