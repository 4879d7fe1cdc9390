"""Files of limits, as the policy `limits` reads them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from berth.policies.schemes.limits import FORMAT, Limit


def write_limits(path: Path, *limits: Limit, policy: str = "") -> None:
    """Write a file of limits."""
    content = {
        "format": FORMAT,
        "version": 1,
        "policy": policy,
        "limits": [
            {key: value for key, value in asdict(limit).items() if value not in (None, "")}
            for limit in limits
        ],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
