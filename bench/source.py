"""How large the source is: lines, lines a statement, suppressed formatting, and circles of imports.

    python bench/source.py [--against ../other/checkout]

Counts every line of the Python files of the product (`src/berth`) and of the papers (`papers/src`), and their
statements as Python's parser sees them. A circle is a set of modules that import each other, directly or not;
imports for the type checker alone count. Writes bench/results/source.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import BENCH, save

CIRCLES = """
import json
import grimp
graph = grimp.build_graph("berth", exclude_type_checking_imports=False, cache_dir=None)
print(json.dumps({name: sorted(graph.find_modules_directly_imported_by(name)) for name in graph.modules}))
"""


@dataclass(frozen=True, slots=True)
class Source:
    """What one package counts."""

    files: int
    lines: int
    lines_per_statement: float
    unformatted: int
    """Lines that the formatter is told to skip."""


def python_files(folder: Path) -> Iterator[Path]:
    """The package's own files; those that a compiler of `.proto` files made are left out."""
    for path in sorted(folder.rglob("*.py")):
        if not path.name.endswith("_pb2.py"):
            yield path


def measure(folder: Path) -> Source:
    """Count one package."""
    files = lines = statements = unformatted = 0
    for path in python_files(folder):
        text = path.read_text(encoding="utf-8")
        files += 1
        lines += text.count("\n")
        statements += sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))
        unformatted += text.count("# fmt: skip")
    return Source(files, lines, round(lines / max(1, statements), 3), unformatted)


def circles(sources: Path) -> list[list[str]]:
    """The sets of modules that import each other, the largest first."""
    command = [sys.executable, "-c", CIRCLES]
    said = subprocess.run(
        command, env={"PYTHONPATH": str(sources)}, capture_output=True, text=True, check=True
    )
    return strongly_connected(json.loads(said.stdout))


def strongly_connected(imports: dict[str, list[str]]) -> list[list[str]]:
    """The sets of modules of which each reaches every other."""
    reached = {name: _reach(name, imports) for name in imports}
    found: list[list[str]] = []
    placed: set[str] = set()
    for name in sorted(imports):
        if name in placed or name not in reached[name]:
            continue
        together = sorted(other for other in reached[name] if name in reached.get(other, ()))
        placed.update(together)
        found.append(together)
    return sorted(found, key=len, reverse=True)


def _reach(start: str, imports: dict[str, list[str]]) -> set[str]:
    """All modules that one imports, directly or through others."""
    seen: set[str] = set()
    left = list(imports[start])
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += imports.get(name, ())
    return seen


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description="Count the source of berth.")
    parser.add_argument("--against", type=Path, help="another checkout, counted too")
    options = parser.parse_args()
    result: dict[str, object] = {}
    for checkout in filter(None, (BENCH.parent, options.against)):
        found = circles(checkout / "src")
        print(f"{checkout.resolve()}: {len(found)} circles")
        for circle in found:
            print(f"  {len(circle)}: {', '.join(circle)}")
        for name, folder in (
            ("product", checkout / "src" / "berth"),
            ("papers", checkout / "papers" / "src"),
        ):
            counted = measure(folder)
            print(
                f"  {name}: {counted.lines:,} lines in {counted.files} files,"
                f" {counted.lines_per_statement} a statement, {counted.unformatted} × fmt: skip"
            )
            result[f"{checkout.resolve().name}: {name}"] = asdict(counted)
        result[f"{checkout.resolve().name}: circles"] = found
    save("source", result)


if __name__ == "__main__":
    main()
