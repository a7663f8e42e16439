"""Resuming a Lightning run: at every position, twice in a row, whatever the trainer asks first."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from egoloader import EpisodeDataModule
from egoloader.errors import SettingsError
from tests.soak.fits import Training, resume_fits
from tests.soak.recordings import KEYMAP, write_recordings
from tests.soak.training import (
    QUIET,
    Asks,
    EverySave,
    OneCycle,
    OneOf,
    Recorder,
    fit,
    recorded,
    trainer,
)

pytestmark = pytest.mark.filterwarnings(*QUIET)
#: Frames of each embodiment's episodes.
LENGTHS = {"arm": (5, 3, 7, 2, 6, 1), "human": (4, 4, 2, 5)}
MIXTURES = list(itertools.product(("all", "weighted"), ("cycle", "ends")))


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 frames: 6 batches of 4."""
    return write_recordings(tmp_path_factory.mktemp("arms"), "arm", LENGTHS["arm"])


@pytest.fixture(scope="module")
def ten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 batches of 3 frames."""
    return write_recordings(tmp_path_factory.mktemp("ten"), "arm", (17, 13))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("both")
    for name, lengths in LENGTHS.items():
        write_recordings(root, name, lengths)
    return root


def with_other_threads(folder: Path, **options: Any) -> Training:
    """Return a training of two epochs whose runs have 1, 3, 2, 1, 3, … threads."""
    threads = itertools.cycle((1, 3, 2))

    def data() -> EpisodeDataModule:
        return recorded(folder, num_threads=next(threads), **options)

    return Training(data)


def assert_resumes(root: Path, training: Training, batches: int, stride: int) -> None:
    """Assert that a run of so many batches can be resumed everywhere, and once more from there."""
    tally = resume_fits(root, training, stride)
    assert len(list((root / "whole").glob("*[0-9].ckpt"))) == batches
    assert tally.resumes >= 2 * batches
    assert tally.wrong == 0


# Every position, and once more from there.


def test_two_epochs_with_other_numbers_of_threads(arms: Path, tmp_path: Path) -> None:
    assert_resumes(tmp_path, with_other_threads(arms), 12, 3)


ONE_SOURCE: dict[str, tuple[dict[str, Any], Mapping[str, Any], int]] = {
    "two batches a step": ({}, {"accumulate_grad_batches": 2}, 12),
    "two batches a step, and one left over": (
        {"batch_size": 5},
        {"accumulate_grad_batches": 2},
        10,
    ),
    "full batches only": ({"batch_size": 5, "tail": "drop"}, {}, 8),
    "four batches an epoch": ({}, {"limit_train_batches": 4}, 8),
    "half an epoch": ({"num_threads": 2}, {"limit_train_batches": 0.5}, 6),
    "weights": ({"frame_weights": lambda ep: range(1, ep.total_frames + 1)}, {}, 12),
}


@pytest.mark.parametrize("kind", ONE_SOURCE)
def test_one_source(arms: Path, tmp_path: Path, kind: str) -> None:
    options, limits, batches = ONE_SOURCE[kind]
    training = Training(lambda: recorded(arms, **options), {"max_epochs": 2, **limits})
    assert_resumes(tmp_path, training, batches, 5)


@pytest.mark.parametrize("interval", [0.5, 2, 1.0])
def test_validation_in_the_middle_and_at_the_end(
    arms: Path, tmp_path: Path, interval: float
) -> None:
    training = Training(
        lambda: recorded(arms, valid_ratio=0.34, batch_size=3),
        {"max_epochs": 2, "val_check_interval": interval},
    )
    assert_resumes(tmp_path, training, 8, 5)
    assert len(list((tmp_path / "whole").glob("*-val.ckpt"))) == (2 if interval == 1.0 else 4)


@pytest.mark.parametrize(("combine", "at_end"), MIXTURES)
def test_mixtures(both: Path, tmp_path: Path, combine: str, at_end: str) -> None:
    training = Training(
        lambda: recorded(both, combine=combine, at_end=at_end, valid_ratio=0.2, batch_size=5),
        {"max_epochs": 2, "val_check_interval": 0.5, "accumulate_grad_batches": 2},
    )
    data = recorded(both, combine=combine, at_end=at_end, valid_ratio=0.2, batch_size=5)
    data.setup("fit")
    batches = sum(len(list(data.train_dataloader())) for _ in range(2))
    assert_resumes(tmp_path, training, batches, 9)


# Cases.


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}])
def test_case_40_asking_for_the_steps_first_does_not_lose_the_position(
    arms: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    whole = fit(tmp_path, recorded(arms), OneCycle(), max_epochs=2, **options)
    saves: dict[str, Any] = {"callbacks": [EverySave(tmp_path)]}
    first = fit(tmp_path, recorded(arms), OneCycle(), max_epochs=2, **saves, **options)
    assert first.seen == whole.seen
    second = fit(
        tmp_path, recorded(arms), OneCycle(), resume=tmp_path / "2.ckpt", max_epochs=2, **options
    )
    assert second.seen == whole.seen[2:]
    assert second.places[0] == (0, 2)
    assert second.steps == whole.steps == 12 // options.get("accumulate_grad_batches", 1)


def test_case_40_at_every_position(arms: Path, tmp_path: Path) -> None:
    training = Training(lambda: recorded(arms), recorder=OneCycle)
    assert_resumes(tmp_path, training, 12, 5)


def at(root: Path, step: int) -> Path:
    return root / f"at-{step}" / "saved.ckpt"


def stopped(root: Path, data: EpisodeDataModule, stop: int, resume: Path | None = None) -> Recorder:
    """Train until so many steps were taken, behind which `ModelCheckpoint` saves `at(root, stop)`.

    It saves where others do: every so many steps, behind a batch.
    """
    folder = at(root, stop).parent
    keep = ModelCheckpoint(folder, filename="saved", every_n_train_steps=stop, save_top_k=1)
    options: dict[str, Any] = {"max_steps": stop, "max_epochs": 3, "callbacks": [keep]}
    return fit(root, data, Recorder(), resume=resume, **options)


def test_case_41_saving_at_a_boundary_and_twice_in_an_epoch(ten: Path, tmp_path: Path) -> None:
    def data() -> EpisodeDataModule:
        return recorded(ten, batch_size=3)

    whole = fit(tmp_path, data(), Recorder(), max_epochs=3)
    assert len(whole.seen) == 30
    parts = [stopped(tmp_path, data(), 3)]
    for before, stop in ((3, 7), (7, 10), (10, 13), (13, 20), (20, 22)):
        parts.append(stopped(tmp_path, data(), stop, at(tmp_path, before)))
    parts.append(fit(tmp_path, data(), Recorder(), resume=at(tmp_path, 22), max_epochs=3))
    assert [len(part.seen) for part in parts] == [3, 4, 3, 3, 7, 2, 8]
    assert [one for part in parts for one in part.seen] == whole.seen
    assert [one for part in parts for one in part.places] == whole.places
    at_ten = fit(tmp_path, data(), Recorder(), resume=at(tmp_path, 10), max_epochs=3)
    assert (at_ten.places[0], at_ten.seen) == ((1, 0), whole.seen[10:])


@pytest.mark.parametrize("kind", [Recorder, Asks])
def test_an_epoch_that_is_longer_than_the_one_before_is_whole(
    both: Path, tmp_path: Path, kind: type[Recorder]
) -> None:
    def data() -> EpisodeDataModule:
        return recorded(both, combine="weighted", at_end="ends")

    whole = fit(tmp_path, data(), kind(), max_epochs=4, callbacks=[EverySave(tmp_path)])
    starts = [n for n, (_, batch) in enumerate(whole.places) if batch == 0]
    sizes = [stop - start for start, stop in itertools.pairwise([*starts, len(whole.seen)])]
    longer = [start for start, one in zip(starts[1:], itertools.pairwise(sizes), strict=True)
              if one[0] < one[1]]  # fmt: skip
    assert longer
    for start, suffix in itertools.product(longer, ("", "-end")):
        resume = tmp_path / f"{start}{suffix}.ckpt"
        second = fit(tmp_path, data(), kind(), resume=resume, max_epochs=4)
        assert second.places == whole.places[start:]
        assert second.seen == whole.seen[start:]


@pytest.mark.parametrize("kind", [Recorder, Asks])
@pytest.mark.parametrize(("before", "now"), [(2, 1), (3, 2), (1, 2)])
def test_other_ranks_have_whole_epochs_whatever_is_asked_first(
    arms: Path, tmp_path: Path, kind: type[Recorder], before: int, now: int
) -> None:
    def data(world_size: int) -> EpisodeDataModule:
        options: dict[str, Any] = {"batch_size": 2, "pool_size": 2, "valid_ratio": 0}
        module = OneOf(arms, KEYMAP, num_threads=1, **options)
        module.world_size = world_size
        return module

    sizes = {ranks: -(-24 // ranks // 2) for ranks in (1, 2, 3)}
    fit(tmp_path, data(before), kind(), max_epochs=3, callbacks=[EverySave(tmp_path)])
    for position in range(1, 3 * sizes[before]):
        resume = tmp_path / f"{position}.ckpt"
        second = fit(tmp_path, data(now), kind(), resume=resume, max_epochs=3)
        epoch, done = divmod(position, sizes[before])
        left = -(-(24 - 2 * done * before) // now // 2)
        wanted = Counter(dict.fromkeys(range(epoch, 3), sizes[now]) | {epoch: left})
        assert Counter(n for n, _ in second.places) == wanted
        assert len(set(second.places)) == len(second.places)


@pytest.mark.parametrize("kind", [Recorder, Asks])
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_run_that_was_broken_off_goes_on_in_the_same_trainer(
    arms: Path, tmp_path: Path, kind: type[Recorder], epoch: int
) -> None:
    class Breaks(kind):  # type: ignore[misc, valid-type]
        def on_train_batch_end(self, *_: Any) -> None:
            if self.places[-1] == (epoch, 3) and not self.is_over:
                self.is_over = True
                raise RuntimeError("enough")

        is_over = False

    whole = fit(tmp_path, recorded(arms), kind(), max_epochs=2)
    data, recorder, one = recorded(arms), Breaks(), trainer(tmp_path, max_epochs=2)
    with pytest.raises(RuntimeError, match="enough"):
        one.fit(recorder, datamodule=data)
    one.fit(recorder, datamodule=data)
    assert recorder.seen == whole.seen


# What a checkpoint is refused for, and what it is not.


@pytest.mark.filterwarnings("ignore:You defined a `validation_step`:UserWarning")
@pytest.mark.parametrize("kind", [Recorder, Asks])
def test_a_checkpoint_without_a_position_is_refused(
    arms: Path, tmp_path: Path, kind: type[Recorder]
) -> None:
    source = recorded(arms)
    source.setup("fit")
    steps: Any = list(source.train_dataloader())
    loader: Any = DataLoader(steps, batch_size=None)
    save = EverySave(tmp_path)
    trainer(tmp_path, max_epochs=2, callbacks=[save]).fit(kind(), train_dataloaders=loader)
    for name in ("2", "6", "6-end"):
        with pytest.raises(SettingsError, match="holds no position of this data module"):
            fit(tmp_path, recorded(arms), kind(), resume=tmp_path / f"{name}.ckpt", max_epochs=3)


def test_a_checkpoint_of_other_settings_is_refused_by_name(arms: Path, tmp_path: Path) -> None:
    stopped(tmp_path, recorded(arms), 3)
    for options, words in (
        ({"batch_size": 3}, "batch_size was 4 and is 3"),
        ({"pool_size": 3}, "pool_size was 2 and is 3"),
        ({"percent": 50}, "number of episodes was 6 and is 3"),
    ):
        with pytest.raises(SettingsError, match=f"^embodiment 'arm': can't resume: {words}"):
            stopped(tmp_path, recorded(arms, **options), 5, at(tmp_path, 3))


def test_every_validation_of_a_resumed_run_has_every_frame_once(arms: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 0.5}
    data = recorded(arms, valid_ratio=0.34, batch_size=3)
    fit(tmp_path, data, Recorder(), callbacks=[EverySave(tmp_path)], **options)
    size = len(data.val_dataloader())
    for position in range(1, 8):
        resume = tmp_path / f"{position}.ckpt"
        data = recorded(arms, valid_ratio=0.34, batch_size=3)
        second = fit(tmp_path, data, Recorder(), resume=resume, **options)
        assert len(second.validated) >= size
        for start in range(0, len(second.validated), size):
            shown = [one for batch in second.validated[start : start + size] for one in batch]
            assert (
                len(set(shown)) == len(shown) == sum(len(v) for v in data._valid_sources.values())
            )


def test_a_resumed_module_can_train_anew(arms: Path, tmp_path: Path) -> None:
    whole = fit(tmp_path, recorded(arms), Recorder(), max_epochs=1)
    stopped(tmp_path, recorded(arms), 2)
    data = recorded(arms)
    second = fit(tmp_path, data, Recorder(), resume=at(tmp_path, 2), max_epochs=1)
    assert second.seen == whole.seen[2:]
    recorder = Recorder()
    trainer(tmp_path, max_epochs=1).fit(recorder, datamodule=data)
    assert recorder.seen == whole.seen
