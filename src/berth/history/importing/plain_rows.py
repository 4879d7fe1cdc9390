"""The plain lines of a large text table straight into files of records; the careful reader has the others.

Nearly all lines of what sacct prints have one form. They are split a block at a time by a compiled loop that tells
different texts apart, so that all else (resources, hosts, applications, pseudonyms) is worked out once a text and not
once a row, and each try is written once. A line with anything unusual, and a row that stays out, goes with its number
into a second text, which `staging.py` reads as it reads any other: it alone judges, and says why a row stays out.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any, BinaryIO, Final

import duckdb
import numpy as np
from numpy.typing import NDArray

from berth.history.importing.columns import STATES, Layout
from berth.history.importing.node_models import read_models
from berth.history.importing.plain_lines import (
    AMOUNT,
    COUNT,
    ID,
    LABEL,
    NOTHING,
    SKIPPED,
    TEXT,
    TIME,
    Codes,
    Lines,
    PlainLines,
    pair_codes,
    split_lines,
    words,
)
from berth.history.importing.tries import Rows, tries_of
from berth.history.store.database import literal
from berth.history.store.import_result import Options, Plain
from berth.history.store.lookups import on_hosts
from berth.history.store.parquet import rows_to_columns, typed
from berth.history.store.pseudonyms import PSEUDONYMISED, pseudonym
from berth.history.store.record_files import SCHEMA
from berth.history.values.applications import read_rules
from berth.history.values.tres import resources

__all__ = ["PlainParts", "take_plain"]


_YEAR_1971_MS: Final = 31_536_000_000
_YEAR_2100_MS: Final = 4_102_444_800_000

_TIMES: Final = ("submit", "eligible", "start", "end")
_COUNTS: Final = ("limit_min", "node_count", "cpus")
_AMOUNTS: Final = ("suspended", "cpu_used_ms", "mem_peak_mib", "energy_j", "gpu_peak_pct", "gpu_peak_mib")
_LABELS: Final = ("label", "label_part")
_NUMBERS: Final = ("id", *_TIMES, *_COUNTS, *_AMOUNTS, *_LABELS)
_TEXTS: Final = (
    *("cluster", "user", "account", "partition", "qos", "reason", "state", "application"),
    *("alloc", "req", "node_list", "name", "comment", "container", "command", "exit"),
)
_WRITTEN: Final = (
    *("cluster", "user", "account", "partition", "qos", "reason", "state", "name", "comment", "command"),
    "exit",
)
_LABEL: Final = (
    f"CASE WHEN c.label IN ({NOTHING}, c.id) AND c.label_part = {NOTHING} THEN '' "
    f"WHEN c.label_part = {NOTHING} THEN c.label::VARCHAR WHEN c.label_part >= 0 "
    "THEN c.label || '_' || c.label_part ELSE c.label || '+' || (-2 - c.label_part) END"
)
_WORDS: Final = {"text": "BIGINT", "word": "VARCHAR"}
_REMEMBERED: Final = 1 << 16
_LINE_END: Final = 10
_LONG_LINE: Final = 1 << 16
_FORMAT: Final = "(FORMAT parquet, COMPRESSION snappy, PARQUET_VERSION V2)"
"""Times as differences: smaller than zstd makes them without, in half of the time."""
_ENUM_WORDS: Final = 20_000
"""With more different words than these a column is written as plain texts."""


@dataclass(frozen=True, slots=True)
class PlainParts:
    """What became of the plain lines, and where the others are."""

    paths: tuple[Path, ...]
    """Files with every column of a record, each try as if it were its job's only one."""
    rows: int
    odd: Path
    """A text table of the other lines, with the header."""
    odd_lines: array[int]
    """The number, in the whole file, of each of its lines."""
    distinct: bool
    """True where ids rise from row to row: no two of the rows are of one job."""


