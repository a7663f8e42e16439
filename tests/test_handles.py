"""What a process holds open: bounded in number, its own, and the same however long it runs."""

from __future__ import annotations

import random
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from torch.utils.data import DataLoader

from egoloader import EpisodeLoader, EpisodeWriter, MultiDataset, ZarrEpisode, collate, dataset
from egoloader.files import MAX_OPEN_FILES
from egoloader.handles import OpenEpisodes
from tests.children import in_a_fork, open_below
from tests.entries import camera, entry, keymap
from tests.episodes import pictures, ramp
from tests.threads import LIMIT

NUM_EPISODES, FRAMES, CAP = 100, 3, 8
ENTRIES = keymap(cam=camera(), state=entry("state"), action=entry("action", horizon=2))
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred episodes of three files each, with numbers of their own; not to be changed."""
    root = tmp_path_factory.mktemp("hundred")
    for n in range(NUM_EPISODES):
        EpisodeWriter.write(
            root / f"{n:03}.zarr",
            numeric={"state": ramp(FRAMES, 2) + 10 * n, "action": ramp(FRAMES, 2)},
            images={"images.front_1": pictures(FRAMES)},
            fps=30,
            embodiment="human",
        )
    return root


class Noted(ZarrEpisode):
    """Episodes, and which of them are open."""

    alive: ClassVar[weakref.WeakSet[ZarrEpisode]] = weakref.WeakSet()
    num_opened: ClassVar[int] = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.alive.add(self)
        Noted.num_opened += 1


def states(indices: list[int]) -> list[float]:
    return [1000.0 * (index % FRAMES) + 10 * (index // FRAMES) for index in indices]


def assert_reads(md: MultiDataset, indices: list[int]) -> None:
    assert collate(md.__getitems__(indices))["state"][:, 0].tolist() == states(indices)


def test_case_32_visiting_a_hundred_episodes_leaves_few_open(
    hundred: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset, "MAX_OPEN_EPISODES", CAP)
    md = MultiDataset.from_folder(hundred, ENTRIES)
    monkeypatch.setattr(dataset, "ZarrEpisode", Noted)
    order = random.Random(0).sample(range(len(md)), len(md))
    batches = [order[at : at + 12] for at in range(0, len(order), 12)]
    for indices in batches:
        assert_reads(md, indices)
        assert 0 < len(Noted.alive) <= CAP
    assert_reads(md, list(range(0, len(md), FRAMES)))  # one of every episode
    assert len(Noted.alive) == CAP
    loader = EpisodeLoader(md, batch_sampler=batches, num_threads=2)
    for indices, batch in zip(batches, loader, strict=True):
        assert batch["state"][:, 0].tolist() == states(indices)
    assert len(Noted.alive) == CAP
    assert len(open_below(hundred)) <= MAX_OPEN_FILES

    def child() -> None:
        assert open_below(hundred) == []
        Noted.num_opened = 0
        for index in (order[-1], order[-1], order[0]):
            assert_reads(md, [index])
        # Not those of its parent, which had the last one open.
        assert Noted.num_opened == len({order[-1] // FRAMES, order[0] // FRAMES})
        assert len(open_below(hundred)) == 3 * Noted.num_opened
        for indices in batches:
            assert_reads(md, indices)
        assert len(open_below(hundred)) <= MAX_OPEN_FILES

    before = open_below(hundred)
    in_a_fork(child, limit_s=LIMIT)
    assert open_below(hundred) == before
    assert_reads(md, order[:12])


@dataclass
class _Maker:
    """Stands for a sample maker, to which there may be weak references."""

    number: int
    episode: Any


def opener(opened: list[int]) -> OpenEpisodes:
    """Return two places for strings, which stand for sample makers here."""

    def open_episode(number: int) -> Any:
        opened.append(number)
        if number < 0:
            raise FileNotFoundError(number)
        counts = SimpleNamespace(total=SimpleNamespace(bytes=10**number))
        return _Maker(number, SimpleNamespace(counts=counts))

    return OpenEpisodes(2, open_episode)


def test_the_longest_unused_episode_is_closed_first() -> None:
    opened: list[int] = []
    handles: Any = opener(opened)
    for number in (1, 2, 1, 3, 1, 2):
        assert handles.get(number).number == number
        assert len(handles) <= 2
    assert opened == [1, 2, 3, 2]  # 3 took the place of 2, not that of 1
    assert handles.bytes_read == 100 + 10 + 1000 + 100  # what the closed ones read stays counted


def test_an_episode_that_does_not_open_takes_no_place() -> None:
    opened: list[int] = []
    handles: Any = opener(opened)
    handles.get(1), handles.get(2)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            handles.get(-1)
    handles.get(1), handles.get(2)
    assert opened == [1, 2, -1, -1]


def test_threads_open_an_episode_once() -> None:
    opened: list[int] = []
    start = threading.Barrier(8)

    def open_episode(number: int) -> Any:
        opened.append(number)
        return object()

    handles = OpenEpisodes(2, open_episode)

    def ask(_: int) -> Any:
        start.wait(LIMIT)
        return handles.get(5)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    assert opened == [5]


def num_handles() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_case_31_persistent_loaders_hold_as_many_handles_after_six_epochs_as_after_two(
    hundred: Path,
) -> None:
    md = MultiDataset.from_folder(hundred, ENTRIES, percent=10)
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork", "timeout": 60}
    loaders = [DataLoader(md, 4, persistent_workers=True, **options) for _ in range(3)]
    threaded = [EpisodeLoader(md, 4, num_threads=2) for _ in range(3)]
    held = []
    for _ in range(6):
        batches: Any
        for batches in (*loaders, *threaded):
            seen = [frame for batch in batches for frame in batch["frame_index"].tolist()]
            assert seen == [0, 1, 2] * 10
        held.append(num_handles())
    for one in loaders:
        one._iterator._shutdown_workers()  # type: ignore[union-attr]  # now, not when collected
    assert held[1] == held[5]
