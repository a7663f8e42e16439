"""The wheel, installed in an empty environment, runs the recipe from another folder."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPO

TINY = ["model.width=16", "model.heads=2", "model.layers=1", "callbacks.progress_bar=null"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(target), str(REPO)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return next(target.glob("egoloader-*.whl"))


def test_it_ships_configs_samples_and_nothing_else_of_the_repository(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for path in sorted((REPO / "configs").rglob("*.yaml")):
            shipped = f"egoloader/{path.relative_to(REPO)}"
            assert archive.read(shipped) == path.read_bytes()
    assert "egoloader/py.typed" in names
    assert sum(name.count("samples/") and name.endswith(".zarr/zarr.json") for name in names) >= 4
    assert {name.split("/")[0].split("-")[0] for name in names} == {"egoloader"}
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]


def test_it_trains_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True, timeout=120)
    python = tmp_path / "env" / "bin" / "python"
    constraints = REPO / "scripts" / "constraints.txt"
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, "--constraint", str(constraints), str(wheel)], check=True, timeout=600)
    away = tmp_path / "elsewhere"
    away.mkdir()
    result = subprocess.run(
        [
            str(tmp_path / "env" / "bin" / "egoloader"),
            "train",
            "output_dir=run",
            "trainer.max_epochs=1",
            "trainer.limit_train_batches=2",
            *TINY,
        ],
        cwd=away,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert (away / "run" / "checkpoints" / "last.ckpt").is_file()
    assert {path.name for path in away.iterdir()} == {"run"}
