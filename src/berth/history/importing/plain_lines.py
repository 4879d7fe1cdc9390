"""Plain lines of a text table, split and their values told apart by a compiled loop; other lines are only found.

A line is plain where it is ASCII without control characters, has as many fields as the header, a number for its id, and
times and numbers in the one form in which Slurm writes them. Whatever else there is in a file is left to the
careful reader (`text_table.py`), which knows every form and says what is wrong with a line.

Letters: B bytes of text, L lines of it, F fields of a line, C columns of texts, N columns of numbers, D
dictionaries, H places in the hash table of a dictionary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from berth.arrays import released
from berth.history.values.tres import MARKS_MIB, MOST, MOST_AMOUNT

__all__ = [
    "AMOUNT",
    "COUNT",
    "ID",
    "LABEL",
    "NOTHING",
    "SKIPPED",
    "TEXT",
    "TIME",
    "Lines",
    "PlainLines",
    "get_ready",
    "pair_codes",
    "split_lines",
    "words",
]

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

SKIPPED, LABEL, ID, TIME, COUNT, TEXT, AMOUNT = range(7)
"""Kinds of a field. A label becomes two numbers, such as 12 and 3 of `12_3`; an amount may be larger than a count."""

MARKS: Final = (MARKS_MIB.start, MARKS_MIB.stop - 1)

NOTHING: Final = -1
"""Stands for no number; all that there are are 0 or more."""


@dataclass(frozen=True, slots=True)
class Lines:
    """How the fields of a line are to be read."""

    separator: int
    kinds: Ints  # (F,)
    columns: Ints  # (F,), in `codes` of a text, in `numbers` of a number
    dictionaries: Ints  # (F,), of a text: two fields may share one
    texts: int
    numbers: int
    words: int
    """How many dictionaries there are."""


@dataclass(frozen=True, slots=True, eq=False)
class PlainLines:
    """The plain lines (L,) of a text, and where the others are."""

    codes: Codes  # (C, L)
    numbers: Ints  # (N, L), NOTHING where there is none
    starts: Ints  # (L,)
    """Where each line starts."""
    order: Ints  # (L,)
    """Its number, from 0, among all lines."""
    word_starts: Ints  # (D, most different words)
    word_lengths: Codes  # (D, most different words)
    word_counts: Ints  # (D,)
    arena: Bytes
    """The different words, one after the other."""
    odd: Ints  # (M, 2)
    """Start and number of each line that is not plain."""
    lines: int
    """How many lines there are, of both."""


def split_lines(text: Bytes, most: int, lines: Lines) -> PlainLines:
    """Split a text (B,) of at most `most` lines, all of which have an end."""
    places = 1 << max(int(2 * most - 1).bit_length(), 8)
    codes = np.empty((lines.texts, most), np.int32)
    numbers = np.empty((lines.numbers, most), np.int64)
    starts, order = np.empty(most, np.int64), np.empty(most, np.int64)
    # A dictionary that two fields share may grow by two words a line.
    # Of these only what the words need is ever touched, and takes memory.
    tables = np.zeros((lines.words, 2 * places), np.int32)
    word_starts = np.empty((lines.words, 2 * most), np.int64)
    word_lengths = np.empty((lines.words, 2 * most), np.int32)
    masks = np.full(lines.words, 255, np.int64)
    word_counts = np.zeros(lines.words, np.int64)
    arena = np.empty(len(text), np.uint8)
    odd = np.empty((most, 2), np.int64)
    hashes = np.empty((lines.words, 2 * most), np.uint64)
    words_of = (tables, masks, hashes, word_starts, word_lengths, word_counts, arena)
    plain = _split(
        *(text, lines.separator, lines.kinds, lines.columns, lines.dictionaries, codes, numbers, starts),
        *(order, *words_of, odd),  # type: ignore[arg-type]
    )
    return PlainLines(
        codes=codes[:, :plain],
        numbers=numbers[:, :plain],
        starts=starts[:plain],
        order=order[:plain],
        word_starts=word_starts,
        word_lengths=word_lengths,
        word_counts=word_counts,
        arena=arena,
        odd=odd[: most - plain],
        lines=most,
    )


def get_ready() -> None:
    """Load the compiled loop, which takes a moment, before there is something to split."""
    one = np.zeros(1, np.int64)
    split_lines(np.array([10], np.uint8), 1, Lines(124, one, one, one, 1, 1, 1))
    pair_codes(np.zeros(1, np.int32), np.zeros(1, np.int32))


def words(plain: PlainLines, dictionary: int) -> list[str]:
    """The different values of a dictionary by their codes."""
    count = int(plain.word_counts[dictionary])
    starts = plain.word_starts[dictionary, :count].tolist()
    lengths = plain.word_lengths[dictionary, :count].tolist()
    used = max((start + length for start, length in zip(starts, lengths, strict=True)), default=0)
    text = plain.arena[:used].tobytes().decode("ascii")
    return [text[start : start + length] for start, length in zip(starts, lengths, strict=True)]


@released
def _split(
    text: Bytes,
    separator: int,
    kinds: Ints,
    columns: Ints,
    dictionaries: Ints,
    codes: Codes,
    numbers: Ints,
    starts: Ints,
    order: Ints,
    tables: Codes,  # (D, H)
    masks: Ints,  # (D,), of the places in use
    hashes: NDArray[Any],  # (D, most different words)
    word_starts: Ints,
    word_lengths: Codes,
    word_counts: Ints,
    arena: Bytes,
    odd: Ints,
) -> int:
    """Fill the arrays; returns how many lines are plain."""
    # Places in the text are unsigned: of signed ones Numba asks each time whether they count from the end.
    size, at, kept, one = np.uint64(len(text)), np.uint64(0), np.uint64(0), np.uint64(1)
    fields = len(kinds)
    plain = line = 0
    while at < size:
        begin = at
        field = 0
        good = True
        forms = 0
        while True:
            # One field: its end, its hash, and whether all of it is ASCII.
            first = at
            hash_ = np.uint64(14695981039346656037)
            byte = text[at]
            kind = kinds[field] if field < fields else SKIPPED
            if kind == TEXT:
                while byte != separator and byte != 10:
                    if byte < 32 or byte > 126:
                        good = False
                    hash_ = (hash_ ^ np.uint64(byte)) * np.uint64(1099511628211)
                    at += one
                    byte = text[at]
            else:
                while byte != separator and byte != 10:
                    if byte < 32 or byte > 126:
                        good = False
                    at += one
                    byte = text[at]
            length: Any = np.int64(at - first)
            end = at
            at += one
            if field >= fields:
                good = False
            elif good:
                if kind == TEXT:
                    which = dictionaries[field]
                    mask = masks[which]
                    place = np.int64((hash_ ^ (hash_ >> np.uint64(32))) & np.uint64(mask))
                    while True:
                        word = tables[which, place] - 1
                        if word < 0:
                            word = word_counts[which]
                            word_counts[which] += 1
                            tables[which, place] = word + 1
                            hashes[which, word] = hash_
                            word_starts[which, word] = kept
                            word_lengths[which, word] = length
                            own = first
                            while own < end:
                                arena[kept] = text[own]
                                kept += one
                                own += one
                            if 2 * word_counts[which] > mask:
                                masks[which] = _widen(tables[which], hashes[which, : word + 1], 4 * mask + 3)
                            break
                        if hashes[which, word] == hash_ and word_lengths[which, word] == length:
                            other, own = np.uint64(word_starts[which, word]), first
                            while own < end and arena[other] == text[own]:
                                other += one
                                own += one
                            if own == end:
                                break
                        place = (place + 1) & mask
                    codes[columns[field], plain] = word
                elif kind == TIME:
                    good, value, form = _time(text, first, length)
                    numbers[columns[field], plain] = value
                    forms |= form
                elif kind == COUNT:
                    good, value = _count(text, first, length)
                    numbers[columns[field], plain] = value
                elif kind == ID:
                    good, value = _digits(text, first, length)
                    good = good and bool(0 < length < 19) and bool(text[first] != 48 or length == 1)
                    numbers[columns[field], plain] = value
                elif kind == AMOUNT:
                    good, value = _amount(text, first, length)
                    numbers[columns[field], plain] = value
                elif kind == LABEL:
                    good, value, part = _label(text, first, length)
                    numbers[columns[field], plain] = value
                    numbers[columns[field] + 1, plain] = part
            field += 1
            if byte == 10:
                break
        if good and field == fields and forms != 3 and np.int64(at - begin) < 1_000_000:
            starts[plain] = begin
            order[plain] = line
            plain += 1
        else:
            odd[line - plain, 0] = begin
            odd[line - plain, 1] = line
        line += 1
    return plain


@released
def _widen(table: Codes, hashes: NDArray[Any], mask: int) -> int:
    """Put words by their hashes into a larger part of their table; returns the mask of places in it."""
    mask = min(mask, len(table) - 1)
    table[: mask + 1] = 0
    for word in range(len(hashes)):
        place = np.int64((hashes[word] ^ (hashes[word] >> np.uint64(32))) & np.uint64(mask))
        while table[place] > 0:
            place = (place + 1) & mask
        table[place] = word + 1
    return mask


@released
def _digits(text: Bytes, first: Any, length: int) -> tuple[bool, int]:
    value: Any = 0
    at = np.uint64(first)
    for step in range(length):
        digit = np.int64(text[at]) - 48
        if digit < 0 or digit > 9 or step > 17:
            return False, 0
        value = value * 10 + digit
        at += np.uint64(1)
    return True, value


@released
def _count(text: Bytes, first: Any, length: int) -> tuple[bool, int]:
    """A count; nothing, a word such as UNLIMITED and Slurm's marks for none are NOTHING."""
    if length == 0:
        return True, NOTHING
    letter = text[first] | 32
    if 97 <= letter <= 122:
        return True, NOTHING
    good, value = _digits(text, first, length)
    return good, value if value <= MOST else NOTHING


