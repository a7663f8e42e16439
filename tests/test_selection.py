"""Which samples a plan is shown for: those that training then draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egoloader import EpisodeDataModule
from egoloader.errors import FrameIndexError, MissingChunkError, SettingsError
from egoloader.explanation import explain
from egoloader.selection import Selected, SelectionSettings, select_batch, select_frame
from tests.entries import POSE, entry, keymap
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human

KEYMAP = keymap(past=entry(history=4))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(6):
        name = "human" if number % 2 else "robot"
        write_human(tmp_path / f"deep/e{number}.zarr", 9 + number, embodiment=name)
    return tmp_path


def drawn(selected: list[Selected]) -> dict[str, list[int]]:
    assert len({one.maker.episode.name for one in selected}) == len(selected)
    return {one.maker.episode.name: one.frames.tolist() for one in selected}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"seed": 7},
        {"valid_ratio": 0.5, "percent": 70.0},
        {"filters": {"embodiment": "robot"}, "valid_ratio": 0.0},
        {"pool_size": 1},
        {"pool_size": 2, "tail": "drop", "frame_filter": None},
    ],
)
def test_a_batch_is_the_first_of_training(folder: Path, options: dict[str, Any]) -> None:
    data = EpisodeDataModule(folder, KEYMAP, batch_size=8, num_threads=1, **options)
    wanted: dict[str, list[int]] = {}
    for batch in next(iter(data.train_dataloader())).values():
        for name, frame in zip(batch["episode"], batch["frame_index"].tolist(), strict=True):
            wanted.setdefault(name, []).append(frame)
    assert drawn(select_batch(folder, KEYMAP, SelectionSettings(**options), 8)) == wanted


def test_a_batch_of_one_episode_is_drawn_from_it_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "deep/e5.zarr"
    found = drawn(select_batch(path, KEYMAP, SelectionSettings(), 100))
    assert list(found) == ["e5.zarr"]
    assert sorted(found["e5.zarr"]) == list(range(14))
    monkeypatch.chdir(path)
    assert drawn(select_batch(Path(), KEYMAP, SelectionSettings(), 100)) == found


def test_a_frame_is_the_middle_one_of_the_first_episode_unless_told(folder: Path) -> None:
    (maker, frames) = select_frame(folder, KEYMAP, SelectionSettings(), None)
    assert (maker.episode.path.name, frames.tolist()) == ("e0.zarr", [4])
    (maker, frames) = select_frame(folder / "deep/e5.zarr", KEYMAP, SelectionSettings(), 13)
    assert (maker.episode.name, frames.tolist()) == ("e5.zarr", [13])
    for frame in (-1, 14):
        with pytest.raises(FrameIndexError, match="of 14 frames"):
            select_frame(folder / "deep/e5.zarr", KEYMAP, SelectionSettings(), frame)


def test_settings_reach_the_samples(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e.zarr", 40)
    foreign_numbers(group, POSE, ramp(40, 7), chunks=(10, 7))
    (tmp_path / "e.zarr" / POSE / "c/2/0").unlink()
    for path in (tmp_path, tmp_path / "e.zarr"):
        (one,) = select_batch(path, KEYMAP, SelectionSettings(), 40)
        with pytest.raises(MissingChunkError, match="missing_chunks: fill"):
            explain(*one)
        settings = SelectionSettings(missing_chunks="fill", annotation_cutoff=True)
        (one,) = select_batch(path, KEYMAP, settings, 40)
        assert one.maker.settings.annotation_cutoff
        with pytest.warns(UserWarning, match="fill values"):
            assert explain(*one).arrays[0].cost.chunks == 3


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_wrong_seed_is_refused(seed: Any) -> None:
    with pytest.raises(SettingsError, match="seed must be a whole number"):
        SelectionSettings(seed=seed)
