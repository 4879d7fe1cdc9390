"""Slurm's configuration files as lines that can be replaced, read in Slurm's order with what they include.

`gpus_of`, `retype` and `rewrite` read and write the lines of slurm.conf and gres.conf that say which GPUs nodes have,
with a type for each GPU and with shards. Shards get the types of their GPUs too. Without them slurmctld 22.05 loses
those of a GPU whenever it starts anew while a job has some (`_job_alloc` adds the job's type with no shards, and
`_valid_gres_types` then takes the GPU's away).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from berth.errors import SettingError
from berth.history.values.hostlist import expand
from berth.history.values.tres import base_type, gres_list, indices

_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_PAIR = re.compile(r'(?<!\S)(\w+)[-+*/]?=("[^"]*"|\S+)')
_LINE = re.compile(r"(?:(?:[^\n#\\]|\\[^\n])*\\\n)*[^\n]*(?:\n|\Z)")
"""Slurm takes comments away before it joins lines; of two backslashes the second is a letter."""
_COMMENT = re.compile(r"(?<!\\)#.*", re.DOTALL)
_SPACED = re.compile(r'("[^"]*")|\s*([-+*/]?=)\s*')
"""A quoted value, which stays, or an equals sign, around which Slurm skips spaces."""


class Line:
    """One line of a file, with the lines that continue it."""

    def __init__(self, text: str) -> None:
        self.text = text
        """With its line breaks; write it to change the file."""

    @property
    def content(self) -> str:
        """What Slurm reads of it: no comment, no line breaks, no spaces around equals signs."""
        text = _COMMENT.sub("", re.sub(r"(?<!\\)\\\n\s*", " ", self.text)).strip()
        return _SPACED.sub(lambda found: found[1] or found[2], text)

    @property
    def comment(self) -> str:
        """Its comment as it stands behind other content; empty if it has none."""
        found = _COMMENT.search(self.text)
        return "" if found is None else f" {found[0].strip()}"

    @property
    def pairs(self) -> dict[str, str]:
        """Its `Key=value` pairs, with keys in small letters."""
        return {key.lower(): value.strip('"') for key, value in _PAIR.findall(self.content)}

    @property
    def key(self) -> str:
        """Its first key in small letters; empty if it has none."""
        return next(iter(self.pairs), "")


def lines_of(text: str) -> list[Line]:
    """The lines of a file."""
    return [Line(each) for each in _LINE.findall(text) if each]


def with_pairs(content: str, pairs: Mapping[str, str]) -> str:
    """The content of a line with these values in place of its own, or behind them."""
    for key, value in pairs.items():
        pattern = re.compile(rf'(?<!\S){key}=("[^"]*"|\S+)', re.IGNORECASE)
        found = pattern.search(content)
        if found is not None:
            content = f"{content[: found.start(1)]}{value}{content[found.end(1) :]}"
        else:
            content = f"{content} {key}={value}"
    return content


def included(text: str, folder: Path, cluster: str) -> str | None:
    """The file that a line includes, relative to the folder of slurm.conf if it is in there; None: it includes none."""
    found = _INCLUDE.match(text)
    if found is None:
        return None
    path = folder / found[1].replace("%c", cluster)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)


class SiteConfig:
    """One of Slurm's configuration files with all that it includes."""

    def __init__(self, name: str, texts: Mapping[str, str], folder: Path, cluster: str) -> None:
        """`texts` has files by name, relative to `folder` if they are in there. SettingError if one is missing."""
        self._name = name
        self._files: dict[str, list[Line]] = {}
        self.lines: list[Line] = []
        """All lines in the order in which Slurm reads them."""
        self._read(name, texts, folder, cluster)

    def _read(self, name: str, texts: Mapping[str, str], folder: Path, cluster: str) -> None:
        if name in self._files:
            raise SettingError(f"{self._name} includes {name} twice; include it once, and run install again")
        lines = self._files[name] = lines_of(texts.get(name, ""))
        for line in lines:
            other = included(line.content, folder, cluster)
            if other is None:
                self.lines.append(line)
            elif other in texts:
                self._read(other, texts, folder, cluster)
            else:
                raise SettingError(
                    f"{name} includes {other}, which cannot be read here; run install where it can"
                )

    def texts(self) -> dict[str, str]:
        """The files as they are now."""
        return {name: "".join(line.text for line in lines) for name, lines in self._files.items()}

    def value(self, key: str) -> str:
        """What a setting is; the last line of it counts."""
        line = self._line_of(key)
        return "" if line is None else line.pairs[key.lower()]

    def _line_of(self, key: str) -> Line | None:
        return next((line for line in reversed(self.lines) if line.key == key.lower()), None)

    def set_value(self, key: str, value: str) -> None:
        """Give a setting this value where it stands, or on a line of its own at the end."""
        line = self._line_of(key)
        if line is not None and line.pairs[key.lower()] != value:
            line.text = f"{with_pairs(line.content, {key: value})}{line.comment}\n"
        elif line is None:
            self.add(f"{key}={value}")

    def add_items(self, key: str, items: Sequence[str]) -> None:
        """Add what a list lacks of these items."""
        has = [each for each in self.value(key).split(",") if each]
        self.set_value(key, ",".join([*has, *(each for each in items if each not in has)]))

    def add(self, text: str) -> None:
        """Add a line at the end of the file itself."""
        lines = self._files[self._name]
        if lines and not lines[-1].text.endswith("\n"):
            lines[-1].text += "\n"
        line = Line(text + "\n")
        lines.append(line)
        self.lines.append(line)


