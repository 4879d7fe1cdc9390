"""DuckDB itself, without the Python package around it, whose import takes longer than finding one job of millions.

The classes are the same ones: an `Error` that is raised here is a `duckdb.Error`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["duckdb"]

if TYPE_CHECKING:
    import duckdb
else:
    try:
        import _duckdb as duckdb
    except ImportError:  # before 1.4 it was a part of the package
        import duckdb
