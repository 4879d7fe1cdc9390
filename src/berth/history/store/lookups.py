"""What there are few different values of in a table of jobs, looked up once for each value and not for each row.

Names of people replaced by keyed hashes, with the key outside the history.

The same name under the same key is the same pseudonym, so that statistics stay what they are; without the key
a reader can neither tell who it is nor try names out (BLAKE2b with a key).
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import duckdb

from berth.errors import SettingError, cause_of
from berth.history.store.database import make_table
from berth.history.values.applications import Rules
from berth.history.values.hostlist import expand
from berth.history.values.tres import resources

_LOOKED_UP_AT_ONCE = 50_000
LOOKUPS: Final = {
    "tres": {
        **{"text": "VARCHAR", "gpus": "BIGINT", "gpu_model": "VARCHAR", "shards": "BIGINT"},
        **{
            "cpus": "BIGINT",
            "mem_mib": "BIGINT",
            "a_node": "BIGINT",
            "nodes": "BIGINT",
            "unknown": "VARCHAR",
        },
    },
    "hosts": {"text": "VARCHAR", "names": "VARCHAR[]", "gpu_model": "VARCHAR"},
    "hidden": {"kind": "VARCHAR", "text": "VARCHAR", "pseudonym": "VARCHAR"},
}
"""The columns of each table of lookups but those of applications."""
_APPLICATIONS: Final = dict.fromkeys(("name", "comment", "command", "application"), "VARCHAR")


def look_up(
    database: duckdb.DuckDBPyConnection, rows: str, tres_names: Mapping[str, str], models: Mapping[str, str]
) -> None:
    """Fill the tables `tres` and `hosts`, a row for each different text in `rows`, a relation of SQL."""
    _look_up_each(
        database,
        "tres",
        f"SELECT DISTINCT alloc FROM {rows} UNION SELECT DISTINCT req FROM {rows}",
        lambda row: (row[0], *resources(row[0], tres_names)),
    )
    _look_up_each(
        database,
        "hosts",
        f"SELECT DISTINCT node_list FROM {rows}",
        lambda row: (row[0], *hosts_row(host_names(row[0]), models)),
    )


def applications_of(database: duckdb.DuckDBPyConnection, table: str, source: str, rules: Rules) -> None:
    """Fill a table with the application of each different name, comment and command of a source."""
    _look_up_each(
        database,
        table,
        f"SELECT DISTINCT name, comment, command FROM {source}",
        lambda row: (*row, rules.application(row[1], row[0], row[2])),
    )


def hide(database: duckdb.DuckDBPyConnection, source: str, key: bytes) -> None:
    """Fill the table `hidden`, a row for each user, account and name; empty without a key."""
    kinds = PSEUDONYMISED if key else ()
    query = " UNION ALL ".join(f"SELECT DISTINCT '{kind}', {kind} FROM {source}" for kind in kinds)
    _look_up_each(
        database,
        "hidden",
        query or "SELECT '', '' WHERE false",
        lambda row: (row[0], row[1], pseudonym(key, row[0], row[1])),
    )


def hosts_row(names: Sequence[str], models: Mapping[str, str]) -> tuple[str, str]:
    """The names of nodes as one text, and the GPU model of the first of them that has a known one."""
    return "|".join(names), next((models[name] for name in names if name in models), "")


def host_names(text: str) -> tuple[str, ...]:
    """The names of a list; none if it cannot be read, since the number of nodes is known all the same."""
    try:
        return tuple(name for name in expand(text) if "|" not in name)
    except ValueError:
        return ()


def _look_up_each(
    database: duckdb.DuckDBPyConnection,
    name: str,
    query: str,
    make: Callable[[tuple[Any, ...]], tuple[object, ...]],
) -> None:
    """Make a table with what `make` gives for each row of a query."""
    with database.cursor() as reader:
        found = reader.execute(query)
        rows = chain.from_iterable(iter(lambda: found.fetchmany(_LOOKED_UP_AT_ONCE), []))
        make_table(database, name, LOOKUPS.get(name, _APPLICATIONS), map(make, rows))


PSEUDONYMISED: Final = ("user", "account", "name")
"""The columns that are replaced; comment and command, which may name a user, are left empty."""

KEY_BYTES: Final = 32


def read_key(path: Path, history: Path) -> bytes:
    """The key in a file, which is made, for its owner alone, where there is none.

    SettingError where the file lies in the history, or holds no key.
    """
    if path.resolve().is_relative_to(history.resolve()):
        raise SettingError(
            f"the key {path} lies in the history {history}; keep it where the history is not copied to"
        )
    try:
        if not path.exists():
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(KEY_BYTES) + "\n")
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise SettingError(f"{path} cannot be read as a key: {cause_of(error)}") from error
    if len(key) < KEY_BYTES // 2:
        raise SettingError(f"{path} holds a key of {len(key)} bytes; expected {KEY_BYTES}")
    return key


def key_mark(key: bytes) -> int:
    """A number that tells keys apart and does not tell the key; 0 for none."""
    return int.from_bytes(hashlib.blake2b(key, person=b"mark", digest_size=6).digest(), "big") if key else 0


def pseudonym(key: bytes, kind: str, name: str) -> str:
    """What stands for a name of one kind; nothing stays nothing."""
    if not name:
        return ""
    digest = hashlib.blake2b(name.encode(), key=key, person=kind.encode()[:16], digest_size=8)
    return f"{kind[0]}{digest.hexdigest()}"