_RANGE = re.compile(r"\[([\d,-]+)\]")
_PARALLEL = ("nodeaddr", "nodehostname", "port", "bcastaddr")
"""Keys whose list has a value for each node of the line."""
_OWN_KEYS = re.compile(r"(NodeName|Name|Type|File|MultipleFiles|Count)=", re.IGNORECASE)


@dataclass(slots=True)
class NodeGpus:
    """The GPUs of a node by its line of slurm.conf, and as they are to be."""

    name: str
    kinds: list[str]
    """The type of each GPU in slurm.conf; empty: none."""
    shards: int
    shard_kinds: list[str]
    """The types of its shards in slurm.conf."""
    others: list[str]
    """Items of its Gres= that are neither GPUs nor shards."""
    features: list[str]
    new_kinds: list[str] = field(default_factory=list)
    new_shards: int = 0
    slices: bool = False
    """Whether its GPUs are MIG instances (MultipleFiles=): they get no shards, which Slurm counts once a file."""
    detects: str = ""
    """How Slurm finds its GPUs by itself; empty: it does not."""
    lines: list[Line] = field(default_factory=list)
    """The lines of gres.conf about its GPUs."""
    devices: dict[str, str] = field(default_factory=dict)
    """The file of each GPU by the type that it is to have."""
    shard_lines: tuple[str, ...] = ()
    """What gres.conf is to say of its shards; empty: what it says already."""

    @property
    def typed(self) -> bool:
        """Whether each of its GPUs has a type of its own already."""
        return len(set(self.kinds)) == len(self.kinds) and "" not in self.kinds

    @property
    def models(self) -> Set[str]:
        return {base_type(kind) for kind in self.new_kinds}

    @property
    def gres(self) -> str:
        """Its Gres= as it is to be."""
        names = list(dict.fromkeys(self.new_kinds))
        gpus = [
            f"gpu:{kind}:{self.new_kinds.count(kind)}" if kind else f"gpu:{len(self.new_kinds)}"
            for kind in names
        ]
        kinds = self.new_kinds if any(" Type=" in line for line in self.shard_lines) else []
        shards = [f"shard:{kind}:{self.new_shards // len(kinds)}" for kind in kinds]
        if self.new_shards and not kinds:
            shards = [f"shard:{self.new_shards}"]
        return ",".join([*gpus, *shards, *self.others])

    def say_shards(self, can_type: bool) -> None:
        """Note the lines of its shards: one for each GPU, so that they have its type, where each has as many."""
        kinds = self.new_kinds
        each, rest = divmod(self.new_shards, len(kinds))
        if (
            can_type
            and each
            and not rest
            and self.devices.keys() == set(kinds)
            and len(set(kinds)) == len(kinds)
        ):
            if self.shard_kinds != kinds:
                self.shard_lines = tuple(
                    f"Name=shard Type={kind} Count={each} File={self.devices[kind]}" for kind in kinds
                )
        elif self.new_shards and not self.shards:
            self.shard_lines = (f"Name=shard Count={self.new_shards}",)


