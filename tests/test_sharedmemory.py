"""Case 31: too little shared memory for the batches of workers is told before a worker dies."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from egoloader import KeyMap, KeySpec, ZarrDataset, collate, sharedmemory
from egoloader.errors import SharedMemoryWarning
from egoloader.sharedmemory import estimate_bytes, warn_if_short

BATCH = 64 * 3 * 480 * 640
KEYMAP = KeyMap({"pose": KeySpec(zarr_key="left.obs_ee_pose", key_type="proprio_keys")})


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharedmemory, "free_bytes", lambda: 64 * 10**6)


def test_case_31_the_estimate_is_of_all_workers_batches() -> None:
    assert estimate_bytes(BATCH, num_workers=4, prefetch_factor=2) == 471_859_200


def test_too_little_is_warned_of_with_figures_and_a_way_out(scarce: None) -> None:
    with pytest.warns(SharedMemoryWarning, match=r"471859200 bytes.*64000000.*EpisodeLoader"):
        warn_if_short(BATCH, num_workers=4)


def test_enough_and_unknown_are_no_reason(scarce: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_short(8 * 10**6, num_workers=4)
        monkeypatch.setattr(sharedmemory, "free_bytes", lambda: None)
        warn_if_short(BATCH, num_workers=4)


def test_the_free_bytes_are_the_systems() -> None:
    free = sharedmemory.free_bytes()
    assert (free is not None) == Path("/dev/shm").is_dir()
    assert free is None or free > 0


def test_a_worker_checks_its_first_batch(human: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharedmemory, "free_bytes", lambda: 100)
    options = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": collate}
    loader = DataLoader(ZarrDataset(human, KEYMAP), batch_size=4, **options)
    with pytest.raises(SharedMemoryWarning, match="2 workers with 2 batches"):
        list(loader)


def test_a_process_that_is_no_worker_checks_nothing(
    human: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharedmemory, "free_bytes", lambda: 0)
    assert len(ZarrDataset(human, KEYMAP).__getitems__([3, 4])) == 2


def test_transformed_samples_are_checked_as_well(
    human: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharedmemory, "free_bytes", lambda: 100)
    options = {"num_workers": 1, "multiprocessing_context": "fork", "collate_fn": collate}
    dataset = ZarrDataset(human, KEYMAP, transforms=[dict])
    with pytest.raises(SharedMemoryWarning, match="1 workers"):
        list(DataLoader(dataset, batch_size=4, **options))
