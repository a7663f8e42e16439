"""The package's shape: modules import one way, and the public names are the ones promised."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import egoloader

PACKAGE = Path(egoloader.__file__).parent

# A module imports only from modules that stand before it.
ORDER = [
    "errors",
    "seeding",
    "frameindex",
    "row",
    "entryfields",
    "keyspec",
    "keymap",
    "options",
    "builders",
    "windows",
    "timeline",
    "layout",
    "runs",
    "timestamps",
    "shards",
    "plan",
    "batchplan",
    "counts",
    "ranges",
    "files",
    "arena",
    "cache",
    "store",
    "header",
    "decompression",
    "chunkcodec",
    "chunktable",
    "guard",
    "expansion",
    "tally",
    "reader",
    "rangereader",
    "decode",
    "annotation",
    "access",
    "episode",
    "task",
    "binding",
    "cast",
    "batch",
    "quaternions",
    "transforms",
    "interpolation",
    "frames",
    "kind",
    "making",
    "sample",
    "share",
    "transformation",
    "spans",
    "cuts",
    "images",
    "assembly",
    "handles",
    "sharedmemory",
    "lifeline",
    "memory",
    "workers",
    "catalog",
    "columns",
    "peers",
    "quarantine",
    "badframes",
    "framedata",
    "gathering",
    "dataset",
    "stats",
    "scale",
    "normalizer",
    "imagestats",
    "collation",
    "bytetokens",
    "tokens",
    "shuffles",
    "clocks",
    "remainder",
    "roster",
    "pool",
    "deal",
    "order",
    "poolorder",
    "weighted",
    "inorder",
    "indexorder",
    "sampler",
    "threads",
    "buffers",
    "loader",
    "schedule",
    "mixture",
    "overview",
    "selection",
    "explanation",
    "terminal",
    "statsreport",
    "planreport",
    "picture",
    "planpicture",
    "arrayfile",
    "numericfile",
    "camerafile",
    "declaration",
    "scratch",
    "writer",
    "augment",
    "trainerloops",
    "datamodule",
    "telemetry",
    "convert",
    "validate",
    "train",
    "statscommand",
    "cli",
    "__main__",
]
LIGHT = ["egoloader.cli", "egoloader.writer", "egoloader.episode", "egoloader.convert"]


def imported(path: Path) -> set[str]:
    """Return the first parts of what a file imports of egoloader, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("egoloader."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {n.name.split(".")[1] for n in node.names if n.name.startswith("egoloader.")}
    return found


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def modules() -> list[Path]:
    return [p for p in sorted(PACKAGE.rglob("*.py")) if p != PACKAGE / "__init__.py"]


def test_every_module_has_its_place() -> None:
    assert {place(path) for path in modules()} == set(ORDER)


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    here = place(path)
    before = set(ORDER[: ORDER.index(here)]) | ({here} if path.parent != PACKAGE else set())
    assert imported(path) <= before


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_hydra_stays_at_the_edge(path: Path) -> None:
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in (
            node.names if isinstance(node, ast.Import) else [ast.alias(node.module or "")]
        )
    }
    assert place(path) == "train" or not names & {"hydra", "omegaconf"}


def test_public_names() -> None:
    assert sorted(egoloader.__all__) == egoloader.__all__
    for name in egoloader.__all__:
        assert getattr(egoloader, name).__module__.startswith("egoloader")
        assert name in dir(egoloader)
    with pytest.raises(AttributeError, match="no attribute 'ZarDataset'"):
        egoloader.ZarDataset  # noqa: B018


@pytest.mark.parametrize("module", LIGHT)
def test_what_needs_no_torch_does_not_import_it(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules, 'hydra' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_no_module_hides_a_public_name() -> None:
    # The import system binds a module's name in its package, over a name made on demand.
    assert not {path.stem for path in PACKAGE.glob("*.py")} & set(egoloader.__all__)
