"""The texts of the pages in each language: whole ones, with parts to fill in, and those that other modules compose.

English texts stand in the templates and modules. For each other language `locale/` has a gettext catalogue of them.

`{jobs:# job|# jobs}` in a text stands for a number with its noun: the first form for 1, the second for all others,
with the number in place of `#`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter
from typing import Final

from babel.messages.pofile import read_po

from berth.console.formats import decimal

LANGUAGES = {"en": "English", "ko": "한국어"}
"""Each language of the texts, in its own words."""
COMPOSED: Final = (
    "waits for room",
    "there is room; the policy has not placed it",
    "room is kept for job {job}",
    "room is kept for jobs {jobs}",
    "waits for CPUs: {what}",
    "waits for memory: {what}",
    "{free} of {all} CPUs are free, {wanted} wanted",
    "{free} % of its compute is free, {wanted} % wanted",
    "{free} is free, {wanted} wanted",
    "it is not among those named by --gpu",
    "it waits for job {job} ({kind})",
    "its start time has not come yet",
    "at most 1 task of its array runs at a time",
    "at most {count} tasks of its array run at a time",
    "held by its user",
    "cancelled while it waited",
    "it could not be started: {why}",
    "it could not be started {count} times: {why}",
    "its last attempt: {what}",
    "waits for a node that may run it",
    "{free} of {all} of a node's memory is free, {wanted} wanted",
    "waits for its next start",
    "{reason}; {count} job before it",
    "{reason}; {count} jobs before it",
    "{reason}; it cannot start while {count} GPU is drained, lost or used by others",
    "{reason}; it cannot start while {count} GPUs are drained, lost or used by others",
    "placed on {where}, and Slurm has not started it yet",
    "placed on {where}, to start when job {job} has ended",
    "placed on {where}, to start when jobs {jobs} have ended",
    "{ours} (Slurm: {code})",
    "it has fallen off the bus",
    "the node is {state}",
    "process {pid} ({command})",
    "the quota of '{pool}' is {gpus}, of which {part} are taken",
    "partition {name}",
    "claims: {part} % of compute",
    "other pods: {part} % of compute",
    "it has not been looked at yet",
    "no queue is up at {where}; start one with: berth up",
    "not measured",
    "Job {id} has waited {since} for room",
    "Job {id} has been {state} for {since}: {reason}",
    "Job {id} has been {state} for {since}",
    "  policy: {policy}; {ahead} of {waiting} waiting jobs are ahead of it",
    "  the first are {jobs}",
    "  expected to run {time} (by {basis})",
    "  expected to run {time}",
    "  expected to start at {moment}",
    "  it {lacks}",
    "  it cannot run even if nothing else does: {why}",
    "  GPU {index}: has room, left over {part} % and {memory}; held by {jobs}",
    "  GPU {index}: has room, left over {part} % and {memory}",
    "  GPU {index}: lost: the driver no longer answers for it; held by {jobs}",
    "  GPU {index}: lost: the driver no longer answers for it",
    "  GPU {index}: drained; jobs start there again after berth undrain {number}; held by {jobs}",
    "  GPU {index}: drained; jobs start there again after berth undrain {number}",
    "  GPU {index}: {lacking}; held by {jobs}",
    "  GPU {index}: {lacking}",
    "room on GPUs, until berth placed it",
    "Slurm to start it",
    "another place, after {why}",
    "resources",
    "not eligible",
    "{number} s",
    "{number} min",
    "{number} h",
    "{number} d",
    "{number} points",
    "{number} GPU",
    "{number} GPUs",
    "{number} job",
    "{number} jobs",
    "{number} node",
    "{number} nodes",
    "{number} {model} node",
    "{number} {model} nodes",
    "{number} week",
    "{number} weeks",
    "{number} or fewer",
    "default",
    "No size up to {nodes} keeps the {measure} at {target}.",
    "With {policy}, {part} of {nodes} keep the {measure} at {target}: {gpus} could be returned,"
    " {count} GPU-hours a week.",
    "With {policy}, {part} of {nodes} keeps the {measure} at {target}: {gpus} could be returned,"
    " {count} GPU-hours a week.",
    "The {measure} at {target} needs {nodes} with {policy}; there are {count}.",
    "The {measure} at {target} needs {nodes} with {policy}; there is {count}.",
    "No node can be returned: today's is the only one.",
    "No node can be returned: today's is the only {model} one.",
    "No node can be returned: with {policy} on {nodes} {why}.",
    "{jobs} does not finish, today {count}",
    "{jobs} do not finish, today {count}",
    "the {measure} is {now}, above {target}",
    "Over weeks drawn again, 80 % of the smallest sizes lie between {low} and {high} nodes.",
    "no size that was looked at",
    "On {nodes} {policy} does not finish {jobs}, such as {names}; today {count}.",
    "Sizes were looked at in steps of {count} nodes, and each size between the last two.",
    "Which policy ran is not known, and so neither is the error of these replays.",
    "No week has enough jobs to tell the error of a replay of {policy}.",
    "Error of this history's replays: the weekly 90th percentile of waits is off by {error} (median of {weeks}).",
    "Do not rely on these numbers: a replay of {policy}, which ran, misses the weekly 90th percentile of the real waits"
    " by {error} (median of {weeks}).",
    "90th percentile of waits",
    "mean wait",
    "mean bounded slowdown",
)
"""What queues, sources and the report put together, as templates by which the other languages recognise it."""
_OF_ANYTHING: Final = frozenset(text for text in COMPOSED if text.startswith("{number} "))
_NUMBER: Final = r"[+-]?[\d,]+(?:\.\d+)?"
_AMOUNT: Final = rf"{_NUMBER}(?: ?[KMGT](?:iB)?)?"
_SPAN: Final = r"(?:\d+-)?[\d:]+"
_PARTS: Final = {
    **dict.fromkeys(("number", "count", "ahead", "waiting", "index", "part", "pid"), _NUMBER),
    **dict.fromkeys(("free", "all", "wanted", "memory"), _AMOUNT),
    **dict.fromkeys(("since", "time"), _SPAN),
    **dict.fromkeys(("id", "job", "policy"), r"[^\s;]+"),
    "state": r"[^:;]+?",
    "lacks": r"waits for (?:CPUs|memory): .+",
    "moment": r"[\d-]+ [\d:]+",
    "nodes": rf"{_NUMBER} (?:.+? )?nodes?",
}
"""What each part of a template that is no text of its own may be; other parts may be any text."""


class _Number:
    """A number that a text may write with its noun."""

    def __init__(self, value: float) -> None:
        self._value = value

    def __format__(self, forms: str) -> str:
        value = self._value
        text = f"{value:,}" if isinstance(value, int) else decimal(value).removesuffix(".0")
        if not forms:
            return text
        one, _, many = forms.partition("|")
        return (one if text == "1" else many).replace("#", text)


def filled(text: str, **parts: object) -> str:
    """A text with its parts; numbers get commas, and their nouns the right form."""
    numbers = {name: _Number(part) for name, part in parts.items() if isinstance(part, (int, float))}
    return text.format(**{**parts, **numbers})


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language, as templates have them by the name `t`."""

    language: str

    def __call__(self, text: str, **parts: object) -> str:
        """A text of the pages with its parts."""
        found = translated(text, self.language)
        return filled(found, **parts) if parts else found

    def sentence(self, text: str) -> str:
        """A sentence that another part of berth has composed; as it is if no template fits."""
        return translated_sentence(text, self.language)