def gpus_of(slurm_conf: SiteConfig, chosen: Set[str]) -> dict[str, NodeGpus]:
    """The chosen nodes that have GPUs, with what their lines and those of NodeName=DEFAULT say, by name."""
    found: dict[str, NodeGpus] = {}
    for names, pairs in _node_lines(slurm_conf):
        items = gres_list(pairs.get("gres", ""), odd=True)
        kinds = [each.kind for each in items if each.name == "gpu" for _ in range(each.count)]
        if not kinds:
            continue
        others = [each for each in pairs["gres"].split(",") if not re.match(r"(gpu|shard)\b", each)]
        shards = [each for each in items if each.name == "shard"]
        features = [each for each in pairs.get("feature", pairs.get("features", "")).split(",") if each]
        for name in names:
            if name in chosen:
                count, shard_kinds = sum(each.count for each in shards), [each.kind for each in shards]
                found[name] = NodeGpus(name, kinds, count, shard_kinds, others, features)
    return found


def _node_lines(slurm_conf: SiteConfig) -> Iterable[tuple[Sequence[str], Mapping[str, str]]]:
    """The nodes of each line, and what is said of them there and by the DEFAULT lines before."""
    default: dict[str, str] = {}
    for line in slurm_conf.lines:
        pairs = line.pairs if line.key == "nodename" else {}
        if pairs.get("nodename", "").upper() == "DEFAULT":
            default |= pairs
        elif pairs:
            yield _expanded(pairs["nodename"]), default | pairs


def _expanded(text: str) -> Sequence[str]:
    try:
        return expand(text)
    except ValueError as error:
        raise SettingError(f"a line of nodes cannot be read: {error}") from error


def retype(
    gres_conf: SiteConfig, gpus: Mapping[str, NodeGpus], strangers: Set[str], shards_a_gpu: int, keep: bool
) -> None:
    """Give each GPU of these nodes a type of its own in gres.conf, its shards that type, and shards to nodes that have
    none; note all at the nodes. `strangers` are the cluster's other nodes with GPUs. With `keep` types stay.

    Raises SettingError for GPUs that Slurm finds by itself, and for those whose lines gres.conf lacks.
    """
    of_shards: list[tuple[Line, list[NodeGpus], list[str]]] = []
    for line in gres_conf.lines:
        pairs = line.pairs
        names = _expanded(pairs["nodename"]) if "nodename" in pairs else None
        mine = [gpus[name] for name in (gpus if names is None else names) if name in gpus]
        others = [name for name in (sorted(strangers) if names is None else names) if name not in gpus]
        if "autodetect" in pairs:
            for node in mine:
                node.detects = "" if pairs["autodetect"].lower() == "off" else pairs["autodetect"]
        name = pairs.get("name", "").lower()
        if name == "gpu" and mine:
            _retype_line(line, mine, others, keep)
        elif name == "shard" and mine:
            of_shards.append((line, mine, others))
    unlike = {id(node) for line, mine, _ in of_shards for node in mine if not _is_even(line, node)}
    for node in gpus.values():
        _check(node, keep)
        node.new_shards = node.shards or (0 if node.slices else shards_a_gpu * len(node.kinds))
        node.say_shards(not keep and not node.slices and id(node) not in unlike)
    for line, mine, others in of_shards:
        left = [*(node.name for node in mine if not node.shard_lines), *others]
        if len(left) < len(mine) + len(others):
            text = f"{_for_nodes(line.content, left) if left else ''}{line.comment}".strip()
            line.text = f"{text}\n" if text else ""
    _add_shards(gres_conf, gpus, strangers)


