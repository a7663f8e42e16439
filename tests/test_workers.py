"""The same values from DataLoader workers, whatever starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrDataset, collate, human_keymap
from egoloader.errors import FrameError
from tests.episodes import foreign_bytes, foreign_group, jpegs, pictures, write_human

TOTALS = {"a.zarr": 7, "b.zarr": 6}
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("human")
    for name, total in TOTALS.items():
        write_human(folder / name, total, annotations=[("reach", 0, 3)])
    return folder


def multi(folder: Path) -> MultiDataset:
    keymap = human_keymap(proprio_history=4, image_memory=2, masks=True, annotation_key="language")
    return MultiDataset.from_folder(folder, keymap)


def batches(ds: Any, **options: Any) -> list[dict[str, Any]]:
    return list(DataLoader(ds, batch_size=4, timeout=60 if options else 0, **options))


def assert_same(found: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for key, value in one.items():
            same = torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]
            assert same, key


def test_a_plain_dataloader_works(folder: Path) -> None:
    md = multi(folder)
    found = batches(md)
    assert [len(batch["fps"]) for batch in found] == [4, 4, 4, 1]
    wanted = [collate(md.__getitems__(range(b, min(13, b + 4)))) for b in range(0, 13, 4)]
    assert_same(found, wanted)


def test_our_collate_gives_a_dataloader_the_same_values(folder: Path) -> None:
    md = multi(folder)
    assert_same(list(DataLoader(md, batch_size=4, collate_fn=collate)), batches(md))


@pytest.mark.parametrize("persistent", [False, True])
def test_forked_workers_give_the_same_values(folder: Path, persistent: bool) -> None:
    md = multi(folder)
    wanted = batches(md)  # and the parent's handles are open
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    loader = DataLoader(md, batch_size=4, timeout=60, persistent_workers=persistent, **options)
    for _ in range(2):
        assert_same(list(loader), wanted)
    assert_same(batches(md), wanted)


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_workers_that_start_afresh_give_the_same_values(folder: Path, start: str) -> None:
    md = multi(folder)
    options = {"num_workers": 2, "multiprocessing_context": start, "collate_fn": collate}
    assert_same(batches(md, **options), batches(md))


def test_a_bad_frame_in_a_worker_is_named(tmp_path: Path) -> None:
    rows = jpegs(pictures(8))
    rows[5] = rows[5][:-40]
    features = {"images.front_1": {"dtype": "jpeg", "shape": [16, 24, 3]}}
    foreign_bytes(foreign_group(tmp_path / "ep.zarr", 8, features=features), "images.front_1", rows)
    keymap = KeyMap({"cam": KeySpec(zarr_key="images.front_1", key_type="camera_keys")})
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    loader = DataLoader(ds, batch_size=4, num_workers=1, multiprocessing_context="fork", timeout=60)
    found = iter(loader)
    assert next(found)["frame_index"].tolist() == [0, 1, 2, 3]
    with pytest.raises(FrameError) as caught:
        next(found)
    found._shutdown_workers()  # type: ignore[attr-defined]  # the error's traceback holds `found`
    for word in ("ep.zarr", "images.front_1", "frame 5"):
        assert word in str(caught.value)