def take_plain(
    database: duckdb.DuckDBPyConnection,
    source: Path,
    delimiter: str,
    layout: Layout,
    space: Path,
    options: Options,
    way: Plain,
) -> PlainParts | None:
    """Write the plain lines of a text table as files of records in `space`; None where it is not worth it."""
    if (
        len(delimiter) != 1
        or not delimiter.isascii()
        or delimiter in "\r\n\0-:T0123456789"
        or options.timezone != "UTC"
        or options.encoding.lower() not in ("utf-8", "latin-1")
        or not (layout.has("alloc") or layout.has("req"))
        or layout.has("gpu_use")
        or layout.has("gpu_mem")
        or layout.of_steps
        or not layout.plain_limit
    ):
        return None
    writer = _Writer(database, layout, options)
    comment = _step_with_comment(layout, delimiter) if layout.has("comment") else None
    block_bytes = min(way.block_bytes, max(source.stat().st_size // 4 + _LONG_LINE, 2 * _LONG_LINE))
    odd = space / "odd.txt"
    paths: list[Path] = []
    odd_lines: array[int] = array("q")
    rows, line, last, distinct = 0, 2, -1, True
    with source.open("rb") as file, odd.open("wb") as others, ThreadPoolExecutor(1) as pool:
        others.write(file.readline())
        for text, plain in _blocks(file, _lines(layout, delimiter), pool, block_bytes):
            good = writer.good(plain)
            if not paths and 2 * int(good.sum()) < plain.lines:
                return None  # hardly a line is plain: reading them twice would cost more than it saves
            strange = np.sort(np.concatenate((plain.odd[:, 1], plain.order[~good])))
            starts = np.concatenate((plain.odd[:, 0], plain.starts[~good]))
            for start in np.sort(starts).tolist():
                odd_line = text[start : text.index(b"\n", start) + 1]
                if comment is not None and comment(odd_line):
                    return None  # a step's comment may be its job's, which is read with it
                others.write(odd_line)
            odd_lines.extend((strange + line).tolist())
            line += plain.lines
            if good.any():
                ids = plain.numbers[_NUMBERS.index("id")][good]
                distinct = distinct and last < ids[0] and bool((np.diff(ids) > 0).all())
                last = int(ids[-1])
                paths.append(space / f"plain-{len(paths):06d}.parquet")
                writer.write(plain, good, paths[-1])
                rows += int(good.sum())
    return PlainParts(tuple(paths), rows, odd, odd_lines, distinct)


def _step_with_comment(layout: Layout, delimiter: str) -> Callable[[bytearray], bool]:
    """Tells of a line whether it is a step's and has a comment."""
    separator, id_at, comment_at = delimiter.encode(), layout.place("id"), layout.place("comment")

    def tells(line: bytearray) -> bool:
        fields = line.rstrip(b"\r\n").split(separator)
        return len(fields) == len(layout.header) and b"." in fields[id_at] and bool(fields[comment_at])

    return tells


def _blocks(
    file: BinaryIO, lines: Lines, pool: ThreadPoolExecutor, block_bytes: int
) -> Iterator[tuple[bytearray, PlainLines]]:
    """Whole lines of a file, a block at a time, split while the block before is written.

    Two buffers take turns: a block is good until the next but one is asked for.
    """
    buffers = cycle((bytearray(block_bytes), bytearray(block_bytes)))

    def split(rest: bytes) -> tuple[bytearray, PlainLines, bytes] | None:
        block = next(buffers)
        filled = len(rest)
        if len(block) < 2 * filled:
            block.extend(bytes(2 * filled))
        block[:filled] = rest
        with memoryview(block) as room:
            while filled < len(block) - 1 and (more := file.readinto(room[filled:-1])):  # type: ignore[attr-defined]
                filled += more
        if filled < len(block) - 1 and filled and block[filled - 1] != _LINE_END:
            block[filled] = _LINE_END  # the last line may lack its end
            filled += 1
        size = block.rfind(b"\n", 0, filled) + 1
        if not filled:
            return None
        plain = split_lines(np.frombuffer(block, np.uint8)[:size], block.count(b"\n", 0, size), lines)
        return block, plain, bytes(block[size:filled])

    coming: Future[tuple[bytearray, PlainLines, bytes] | None] = pool.submit(split, b"")
    while (found := coming.result()) is not None:
        block, plain, rest = found
        coming = pool.submit(split, rest)
        yield block, plain


def _lines(layout: Layout, delimiter: str) -> Lines:
    """How the fields of a line become columns of texts and of numbers, in the order of _TEXTS and _NUMBERS."""
    kinds = np.full(len(layout.header), SKIPPED, np.int64)
    columns = np.zeros(len(layout.header), np.int64)
    dictionaries = np.zeros(len(layout.header), np.int64)
    kinds_of = ((_TEXTS, TEXT), (_TIMES, TIME), (_COUNTS, COUNT), (_AMOUNTS, AMOUNT), (("id",), ID))
    for names, kind in kinds_of:
        for name in names:
            if layout.has(name):
                at = layout.place(name)
                kinds[at] = kind
                columns[at] = (_TEXTS if kind == TEXT else _NUMBERS).index(name)
                dictionaries[at] = _dictionary(name) if kind == TEXT else 0
    if layout.labelled:
        at = layout.place("label")
        kinds[at], columns[at] = LABEL, _NUMBERS.index("label")
    return Lines(ord(delimiter), kinds, columns, dictionaries, len(_TEXTS), len(_NUMBERS), len(_TEXTS))


def _dictionary(name: str) -> int:
    """The dictionary of a text; resources given and asked for have one together."""
    return _TEXTS.index("alloc" if name == "req" else name)


class _Writer:
    """Writes blocks of split lines as files of records."""

    def __init__(self, database: duckdb.DuckDBPyConnection, layout: Layout, options: Options) -> None:
        self._database = database
        self._layout = layout
        self._options = options
        self._rules = read_rules(options.rules)
        self._models = read_models(options.nodes)
        names = dict(options.tres_names)
        # Blocks say much the same, and what a text stands for is worked out once for all.
        self._application = lru_cache(_REMEMBERED)(self._rules.application)
        self._pseudonym = lru_cache(_REMEMBERED)(pseudonym)
        self._on_hosts = lru_cache(_REMEMBERED)(lambda text: on_hosts(text, self._models))
        self._resources = lru_cache(_REMEMBERED)(lambda text: resources(text, names))

    def good(self, plain: PlainLines) -> NDArray[np.bool_]:
        """Which plain lines (L,) are tries with nothing unusual; a start that never was is removed from them."""
        for name in ("eligible", *_COUNTS, *_AMOUNTS, *_LABELS):
            if not (self._layout.labelled if name in _LABELS else self._layout.has(name)):
                plain.numbers[_NUMBERS.index(name)] = NOTHING
        submit, start, end = (plain.numbers[_NUMBERS.index(name)] for name in ("submit", "start", "end"))
        # A row that tells no resources, or has a mark of Slurm's for none among them, is not plain.
        texts = self._words(plain, "alloc")
        empty = np.array([not text for text in texts], np.bool_)
        known = np.array([not self._resources(text).unknown for text in texts], np.bool_)
        silent, clear = np.ones(len(start), np.bool_), np.ones(len(start), np.bool_)
        for name in ("alloc", "req"):
            if self._layout.has(name):
                codes = plain.codes[_TEXTS.index(name)]
                silent &= empty[codes]
                clear &= known[codes]
                if name == "alloc":
                    start[empty[codes] & (start == end)] = NOTHING
        ended = np.array([_state(word) is not None for word in self._words(plain, "state")], np.bool_)
        started = start != NOTHING
        possible = (submit >= _YEAR_1971_MS) & (submit <= end) & (end < _YEAR_2100_MS)
        ran = ~started | ((submit <= start) & (start <= end))
        return np.asarray(possible & ran & clear & ~silent & ended[plain.codes[_TEXTS.index("state")]])

    def write(self, plain: PlainLines, good: NDArray[np.bool_], path: Path) -> None:
        """Write the good lines to a file of records."""
        picked: NDArray[np.bool_] | slice = slice(None) if good.all() else good
        columns: dict[str, NDArray[Any]] = {
            name: plain.numbers[at][picked] for at, name in enumerate(_NUMBERS)
        }
        codes = {name: self._codes(plain, name)[picked] for name in _TEXTS}
        dictionaries = {name: self._words(plain, name) for name in _TEXTS if name != "req"}
        codes["command"], dictionaries["command"] = self._commands(codes, dictionaries)
        codes["app"], dictionaries["app"] = self._applications(codes, dictionaries)
        self._look_up(dictionaries)
        expressions, joins = [], []
        for name in _WRITTEN:
            found = [self._shown(name, word) for word in dictionaries[name]]
            if len(found) == 1:
                expressions.append(f"{literal(found[0])} AS {name}")
                continue
            self._table(name, list(enumerate(found)), _WORDS)
            joins.append(f"JOIN plain_{name} ON plain_{name}.text = c.{name}")
            expressions.append(f"plain_{name}.word AS {name}")
        numbers = [f"nullif(c.{name}, {NOTHING}) AS {name}_ms" for name in _TIMES]
        numbers += [f"nullif(c.{name}, {NOTHING}) AS {name}" for name in (*_COUNTS, *_AMOUNTS[1:])]
        numbers += [f"nullif(c.suspended, {NOTHING}) * 1000 AS suspended_ms", f"{_LABEL} AS label"]
        source = (
            f"(SELECT c.id::VARCHAR AS id, {', '.join(numbers)}, {', '.join(expressions)}, c.alloc AS alloc, "
            "c.req AS req, c.node_list AS node_list, c.app AS app, NULL::DOUBLE AS gpu_use, NULL::DOUBLE AS gpu_mem, "
            f"NULL AS why FROM plain_lines c {' '.join(joins)}) judged"
        )
        tries = tries_of(
            Rows(source, "plain_", "apps.text = app", "apps.word", "reason", label="label"), self._options
        )
        derived = {"attempt": "1::INTEGER", "submit_ms": "queued_ms"}
        selected = ", ".join(
            f'{derived.get(name, name if kind == "VARCHAR" else f"{name}::{kind}")} AS "{name}"'
            for name, kind in SCHEMA.items()
        )
        self._database.register("plain_lines", {**columns, **codes})
        self._database.execute(f"COPY (SELECT {selected} FROM ({tries})) TO {literal(path)} {_FORMAT}")
        self._database.unregister("plain_lines")

    def _shown(self, name: str, word: str) -> str:
        """What a record says where the text says this."""
        if name == "cluster":
            return word or self._options.cluster
        if name == "reason":
            return "" if word == "None" else word
        if name == "state":
            return _state(word) or ""
        if self._options.key and name in PSEUDONYMISED:
            return self._pseudonym(self._options.key, name, word)
        return word

    def _codes(self, plain: PlainLines, name: str) -> Codes:
        """The codes (L,) of a text; where the table has none, of the one empty word."""
        if self._layout.has(name):
            found: Codes = plain.codes[_TEXTS.index(name)]
            return found
        return np.full(len(plain.order), NOTHING if name in ("alloc", "req") else 0, np.int32)

    def _words(self, plain: PlainLines, name: str) -> list[str]:
        """The different words of a text by their codes."""
        if name == "alloc" and (self._layout.has("alloc") or self._layout.has("req")):
            return words(plain, _dictionary("alloc"))
        return words(plain, _dictionary(name)) if self._layout.has(name) else [""]

    def _commands(
        self, codes: Mapping[str, Codes], dictionaries: Mapping[str, Sequence[str]]
    ) -> tuple[Codes, list[str]]:
        """Container and line of submission as one text."""
        if dictionaries["container"] == [""]:
            return codes["command"], list(dictionaries["command"])
        paired, containers, lines = pair_codes(codes["container"], codes["command"])
        container_of, line_of = dictionaries["container"], dictionaries["command"]
        return paired, [
            f"{container_of[one]} {line_of[two]}".strip(" ") if container_of[one] else line_of[two]
            for one, two in zip(containers.tolist(), lines.tolist(), strict=True)
        ]

    def _applications(
        self, codes: Mapping[str, Codes], dictionaries: Mapping[str, Sequence[str]]
    ) -> tuple[Codes, list[str]]:
        """The application of each different application, comment, name and command."""
        known: list[tuple[str, ...]] = [(word,) for word in dictionaries["application"]]
        found: Codes = codes["application"]
        for name in ("comment", "name", "command"):
            if len(dictionaries[name]) == 1:
                known = [(*each, dictionaries[name][0]) for each in known]
                continue
            found, firsts, seconds = pair_codes(found, codes[name])
            known = [
                (*known[one], dictionaries[name][two])
                for one, two in zip(firsts.tolist(), seconds.tolist(), strict=True)
            ]
        return found, [each[0] or self._application(*each[1:]) for each in known]

    def _look_up(self, dictionaries: Mapping[str, Sequence[str]]) -> None:
        """Make the tables `plain_tres`, `plain_hosts` and `plain_apps`, by the codes of texts."""
        given = [(at, *self._resources(word)) for at, word in enumerate(dictionaries["alloc"])]
        names = ("text", "gpus", "gpu_model", "shards", "cpus", "mem_mib", "a_node", "nodes", "unknown")
        kinds = {name: "VARCHAR" if name in ("gpu_model", "unknown") else "BIGINT" for name in names}
        self._table("tres", [(NOTHING, *resources("")), *given], kinds)
        hosts = [(at, *self._on_hosts(word)) for at, word in enumerate(dictionaries["node_list"])]
        self._table("hosts", hosts, {"text": "BIGINT", "names": "VARCHAR[]", "gpu_model": "VARCHAR"})
        self._table("apps", list(enumerate(dictionaries["app"])), _WORDS)

    def _table(self, name: str, rows: Sequence[Sequence[object]], kinds: Mapping[str, str]) -> None:
        """Make a table; where its words are few, of a type that is written without looking at each word again."""
        self._database.execute(f"DROP TABLE IF EXISTS plain_{name}")
        self._database.execute(f"DROP TYPE IF EXISTS words_of_{name}")
        self._database.register("chunk", rows_to_columns(rows, tuple(kinds)))
        if kinds is _WORDS and len(rows) <= _ENUM_WORDS:
            self._database.execute(f"CREATE TYPE words_of_{name} AS ENUM (SELECT DISTINCT word FROM chunk)")
            kinds = {**kinds, "word": f"words_of_{name}"}
        chosen = ", ".join(typed(column, kind) for column, kind in kinds.items())
        self._database.execute(f"CREATE TABLE plain_{name} AS SELECT {chosen} FROM chunk")
        self._database.unregister("chunk")


def _state(word: str) -> str | None:
    """What a state of Slurm's is called; None if the job has not ended or the state is unknown."""
    found = re.match("[A-Z_]+", word.upper())
    state = STATES.get(found[0]) if found else None
    return None if state is None else state.value
