"""Profiles by the name of their application, and the folder that keeps them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from berth.errors import ProfileError
from berth.files import plain_name, whole_file
from berth.model import Profile
from berth.profiles.file import checked, profile_text, read_profile

IN_HISTORY = "profiles"
"""The folder of a history that holds its profiles, a file each."""
SHARED = "live, shared"
"""The kind of a profile of which no run was alone: its use of the GPU is at least what it says."""
RUNNING = "live, running"
"""The kind of a profile of runs that go on, such as of a service: it says nothing of their run time."""
ENDING = ".profile.csv"


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

    def __or__(self, others: Mapping[str, Profile]) -> Profiles:
        """All of both; where both know an application, the other's counts."""
        return Profiles([*self.values(), *others.values()])

    @classmethod
    def of_folder(
        cls, folder: str | os.PathLike[str], *, wrong: list[ProfileError] | None = None
    ) -> Profiles:
        """All profiles of a folder. Raises ProfileError for a folder that is not there, or a file that is wrong.

        With `wrong` what is to be said of such files goes there, and the others are read.
        """
        path = Path(folder)
        if not path.is_dir():
            raise ProfileError(f"there is no folder {path}; make one with `berth profile import` or `record`")
        found = []
        for file in sorted(path.glob(f"*{ENDING}")):
            try:
                found.append(read_profile(file))
            except ProfileError as error:
                if wrong is None:
                    raise
                wrong.append(error)
        return cls(found)

    @classmethod
    def of_history(
        cls, history: str | os.PathLike[str], *, wrong: list[ProfileError] | None = None
    ) -> Profiles:
        """The profiles of a history; none where it has none yet. `wrong` as for a folder."""
        path = Path(history) / IN_HISTORY
        return cls.of_folder(path, wrong=wrong) if path.is_dir() else cls()

    def of_runs_alone(self) -> Profiles:
        """Those that were recorded of runs alone, and so tell how applications press on each other."""
        return Profiles(profile for profile in self.values() if profile.kind != SHARED)


def keep_profile(profile: Profile, folder: str | os.PathLike[str]) -> Path:
    """Write a profile into a folder of profiles, in place of the same application's; says where."""
    path = Path(folder) / file_name(profile.application)
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(profile_text(checked(profile)), encoding="utf-8")
    return path


def file_name(application: str) -> str:
    """The name of an application's profile in a folder of profiles."""
    return plain_name(application) + ENDING
