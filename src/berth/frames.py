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
