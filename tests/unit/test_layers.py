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
    ["client.errors", "client.splitting", "client.targets"],
    ["client.core", "client.spelling"],
    ["client.plans"],
    ["client.lease", "client.wire"],
    ["client.asynchronous", "client.synchronous"],
    ["client"],
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


def name_of(path: Path) -> str:
    """A module's name in the package; that of a package is its folder's."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules of the package that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "cellstore":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cellstore."):
            module = (node.module or "").removeprefix("cellstore.")
            inner = {f"{module}.{alias.name}" for alias in node.names} & set(LEVEL)
            found |= inner or {module}
        elif isinstance(node, ast.Import):
            found |= {
                alias.name.removeprefix("cellstore.")
                for alias in node.names
                if alias.name.startswith("cellstore")
            }
    return found - {"__version__"}


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_module_has_a_layer() -> None:
    assert {name_of(path) for path in MODULES} == set(LEVEL)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    too_high = {name for name in imported(path) if LEVEL[name] > LEVEL[name_of(path)]}
    assert not too_high


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_only_the_root_knows_which_database_is_used() -> None:
    users = {name_of(path) for path in MODULES if "ThreadedDatabase" in path.read_text()}
    assert users == {"database", "parts"}
