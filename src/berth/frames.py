"""Results as data frames of pandas, Polars or Arrow, whichever is installed; berth depends on none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from berth.errors import SettingError


def frame(rows: Sequence[Mapping[str, object]], library: str) -> Any:
    """The rows as a pandas.DataFrame, polars.DataFrame or pyarrow.Table; the keys of the first are the columns.

    Raises SettingError where the library is not installed.
    """
    try:
        module = import_module(library)
    except ImportError as error:
        raise SettingError(
            f"this needs {library}, which berth does not install: pip install {library}"
        ) from error
    if library == "pandas":
        return module.DataFrame(list(rows))
    if library == "polars":
        return module.DataFrame(list(rows), infer_schema_length=None)
    return module.Table.from_pylist(list(rows))


class Framed:
    """What has rows, which it gives as a frame too."""

    __slots__ = ()

    def rows(self) -> list[dict[str, object]]:
        """The rows; each has the same keys."""
        raise NotImplementedError

    def to_arrow(self) -> Any:
        """`rows()` as a pyarrow.Table, which DuckDB reads by its name in a query. Needs pyarrow."""
        return frame(self.rows(), "pyarrow")

    def to_pandas(self) -> Any:
        """`rows()` as a pandas.DataFrame. Needs pandas."""
        return frame(self.rows(), "pandas")

    def to_polars(self) -> Any:
        """`rows()` as a polars.DataFrame. Needs polars."""
        return frame(self.rows(), "polars")
