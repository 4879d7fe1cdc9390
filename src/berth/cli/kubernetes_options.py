"""Options that several commands of `berth k8s` share."""

from __future__ import annotations

from enum import StrEnum


class Compat(StrEnum):
    """Whose words are read."""

    HAMI = "hami"
    KAI = "kai"
    ALIBABA = "alibaba"
    VOLCANO = "volcano"
