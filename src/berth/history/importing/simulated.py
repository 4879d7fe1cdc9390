"""berth's own records, simulated or live, into the history."""

from __future__ import annotations

from pathlib import Path

import duckdb

from berth.errors import HistoryError
from berth.history.store.database import at, connect, first_line, literal
from berth.history.store.folder import History
from berth.history.store.import_result import ImportResult, Options, Rejections, Staged
from berth.history.store.lookups import hide
from berth.history.store.pseudonyms import PSEUDONYMISED, key_mark
from berth.history.store.record_files import ADDED, SCHEMA


def import_records(
    history: History, path: Path, options: Options, query: str = "FROM read_parquet($1)"
) -> ImportResult:
    """Import a Parquet file of records; `options.cluster` names the cluster of those that name none.

    `query` makes records of another file, or of those of a folder, which it calls `$1`. Two simulations of one trace
    have the same jobs: give each a cluster of its own. HistoryError where the file is none of berth's records.
    """
    files = f"{at(path)[:-1]}/**/*.parquet'" if path.is_dir() else at(path)
    query = query.replace("$1", files)
    with history.import_space() as space, connect(space) as database:
        try:
            there = {row[0] for row in database.execute(f"DESCRIBE {query}").fetchall()}
            lacking = [name for name in SCHEMA if name not in there and name not in ADDED]
            if lacking:
                raise HistoryError(
                    f"{path} is not a file of berth's records: it has no column {', '.join(lacking)}"
                )
            columns = [
                f'"{name}"' if name in there else f'{ADDED[name]}::{kind} AS "{name}"'
                for name, kind in SCHEMA.items()
            ]
            own = [name for name in SCHEMA if name not in ("attempt", "submit_ms", "cluster")]
            database.execute(f"CREATE VIEW plain AS SELECT {', '.join(columns)} FROM ({query})")
            source = "plain"
            if options.key:
                hide(database, "plain", options.key)
                names = ", ".join(
                    f"(SELECT pseudonym FROM hidden h WHERE h.kind = '{kind}' AND h.text = plain.{kind}) AS {kind}"
                    for kind in PSEUDONYMISED
                )
                source = f"(SELECT * REPLACE ({names}, '' AS comment, '' AS command) FROM plain)"
            database.execute(
                f"CREATE VIEW staged AS SELECT {', '.join(own)}, coalesce(nullif(cluster, ''), "
                f"{literal(options.cluster)}) AS cluster FROM {source}"
            )
            database.execute(
                "CREATE VIEW staged_keys AS SELECT cluster, job_id, queued_ms, end_ms FROM staged"
            )
            found = database.execute("SELECT count(*) FROM staged").fetchone()
        except duckdb.Error as error:
            why = (
                f"{path} cannot be read: {first_line(error)}; expected records of `berth simulate --records`"
            )
            raise HistoryError(why) from error
        rows = int(found[0]) if found else 0
        return history.merge(database, Staged(rows, key_mark=key_mark(options.key)), Rejections())