def translated(text: str, language: str) -> str:
    """A text of the pages in another language; a test holds that none is missing."""
    return text if language == "en" else _texts(language).get(text, text)


def translated_sentence(sentence: str, language: str) -> str:
    """A sentence that another part of berth has composed, in the reader's language; as it is if no template fits."""
    if language == "en" or not sentence:
        return sentence
    if sentence in _texts(language):
        return _texts(language)[sentence]
    for pattern, text in _patterns(language):
        if found := pattern.fullmatch(sentence):
            return text.format(
                **{name: _translated_part(name, part, language) for name, part in found.groupdict().items()}
            )
    return sentence


def _translated_part(name: str, part: str, language: str) -> str:
    """A part of a sentence. What a GPU lacks is a list, each of which is a sentence of its own. Names stay."""
    if name in ("pool", "names"):
        return part
    each = part.split("; ") if name == "lacking" else [part]
    return "; ".join(translated_sentence(text, language) for text in each)


def composed_pairs(language: str) -> list[tuple[str, str]]:
    """The templates with their translations, for scripts; none in English.

    Without lengths of time and the like: these fit any sentence that ends so, unless their parts are numbers.
    """
    if language == "en":
        return []
    return [(text, translated(text, language)) for text in COMPOSED if text not in _OF_ANYTHING]


@cache
def _patterns(language: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((_pattern(text), translated(text, language)) for text in COMPOSED)


def _pattern(text: str) -> re.Pattern[str]:
    """What a template has made."""
    words = [
        re.escape(plain) + (f"(?P<{name}>{_PARTS.get(name, '.+?')})" if name else "")
        for plain, name, _, _ in Formatter().parse(text)
    ]
    return re.compile("".join(words), re.DOTALL)


@cache
def _texts(language: str) -> dict[str, str]:
    catalogue = files("berth.console").joinpath("locale", language, "LC_MESSAGES", "console.po")
    with catalogue.open("rb") as file:
        return {str(message.id): str(message.string) for message in read_po(file) if message.id}
