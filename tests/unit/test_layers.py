"""Imports point one way: surfaces, shell, storage, vocabulary, and never back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cellstore

PACKAGE = Path(cellstore.__file__).parent

# From the bottom up. A module imports from its own layer or from those before it.
LAYERS = [
    ["errors", "clock", "names", "conditions", "records", "settings", "logs", "objects", "epochs"],
    ["index", "together"],
    ["ownership", "lineage"],
    ["changes", "schema", "operations", "transactions", "faults", "pieces"],
    ["database", "directory", "identity", "memory", "auth", "s3config", "s3client", "s3"],
    ["cell", "copies", "epochlog", "shipping", "restoring", "tenure", "replicator"],
    ["alone", "claiming", "claims", "node", "registry", "probe", "prefix", "fleet"],
    ["connection", "request", "answers", "api", "server"],
    ["parts"],
    ["app", "cli", "__main__"],
]
LEVEL = {module: level for level, modules in enumerate(LAYERS) for module in modules}


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "cellstore":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellstore."):
            found.add((node.module or "").removeprefix("cellstore."))
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("cellstore.")
                for alias in node.names
                if alias.name.startswith("cellstore")
            }
    return found - {"__version__"}


MODULES = sorted(path for path in PACKAGE.glob("*.py") if path.stem != "__init__")


def test_every_module_has_a_layer() -> None:
    assert {path.stem for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_imports_point_down(path: Path) -> None:
    too_high = {name for name in imported(path) if LEVEL[name] > LEVEL[path.stem]}
    assert not too_high


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_only_the_root_knows_which_database_is_used() -> None:
    users = {path.stem for path in MODULES if "ThreadedDatabase" in path.read_text()}
    assert users == {"database", "parts"}