@released
def _amount(text: Bytes, first: Any, length: int) -> tuple[bool, int]:
    """An amount; nothing, and Slurm's marks for none, are NOTHING, as are 0 and 00:00:00: not measured."""
    if length == 0:
        return True, NOTHING
    if length == 8 and text[first + np.uint64(2)] == 58:
        for step in range(8):
            if text[first + np.uint64(step)] != (58 if step in (2, 5) else 48):
                return False, NOTHING
        return True, NOTHING
    good, value = _digits(text, first, length)
    if value == 0 or value > MOST_AMOUNT or MARKS[0] <= value <= MARKS[1]:
        return good, NOTHING
    return good, value


@released
def _label(text: Bytes, first: Any, length: int) -> tuple[bool, int, int]:
    """The two numbers of 12_3 or 12+3, the second of which is −2 − 3; of 12 alone that and NOTHING."""
    split = 0
    for step in range(length):
        byte = text[first + np.uint64(step)]
        if byte == 95 or byte == 43:
            split = step
            break
    if split == 0:
        good, value = _digits(text, first, length)
        return good and length > 0 and (text[first] != 48 or length == 1), value, NOTHING
    good, value = _digits(text, first, split)
    also, part = _digits(text, first + np.uint64(split + 1), length - split - 1)
    whole = text[first] != 48 and (text[first + np.uint64(split + 1)] != 48 or length == split + 2)
    if text[first + np.uint64(split)] == 43:
        part = -2 - part
    return good and also and whole and length > split + 1, value, part


