"""Keeps OpenSSL out of a process: asyncio and hashlib load it where it is there, and it takes 4.5 MiB of 26.

To be imported before them. Digests are then those that come with Python.
"""

from __future__ import annotations

import sys

for name in ("ssl", "_ssl", "_hashlib"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]
