"""Write the schemas of `resource.k8s.io/v1` from wheels of lightkube-models, which are made from Kubernetes' own.

    pip download --no-deps lightkube-models==1.36.3.8
    python tests/live/kubernetes/make_schemas.py lightkube_models-*.whl

Each wheel makes `schemas/1.36.json`: for each kind what a CustomResourceDefinition takes as its schema. A server prunes
fields that it lacks and refuses values of other types, as one that serves the version itself does.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

KINDS = ("ResourceSlice", "ResourceClaim", "DeviceClass")
FOLDER = Path(__file__).with_name("schemas")
ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
SIMPLE: dict[str, dict[str, Any]] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "bool": {"type": "boolean"}, "float": {"type": "number"},
    "dict": ANYTHING, "runtime.RawExtension": ANYTHING, "meta_v1.ObjectMeta": {"type": "object"},
    "meta_v1.Time": {"type": "string"}, "meta_v1.MicroTime": {"type": "string"},
    "resource.Quantity": {"x-kubernetes-int-or-string": True},
}  # fmt: skip


class Models:
    """The classes of one wheel."""

    def __init__(self, wheel: Path) -> None:
        self._wheel = zipfile.ZipFile(wheel)
        self._classes: dict[str, dict[str, ast.ClassDef]] = {}

    def schema(self, module: str, name: str) -> dict[str, Any]:
        """The schema of a class."""
        if module not in self._classes:
            tree = ast.parse(self._wheel.read(f"lightkube/models/{module}.py"))
            self._classes[module] = {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}
        properties, required = {}, []
        for field in self._classes[module][name].body:
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            assert isinstance(field.annotation, ast.Constant)
            kind = ast.parse(str(field.annotation.value), mode="eval").body
            properties[field.target.id.rstrip("_")] = self._of(module, kind)
            if field.value is None:
                required.append(field.target.id)
        made: dict[str, Any] = {"type": "object", "properties": properties}
        return made | ({"required": required} if required else {})

    def _of(self, module: str, kind: ast.expr) -> dict[str, Any]:
        if isinstance(kind, ast.Subscript):
            inner = kind.slice
            match ast.unparse(kind.value):
                case "Optional":
                    return self._of(module, inner)
                case "List":
                    return {"type": "array", "items": self._of(module, inner)}
                case "Dict" | "dict":
                    assert isinstance(inner, ast.Tuple)
                    return {"type": "object", "additionalProperties": self._of(module, inner.elts[1])}
        of, _, name = ast.unparse(kind).rpartition(".")
        for simple in (name, f"{of or module}.{name}"):
            if simple in SIMPLE:
                return SIMPLE[simple]
        return self.schema(of or module, name)


def main() -> None:
    """One file a wheel."""
    FOLDER.mkdir(exist_ok=True)
    for word in sys.argv[1:]:
        version = ".".join(Path(word).name.split("-")[1].split(".")[:2])
        models = Models(Path(word))
        schemas = {kind: models.schema("resource_v1", kind) for kind in KINDS}
        (FOLDER / f"{version}.json").write_text(
            json.dumps(schemas, separators=(",", ":"), sort_keys=True) + "\n"
        )


if __name__ == "__main__":
    main()
