"""A connection to MariaDB or MySQL in which nothing can be written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote

from berth.errors import HistoryError, MissingExtraError, SettingError

if TYPE_CHECKING:
    import pymysql

Values = tuple[int, ...]

_EXPECTED: Final = "expected mysql+pymysql://user:password@host/database"
_ADDRESS: Final = re.compile(
    r"(?P<kind>\w+)(?:\+(?P<driver>\w+))?://(?:(?P<user>[^:/]*)(?::(?P<password>[^@]*))?@)?"
    r"(?:\[(?P<host6>[^]/?]+)\]|(?P<host>[^:/?]*))(?::(?P<port>\d+))?(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
_OPTIONS: Final = ("ssl_ca", "ssl_cert", "ssl_key", "unix_socket")
"""What may follow the address, as `?ssl_ca=/etc/ca.pem`."""


@dataclass(frozen=True, slots=True)
class Connection:
    """A session that only reads."""

    _session: pymysql.Connection[Any]
    shown: str
    """The address as it may be shown, without the password."""

    def all(self, query: str, values: Values = ()) -> Sequence[tuple[Any, ...]]:
        """All rows."""
        with self._session.cursor() as cursor:
            cursor.execute(query, values or None)
            return tuple(cursor.fetchall())

    def value(self, query: str, values: Values = ()) -> Any:
        """The first value of the first row; None if there is no row."""
        rows = self.all(query, values)
        return rows[0][0] if rows else None

    def stream(self, query: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Rows as the server sends them."""
        from pymysql.cursors import SSCursor

        with self._session.cursor(SSCursor) as cursor:
            cursor.execute(query, values or None)
            yield from cursor

    def renew(self) -> None:
        """Begin a transaction anew: what is asked from now on is of one moment."""
        self._session.rollback()


@contextmanager
def connection(url: str) -> Iterator[Connection]:
    """A connection to the database of an address such as `mysql+pymysql://user:password@host:3306/name`.

    SettingError if it is no such address; HistoryError, without the password, if the database does not answer or
    forbids what it is asked.
    """
    words, shown = _parts(url)
    try:
        import pymysql
    except ImportError as error:
        raise MissingExtraError("berth import slurmdbd", "slurm") from error
    try:
        session = pymysql.connect(**words, charset="utf8mb4")
        try:
            found = Connection(session, shown)
            found.all("SET SESSION TRANSACTION READ ONLY")
            found.all("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            found.renew()  # the settings hold from the next transaction on
            yield found
        finally:
            session.close()
    except (pymysql.MySQLError, OSError) as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise HistoryError(
            f"{shown}: {reason[:300]}. What came before is kept; the next import goes on from there"
        ) from error


def _parts(url: str) -> tuple[dict[str, Any], str]:
    """What PyMySQL is to be called with, and the address without its password."""
    parts = _ADDRESS.fullmatch(url)
    if parts is None:
        raise SettingError(f"no address of a database; {_EXPECTED}")
    if parts["kind"] not in ("mysql", "mariadb") or parts["driver"] not in (None, "pymysql"):
        kind = parts["kind"] + (f"+{parts['driver']}" if parts["driver"] else "")
        raise SettingError(f"slurmdbd keeps its jobs in MySQL or MariaDB, not in '{kind}'; {_EXPECTED}")
    options = dict(parse_qsl(parts["query"] or ""))
    options.pop("charset", None)
    if odd := sorted(options.keys() - set(_OPTIONS)):
        raise SettingError(
            f"the address of the database has {', '.join(odd)}; it may have {', '.join(_OPTIONS)}"
        )
    words = {
        "host": parts["host6"] or parts["host"] or "localhost",
        "port": int(parts["port"] or 3306),
        "user": unquote(parts["user"] or ""),
        "password": unquote(parts["password"] or ""),
        "database": unquote(parts["database"] or ""),
        **options,
    }
    first, last = (parts.start("password"), parts.end("password"))
    return words, url if first < 0 else f"{url[:first]}***{url[last:]}"
