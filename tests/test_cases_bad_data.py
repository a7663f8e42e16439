"""Cases of bad data that cut across modules: converters, stale metadata, bounds checks."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zarr
from typer.testing import CliRunner

from egoloader import EpisodeDataModule, KeyMap, MultiDataset, ZarrEpisode, collate
from egoloader.cli import app
from egoloader.convert import LeRobotSettings, convert_lerobot
from egoloader.quarantine import load_quarantine
from tests.entries import entry, keymap
from tests.episodes import foreign_group, foreign_numbers, ramp
from tests.lerobot_folders import Folder, episode, rows_of

TOTAL = 250
STATE = "observation.state"


def test_case_20_two_converters_leave_no_row_of_a_shard_out(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "set", lengths={0: TOTAL, 1: TOTAL}, cameras=())
    settings = LeRobotSettings(workers=2)
    wanted = ramp(TOTAL, 3) + 1  # so that no row is zeros
    columns = {STATE: wanted.tolist()}
    assert convert_lerobot(folder.build(columns), tmp_path / "out", settings).written == (0, 1)
    for index in (0, 1):
        ep = episode(tmp_path / "out", index)
        layout = ep.layout(STATE)
        assert layout.shard_shape is not None
        assert (layout.chunk_rows, layout.shard_shape[0]) == (100, 300)
        np.testing.assert_array_equal(rows_of(ep, STATE), wanted)
        np.testing.assert_array_equal(zarr.open_array(ep.path / STATE)[:TOTAL], wanted)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.filterwarnings("ignore:Consolidated metadata is currently not part:UserWarning")
def test_case_21_an_array_that_a_stale_copy_of_the_metadata_lacks_is_found(
    tmp_path: Path, zarr_format: int
) -> None:
    path = tmp_path / "ep.zarr"
    group = foreign_group(path, TOTAL, zarr_format=zarr_format)
    foreign_numbers(group, "a", ramp(TOTAL, 2))
    zarr.consolidate_metadata(path, zarr_format=zarr_format)  # type: ignore[arg-type]
    foreign_numbers(group, "b", ramp(TOTAL, 3))
    assert sorted(zarr.open_consolidated(path)) == ["a"]  # so it is stale
    ep = ZarrEpisode(path)
    assert sorted(ep.keys) == ["a", "b"]
    (rows,) = ep.read({"b": [(0, TOTAL)]})["b"]
    np.testing.assert_array_equal(rows, ramp(TOTAL, 3))
    (sample,) = MultiDataset.from_folder(tmp_path, keymap(b=entry("b"))).__getitems__([7])
    assert sample["b"].tolist() == [7000, 7001, 7002]


def yaws(total: int) -> npt.NDArray[np.float32]:
    """Return (total,) rad, from one side of half a turn to the other and back."""
    return np.where(np.arange(total) % 2, 3.14, -3.14).astype(np.float32)


def write_turning(path: Path, total: int) -> None:
    """Write poses whose yaw wraps in every frame, in the ways in which rotations are stored."""
    xyz = np.cumsum(np.full((total, 3), 0.01, np.float32), axis=0)
    yaw, rest = yaws(total)[:, None], np.zeros((total, 2), np.float32)
    half = yaw / 2
    group = foreign_group(path, total)
    foreign_numbers(group, "obs_ee_pose_ypr", np.concatenate([xyz, yaw, rest], axis=1))
    foreign_numbers(group, "obs_ypr", np.concatenate([yaw, rest], axis=1))
    foreign_numbers(group, "obs_yaw", yaw)
    turns = np.concatenate([np.cos(half), rest, np.sin(half)], axis=1)
    foreign_numbers(group, "obs_ee_pose", np.concatenate([xyz, turns], axis=1))


def validate(*arguments: str | Path, code: int) -> dict[str, Any]:
    command = ["validate", "--workers", "1", "--json", *map(str, arguments)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == code, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_case_48_a_yaw_that_wraps_rejects_nothing(tmp_path: Path) -> None:
    write_turning(tmp_path / "ep.zarr", 200)
    file = tmp_path / "bad.json"
    for level in ("sampled", "full"):
        found = validate(tmp_path, "--level", level, "--quarantine", file, code=0)
        assert found == {"episodes": ["ep.zarr"], "findings": []}
    assert load_quarantine(file) == ()
    assert (
        len(MultiDataset.from_folder(tmp_path, keymap(yaw=entry("obs_ypr")), quarantine=file))
        == 200
    )


LENGTHS = {"a.zarr": 30, "dead.zarr": 40, "z.zarr": 20}
SERVED = Counter((name, t) for name in ("a.zarr", "z.zarr") for t in range(LENGTHS[name]))
KEYMAP: KeyMap = keymap(joints=entry("joints", history=3))


@pytest.fixture
def quarantined(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of three episodes, one of them all NaN, and the quarantine file of it."""
    folder, file = tmp_path / "episodes", tmp_path / "bad.json"
    for name, total in LENGTHS.items():
        rows = np.full((total, 2), np.nan, np.float32) if "dead" in name else ramp(total, 2)
        foreign_numbers(foreign_group(folder / name, total), "joints", rows)
    for _ in range(2):  # the second time adds nothing
        (one,) = validate(folder, "--quarantine", file, code=1)["findings"]
        assert (one["episode"], one["check"], one["harm"]) == ("dead.zarr", "not finite", "frames")
    return folder, file


def test_case_48_a_wholly_bad_episode_is_in_quarantine_once(
    quarantined: tuple[Path, Path],
) -> None:
    (span,) = load_quarantine(quarantined[1])
    assert (span.episode, span.is_whole, span.key) == ("dead.zarr", True, "joints")
    assert span.reason == "not finite: NaN or inf"


def test_case_48_the_other_episodes_are_served_epoch_after_epoch(
    quarantined: tuple[Path, Path],
) -> None:
    folder, file = quarantined
    md = MultiDataset.from_folder(folder, KEYMAP, quarantine=file)
    whole = collate(md.__getitems__(range(len(md))))
    assert Counter(zip(whole["episode"], whole["frame_index"].tolist(), strict=True)) == SERVED
    options: dict[str, Any] = {"batch_size": 7, "valid_ratio": 0, "num_threads": 1}
    data = EpisodeDataModule(folder, KEYMAP, quarantine=file, pool_size=2, **options)
    data.setup("fit")
    for _ in range(3):
        served: Counter[tuple[str, int]] = Counter()
        for batches in data.train_dataloader():
            (batch,) = batches.values()
            frames = batch["frame_index"]
            served.update(zip(batch["episode"], frames.tolist(), strict=True))
            assert batch["joints"][:, -1, 0].tolist() == (1000.0 * frames).tolist()
        assert served == SERVED
