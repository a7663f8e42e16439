"""One time grid over recorded episodes: a humanoid's at 30 Hz, the same at 10 Hz, and another's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import torch
import zarr

from egoloader import KeyMap, KeySpec, MultiDataset
from tests.episodes import foreign_group, foreign_numbers
from tests.grid_oracle import Clock, exact, slow_steps, slow_values

pytestmark = pytest.mark.real
Recording = tuple[npt.NDArray[Any], float]

STATE: dict[str, Any] = {"zarr_key": "a", "key_type": "proprio_keys", "rate_hz": 10, "mask": True}
ACTION: dict[str, Any] = {**STATE, "key_type": "action_keys", "horizon_s": 1.6}
KEYMAP = KeyMap(
    {
        "action": KeySpec(**ACTION),
        "linear": KeySpec(**{**ACTION, "rate_hz": 25, "latency_s": 0.012}, interpolation="linear"),
        "state": KeySpec(**STATE, history_s=0.4),
    }
)


def recordings(real: Path) -> dict[str, Recording]:
    """Return states and frame rates, by the name of an episode."""
    found: dict[str, Recording] = {}
    for file in sorted((real / "g1_pick_bottle/data").rglob("*.parquet")):
        states = np.array(pq.read_table(file)["observation.state"].to_pylist(), np.float32)
        found[f"{file.stem}_30.zarr"] = states, 30.0
        found[f"{file.stem}_10.zarr"] = states[::3], 10.0
    (replay,) = (real / "pusht_replay").glob("*.zarr")
    group: Any = zarr.open_group(replay, mode="r")
    first = int(group["meta/episode_ends"][0])
    found["pusht.zarr"] = np.asarray(group["data/state"][:first]), 10.0
    return found


@pytest.fixture
def written(real_data: Path, tmp_path: Path) -> tuple[MultiDataset, dict[str, Recording]]:
    found = recordings(real_data)
    assert len(found) == 7
    for name, (rows, fps) in found.items():
        body = "pusht" if name == "pusht.zarr" else "g1"
        group = foreign_group(tmp_path / name, len(rows), fps=fps, embodiment=body)
        foreign_numbers(group, "a", rows)
    return MultiDataset.from_folder(tmp_path, KEYMAP), found


def test_recorded_episodes_are_on_one_grid(
    written: tuple[MultiDataset, dict[str, Recording]],
) -> None:
    ds, found = written
    rng = np.random.default_rng(0)
    for embodiment in ds.embodiments:
        its = ds.of_embodiment(embodiment)
        order = rng.permutation(len(its))[:60].tolist()
        for index, sample in zip(order, its.__getitems__(order), strict=True):
            rows, fps = found[sample["episode"]]
            clock, frame = Clock(exact(fps), len(rows)), int(sample["frame_index"])
            for key, spec in KEYMAP.items():
                steps = slow_steps(spec, clock, frame)
                wanted = slow_values(spec, rows, steps).astype(np.float32)
                assert sample[f"{key}_is_pad"].tolist() == [step.is_pad for step in steps]
                np.testing.assert_allclose(sample[key].numpy(), wanted, rtol=1e-6, atol=1e-6)
                assert torch.equal(its[index][key], sample[key])


def test_every_third_frame_gives_the_same_windows(
    written: tuple[MultiDataset, dict[str, Recording]],
) -> None:
    ds, found = written
    at = {name: start for start, (name, _) in zip(_starts(ds), ds.frames_by_episode(), strict=True)}
    for name in [name for name in found if name.endswith("_30.zarr")]:
        coarse = name.replace("_30", "_10")
        for frame in range(0, len(found[coarse][0]), 7):
            one, other = ds[at[name] + 3 * frame], ds[at[coarse] + frame]
            for key in ("action", "state"):
                is_pad = one[f"{key}_is_pad"]
                assert torch.equal(is_pad, other[f"{key}_is_pad"])
                assert torch.equal(one[key][~is_pad], other[key][~is_pad])


def _starts(ds: MultiDataset) -> list[int]:
    lengths = [frames for _, frames in ds.frames_by_episode()]
    return [sum(lengths[:number]) for number in range(len(lengths))]