def _is_even(line: Line, node: NodeGpus) -> bool:
    """Whether a line of shards gives as many to each GPU of a node that has all of slurm.conf's."""
    pairs = line.pairs
    if "type" in pairs and node.typed:
        return False  # it names its GPUs already
    if "file" not in pairs:
        return True
    count = sum(each.count for each in gres_list(f"shard:{pairs.get('count', '0')}", odd=True))
    return count * len(node.kinds) == node.shards * len(devices_of(pairs["file"]))


def _for_nodes(content: str, names: Sequence[str]) -> str:
    """A line for these of its nodes alone."""
    if re.match(r"NodeName=", content, re.IGNORECASE):
        return with_pairs(content, {"NodeName": ",".join(names)})
    return f"NodeName={','.join(names)} {content}"


def _retype_line(line: Line, nodes: Sequence[NodeGpus], others: Sequence[str], keep: bool) -> None:
    pairs, content = line.pairs, line.content
    devices = devices_of(pairs["file"]) if "file" in pairs else []
    if "multiplefiles" in pairs:
        devices = [pairs["multiplefiles"]]
    kind = pairs.get("type", "")
    rest = "".join(f" {word}" for word in content.split() if not _OWN_KEYS.match(word))
    key = "MultipleFiles" if "multiplefiles" in pairs else "File"
    parts: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        node.slices = node.slices or "multiplefiles" in pairs
        new = [_next_kind(node, kind, keep) for _ in devices]
        node.devices |= zip(new, devices, strict=True)
        lines = tuple(
            f"Name=gpu Type={each} {key}={device}{rest}" for each, device in zip(new, devices, strict=True)
        )
        node.lines.append(line)
        if not (keep or node.typed):
            parts.setdefault(lines, []).append(node.name)
    same = [node.name for node in nodes if keep or node.typed]
    if not parts:
        return
    whole = len(parts) == 1 and not others and not same
    asked = re.match(r"NodeName=\S+ *", content, re.IGNORECASE)
    texts = [_for_nodes(content, [*same, *others])] if same or others else []
    for lines, names in parts.items():
        prefix = (asked[0] if asked else "") if whole else f"NodeName={','.join(names)} "
        texts += [prefix + each for each in lines]
    texts[0] += line.comment
    line.text = "\n".join(texts) + "\n"


def _next_kind(node: NodeGpus, kind: str, keep: bool) -> str:
    """The type that the next GPU of this type of gres.conf gets, which is noted at the node."""
    if not node.new_kinds:
        node.new_kinds = [""] * len(node.kinds)
    free = [at for at, new in enumerate(node.new_kinds) if not new]
    at = next((at for at in free if node.kinds[at] in (kind, "") or not kind), None)
    if at is None:
        raise SettingError(
            f"gres.conf has more GPUs of type {kind or '(none)'} for node {node.name} than its Gres= in slurm.conf;"
            " make both agree, and run install again"
        )
    if keep or node.typed:
        new = node.kinds[at] or kind or "gpu"
    else:
        new = f"{base_type(node.kinds[at] or kind) or 'gpu'}_{at}"
    node.new_kinds[at] = new
    return new


def _check(node: NodeGpus, keep: bool) -> None:
    if keep:
        node.new_kinds = list(node.kinds)
        return
    if node.typed and not all(node.new_kinds):
        node.new_kinds = list(node.kinds)
    elif node.detects:
        raise SettingError(
            f"gres.conf has AutoDetect={node.detects} for node {node.name}, which gives all GPUs of a model one type;"
            " write a line for each, as `slurmd -G` prints them (Name=gpu File=… Cores=…), without AutoDetect, and run"
            " install again, or keep the types: --keep-types"
        )
    elif not node.new_kinds or not all(node.new_kinds):
        has = sum(bool(kind) for kind in node.new_kinds)
        raise SettingError(
            f"gres.conf has File= for {has} of the {len(node.kinds)} GPUs that slurm.conf gives node {node.name}; make"
            " both agree, and run install again"
        )
    elif len(node.models) > 1:
        raise SettingError(
            f"node {node.name} has GPUs of several models, {', '.join(sorted(node.models))}; choose --partitions"
            " without it, or keep the types: --keep-types"
        )


