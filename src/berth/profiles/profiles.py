"""Profiles by the name of their application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from berth.model import Profile

__all__ = ["Profiles"]


class Profiles(Mapping[str, Profile]):
    """A read-only mapping from an application to its profile; of two of one application the later counts."""

    def __init__(self, profiles: Iterable[Profile] = ()) -> None:
        self._by_application = {profile.application: profile for profile in profiles}

    def __getitem__(self, application: str) -> Profile:
        return self._by_application[application]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_application)

    def __len__(self) -> int:
        return len(self._by_application)