@released
def _time(text: Bytes, first: Any, length: int) -> tuple[bool, int, int]:
    """Milliseconds since 1970 of 2026-11-21T01:10:19 (form 1) or of 1795223419 (form 2); form 0 is no time."""
    if length == 19:
        year = _two(text, first) * 100 + _two(text, first + np.uint64(2))
        month, day = _two(text, first + np.uint64(5)), _two(text, first + np.uint64(8))
        hour, minute, second = (
            _two(text, first + np.uint64(11)),
            _two(text, first + np.uint64(14)),
            _two(text, first + np.uint64(17)),
        )
        marks = (
            text[first + np.uint64(4)] == 45
            and text[first + np.uint64(7)] == 45
            and text[first + np.uint64(10)] == 84
            and text[first + np.uint64(13)] == 58
            and text[first + np.uint64(16)] == 58
        )
        if not marks or year < 1970 or year > 9999 or month < 1 or month > 12 or day < 1 or day > 28:
            # The last days of a month are looked at more closely.
            leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
            last = 31
            if month == 4 or month == 6 or month == 9 or month == 11:
                last = 30
            elif month == 2:
                last = 29 if leap else 28
            if not marks or year < 1970 or year > 9999 or month < 1 or month > 12 or day < 1 or day > last:
                return False, 0, 1
        if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
            return False, 0, 1
        # Days since 1970 of a date, with years that begin in March.
        shifted = year - 1 if month <= 2 else year
        of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
        days = shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + of_year - 719468
        return True, (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000, 1
    if 9 <= length <= 10 and text[first] != 48:
        good, value = _digits(text, first, length)
        return good, value * 1000, 2
    if length == 0 or (length == 1 and text[first] == 48):
        return True, NOTHING, 0
    if (
        length == 7
        and text[first] == 85
        and text[first + np.uint64(1)] == 110
        and text[first + np.uint64(2)] == 107
    ):
        # Unknown
        known = text[first + np.uint64(3)] == 110 and text[first + np.uint64(4)] == 111
        return known and text[first + np.uint64(5)] == 119 and text[first + np.uint64(6)] == 110, NOTHING, 0
    if length == 4 and text[first] == 78 and text[first + np.uint64(1)] == 111:
        # None
        return text[first + np.uint64(2)] == 110 and text[first + np.uint64(3)] == 101, NOTHING, 0
    return False, 0, 0


@released
def _two(text: Bytes, first: Any) -> int:
    """A number of two digits; one far below 0 where it is none."""
    tens, ones = np.int64(text[first]) - 48, np.int64(text[first + np.uint64(1)]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1_000_000
    return int(tens * 10 + ones)


def pair_codes(first: Codes, second: Codes) -> tuple[Codes, Codes, Codes]:
    """A code (L,) for each pair of codes that there is, and the two halves of each pair (P,)."""
    most = len(first)
    codes = np.empty(most, np.int32)
    halves = np.empty((2, most), np.int32)
    table = np.zeros(1 << max(int(2 * most - 1).bit_length(), 4), np.int32)
    count = _pairs(first, second, table, codes, halves)
    return codes, halves[0, :count], halves[1, :count]


@released
def _pairs(first: Codes, second: Codes, table: Codes, codes: Codes, halves: Codes) -> int:
    mask = len(table) - 1
    count = 0
    for line in range(len(first)):
        one, two = np.int64(first[line]), np.int64(second[line])
        mixed = (np.uint64(one) << np.uint64(32) | np.uint64(two)) * np.uint64(11400714819323198485)
        place = np.int64((mixed >> np.uint64(30)) & np.uint64(mask))
        while True:
            pair = table[place] - 1
            if pair < 0:
                pair = count
                table[place] = pair + 1
                halves[0, pair] = one
                halves[1, pair] = two
                count += 1
                break
            if halves[0, pair] == one and halves[1, pair] == two:
                break
            place = (place + 1) & mask
        codes[line] = pair
    return count