def _add_shards(gres_conf: SiteConfig, gpus: Mapping[str, NodeGpus], strangers: Set[str]) -> None:
    """The lines of shards that nodes are to have, behind the last line about their GPUs."""
    groups: dict[tuple[int, tuple[str, ...]], list[NodeGpus]] = {}
    for node in gpus.values():
        if node.shard_lines:
            last = id(node.lines[-1]) if node.lines else 0
            groups.setdefault((last, node.shard_lines), []).append(node)
    for (_, lines), nodes in groups.items():
        last_line = nodes[0].lines[-1] if nodes[0].lines else None
        names = ",".join(node.name for node in nodes)
        named = re.findall(
            r"^NodeName=(\S+)", "" if last_line is None else last_line.text, re.IGNORECASE | re.MULTILINE
        )
        prefix = ""
        if named and set(_expanded(named[-1])) == {node.name for node in nodes}:
            prefix = f"NodeName={named[-1]} "
        elif named or strangers or len(nodes) != len(gpus):
            prefix = f"NodeName={names} "
        text = "\n".join(prefix + line for line in lines)
        if last_line is None:
            gres_conf.add(text)
        else:
            last_line.text = last_line.text.rstrip("\n") + f"\n{text}\n"


def rewrite(slurm_conf: SiteConfig, gpus: Mapping[str, NodeGpus], keep: bool) -> None:
    """Say in slurm.conf what the nodes have now, and unless types are kept name their model as a feature."""
    for line in slurm_conf.lines:
        pairs = line.pairs if line.key == "nodename" else {}
        if not pairs or pairs["nodename"].upper() == "DEFAULT":
            continue
        names = _expanded(pairs["nodename"])
        parts: dict[str, list[str]] = {}
        for name in names:
            node = gpus.get(name)
            parts.setdefault(line.content if node is None else _node_line(line, node, keep), []).append(name)
        if list(parts) != [line.content]:
            texts = [_part(content, pairs, names, some) for content, some in parts.items()]
            texts[0] += line.comment
            line.text = "\n".join(texts) + "\n"


def _node_line(line: Line, node: NodeGpus, keep: bool) -> str:
    """A node's line with its GPUs, and their model as a feature."""
    content = line.content
    if node.gres != line.pairs.get("gres") and (node.new_kinds != node.kinds or node.shard_lines):
        content = with_pairs(line.content, {"Gres": node.gres})
    model = next(iter(node.models))
    if keep or not model or model in node.features:
        return content
    key = next((key for key in ("feature", "features") if key in line.pairs), "")
    value = ",".join([*node.features, model])
    if key:
        return with_pairs(content, {key: value})
    return re.sub(
        r"(?<!\S)Gres=\S+|\Z",
        lambda gres: f"{gres[0]} Feature={value}",
        content,
        count=1,
        flags=re.IGNORECASE,
    )


def _part(content: str, pairs: Mapping[str, str], names: Sequence[str], some: Sequence[str]) -> str:
    """A line for some of its nodes, with their addresses and ports."""
    if len(some) == len(names):
        return content
    new = {"NodeName": ",".join(some)}
    for key in _PARALLEL:
        values = _expanded(pairs[key]) if key in pairs else ()
        if len(values) == len(names):
            picked = [value for value, name in zip(values, names, strict=True) if name in some]
            new[key] = f"[{','.join(picked)}]" if key == "port" else ",".join(picked)
    return with_pairs(content, new)


def devices_of(text: str) -> list[str]:
    """The files of a File= or MultipleFiles=, each by its name."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        span = _RANGE.search(part)
        numbers = [str(number) for number in indices(span[1])] if span else [""]
        found += [part[: span.start()] + number + part[span.end() :] if span else part for number in numbers]
    return found
