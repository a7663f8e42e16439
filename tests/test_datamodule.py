"""The data module: batches per embodiment, one position, validation that costs nothing unused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from egoloader import EpisodeDataModule, EpisodeWriter, KeyMap, KeySpec, frames, human_keymap
from egoloader.errors import LoaderError, ReadError, SettingsError
from tests.episodes import pictures, ramp, write_human
from tests.soak.training import QUIET, trainer
from tests.threads import left_behind

HUMAN = human_keymap("cartesian", horizon=4, masks=True)
ARM = KeyMap(
    {
        "camera": KeySpec(zarr_key="images.front_1", key_type="camera_keys"),
        "joints": KeySpec(zarr_key="joints", key_type="proprio_keys"),
        "command": KeySpec(zarr_key="joints", key_type="action_keys", horizon=3, mask=True),
    }
)
pytestmark = pytest.mark.filterwarnings(*QUIET)


def write_arm(path: Path, total: int) -> None:
    EpisodeWriter.write(
        path,
        numeric={"joints": ramp(total, 5)},
        images={"images.front_1": pictures(total)},
        fps=20,
        embodiment="arm",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for number, total in enumerate((13, 17, 11, 9, 10)):
        write_human(root / f"human_{number}.zarr", total)
        write_arm(root / f"arm_{number}.zarr", total + 7)
    return root


def ids(batch: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(batch["episode"], batch["frame_index"].tolist(), strict=True))


def module(folder: Path, **options: Any) -> EpisodeDataModule:
    keymaps = {"human": HUMAN, "arm": ARM}
    data = EpisodeDataModule(folder, keymaps, **{"batch_size": 4, "seed": 3, **options})
    data.setup("fit")
    return data


def test_one_batch_of_every_embodiment_a_step(folder: Path) -> None:
    data = module(folder)
    loader = data.train_dataloader()
    sizes = {name: len(source) for name, source in data.sources.items()}
    assert len(loader) == max(-(-size // 4) for size in sizes.values())
    batches = list(loader)
    assert len(batches) == len(loader)
    assert all(batch.keys() == {"human", "arm"} for batch in batches)
    assert all(set(batch["arm"]["embodiment"]) == {"arm"} for batch in batches)
    longest = max(sizes, key=lambda name: sizes[name])
    drawn = [one for batch in batches for one in ids(batch[longest])]
    assert len(drawn) == len(set(drawn)) == sizes[longest]


def test_a_shorter_source_covers_every_pass_of_its_own(folder: Path) -> None:
    data = module(folder)
    loader = data.train_dataloader()
    short = min(data.sources, key=lambda name: len(data.sources[name]))
    frames = len(data.sources[short])
    drawn = [one for _ in range(4) for batch in loader for one in ids(batch[short])]
    for start in range(0, len(drawn) - frames + 1, frames):
        assert len(set(drawn[start : start + frames])) == frames


def test_values_are_the_episodes_own(folder: Path) -> None:
    batch = next(iter(module(folder).train_dataloader()))["arm"]
    expected = 1000.0 * batch["frame_index"][:, None] + torch.arange(5)
    assert torch.equal(batch["joints"], expected)
    assert batch["camera"].shape == (4, 3, 16, 24)


def test_epochs_differ_and_runs_repeat(folder: Path) -> None:
    def drawn(data: EpisodeDataModule, epochs: int) -> list[list[tuple[str, int]]]:
        loader = data.train_dataloader()
        return [
            [one for batch in loader for name in batch for one in ids(batch[name])]
            for _ in range(epochs)
        ]

    first, second = drawn(module(folder), 2), drawn(module(folder), 2)
    assert first == second
    assert first[0] != first[1]


def test_iter_is_idempotent_and_restoring_goes_on_at_every_position(folder: Path) -> None:
    whole = module(folder).train_dataloader()
    steps = 2 * len(whole)
    order = [{name: ids(batch[name]) for name in batch} for _ in range(2) for batch in whole]
    assert len(order) == steps
    data = module(folder)
    for position in range(steps - 1):
        state = data.state_dict()
        other = module(folder)
        other.load_state_dict(state)
        iter(other.train_dataloader())
        upcoming = next(iter(other.train_dataloader()))
        assert {name: ids(upcoming[name]) for name in upcoming} == order[position]
        next(iter(data.train_dataloader()))


def test_resume_is_refused_when_data_or_order_changed(folder: Path) -> None:
    def refused(words: str, **options: Any) -> None:
        with pytest.raises(SettingsError, match=f"can't resume: {words}"):
            module(folder, valid_ratio=0, **options).load_state_dict(state)

    state = module(folder, valid_ratio=0).state_dict()
    refused("batch_size was 4 and is 5", batch_size=5)
    refused("seed was 3 and is 4", seed=4)
    refused("pool_size was 32 and is 2", pool_size=2)
    refused("tail was 'spread' and is 'drop'", tail="drop")
    refused("number of episodes was 5 and is 3", percent=50)
    refused("combine was 'all' and is 'weighted'", combine="weighted")
    refused("at_end was 'cycle' and is 'ends'", at_end="ends")
    refused("frame_filter was None and is", frame_filter=lambda ep: ramp(ep.total_frames, 1))
    refused("weights was None and is", frame_weights=lambda ep: ramp(ep.total_frames, 1))
    # What does not fix the order may change.
    module(folder, valid_ratio=0, num_threads=3, image_dtype="jpeg").load_state_dict(state)
    before = module(folder, valid_ratio=0).state_dict()
    before["sources"]["human"]["fingerprint"]["set of episodes"] = "other"
    with pytest.raises(
        SettingsError, match=r"^embodiment 'human': can't resume: set of episodes was 'other'"
    ):
        module(folder, valid_ratio=0).load_state_dict(before)
    # All but the first frames, and all but the last.
    state = module(
        folder, valid_ratio=0, frame_filter=lambda ep: range(ep.total_frames)
    ).state_dict()
    refused("frame_filter was '.*' and is '", frame_filter=lambda ep: range(1 - ep.total_frames, 1))


def test_an_embodiment_without_episodes_is_refused_by_name(folder: Path) -> None:
    data = EpisodeDataModule(folder, {"human": HUMAN, "arm": ARM, "eva": HUMAN})
    with pytest.raises(SettingsError, match="embodiment 'eva' has a keymap and no episode"):
        data.setup("fit")
    only = EpisodeDataModule(folder, {"human": HUMAN, "arm": ARM}, filters={"embodiment": "arm"})
    with pytest.raises(SettingsError, match="'human'"):
        only.setup("fit")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"num_threads": 0}, "num_threads"),
        ({"seed": -1}, "seed"),
        ({"combine": "al"}, "combine"),
        ({"valid_ratio": 1.5}, "valid_ratio"),
        ({"valid_ratio": "a"}, "valid_ratio"),
        ({"frame_filter": 5}, "frame_filter is the name of an array or a callable, got 5"),
        ({"frame_weights": ["w"]}, r"frame_weights is the name .*, got \['w'\]"),
        ({"frame_weights": ""}, "frame_weights is the name .*, got ''"),
    ],
)
def test_wrong_options(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        module(folder, **options)


def test_what_is_no_keymap_is_refused_with_its_embodiment(folder: Path) -> None:
    wrong: Any = {"human": HUMAN, "arm": None}
    with pytest.raises(SettingsError, match=r"keymap\['arm'\] must be a KeyMap, got NoneType"):
        EpisodeDataModule(folder, wrong).setup("fit")


def test_validation_has_every_frame_once_and_shares_no_episode(folder: Path) -> None:
    data = module(folder)
    batches = list(data.val_dataloader())
    assert len(batches) == len(data.val_dataloader())
    drawn = [one for batch in batches for name in batch for one in ids(batch[name])]
    assert len(drawn) == len(set(drawn)) > 0
    trained = {e.name for source in data.sources.values() for e in source.episodes}
    assert not trained & {name for name, _ in drawn}
    assert module(folder, valid_ratio=0).val_dataloader() == []


def test_any_number_of_threads_gives_the_same_batches(folder: Path) -> None:
    few = module(folder, num_threads=1).train_dataloader()
    many = module(folder, num_threads=3).train_dataloader()
    for one, other in zip(few, many, strict=True):
        for name in one:
            assert ids(one[name]) == ids(other[name])
            assert all(
                torch.equal(one[name][key], other[name][key])
                for key in one[name]
                if isinstance(one[name][key], torch.Tensor)
            )


def test_an_older_iterator_does_not_move_the_position_on(folder: Path) -> None:
    loader = module(folder).train_dataloader()
    older = iter(loader)
    next(older)
    newer = iter(loader)
    with pytest.raises(LoaderError, match="a newer iterator"):
        next(older)
    assert len(list(newer)) == len(loader) - 1


class Recorder(lightning.LightningModule):
    """Trains one number, and writes down which frames it was shown."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[tuple[str, int]]] = []
        self.validated = 0

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append([one for name in sorted(batch) for one in ids(batch[name])])
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated += 1

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.parametrize("stop", [1, 5, 8, 11])
def test_a_resumed_fit_goes_on_with_the_next_unseen_batch(
    folder: Path, tmp_path: Path, stop: int
) -> None:
    whole = Recorder()
    trainer(tmp_path, max_epochs=2).fit(whole, datamodule=module(folder))
    steps = len(whole.seen)
    assert stop < steps

    first = Recorder()
    keep = ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=stop, save_top_k=1)
    trainer(tmp_path, max_steps=stop, max_epochs=2, callbacks=[keep]).fit(
        first, datamodule=module(folder)
    )
    second = Recorder()
    trainer(tmp_path, max_epochs=2).fit(
        second, datamodule=module(folder), ckpt_path=tmp_path / "at.ckpt"
    )
    assert first.seen + second.seen == whole.seen


def seen_by_fit(root: Path, data: EpisodeDataModule, **options: Any) -> list[Any]:
    recorder = Recorder()
    trainer(root, **options).fit(recorder, datamodule=data)
    return recorder.seen


def test_a_fresh_fit_starts_anew_whatever_the_module_did_before(
    folder: Path, tmp_path: Path
) -> None:
    whole = seen_by_fit(tmp_path, module(folder), max_epochs=1)
    data = module(folder)
    assert seen_by_fit(tmp_path, data, max_steps=5) == whole[:5]
    assert seen_by_fit(tmp_path, data, max_epochs=1) == whole
    assert seen_by_fit(tmp_path, data, max_epochs=1) == whole


def test_validating_a_checkpoint_leaves_the_order_alone(folder: Path, tmp_path: Path) -> None:
    keep = ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=3)
    seen_by_fit(tmp_path, module(folder), max_steps=3, callbacks=[keep])
    data, recorder = module(folder), Recorder()
    trainer(tmp_path).validate(
        recorder, datamodule=data, ckpt_path=tmp_path / "at.ckpt", verbose=False
    )
    assert recorder.validated == len(data.val_dataloader())
    whole = seen_by_fit(tmp_path, module(folder), max_epochs=1)
    assert seen_by_fit(tmp_path, data, max_epochs=1) == whole


def test_a_limited_epoch_is_whole_and_the_next_goes_on(folder: Path, tmp_path: Path) -> None:
    data, recorder = module(folder), Recorder()
    trainer(tmp_path, max_epochs=3, limit_train_batches=4).fit(recorder, datamodule=data)
    assert len(recorder.seen) == 12
    assert recorder.validated == 3 * len(data.val_dataloader())
    assert recorder.seen == seen_by_fit(tmp_path, module(folder), max_steps=12)
    assert (data.state_dict()["epoch"], data.state_dict()["done"]) == (3, 0)


@pytest.mark.parametrize("stop", [3, 4, 6])
def test_resuming_a_limited_epoch(folder: Path, tmp_path: Path, stop: int) -> None:
    options = {"max_epochs": 3, "limit_train_batches": 4}
    whole = seen_by_fit(tmp_path, module(folder), **options)
    keep = ModelCheckpoint(tmp_path, filename="at", every_n_train_steps=stop, save_top_k=1)
    first = seen_by_fit(tmp_path, module(folder), **options, max_steps=stop, callbacks=[keep])
    second = Recorder()
    trainer(tmp_path, **options).fit(
        second, datamodule=module(folder), ckpt_path=tmp_path / "at.ckpt"
    )
    assert first + second.seen == whole


@pytest.mark.parametrize("stop", [5, 16])
def test_an_epoch_that_was_broken_off_is_followed_by_its_rest_and_then_by_whole_ones(
    folder: Path, tmp_path: Path, stop: int
) -> None:
    size = len(module(folder).train_dataloader())
    whole = seen_by_fit(tmp_path, module(folder), max_epochs=4)
    first, second = Recorder(), Recorder()
    broken = trainer(tmp_path, max_steps=stop, max_epochs=3)
    broken.fit(first, datamodule=module(folder))
    broken.save_checkpoint(tmp_path / "end.ckpt")
    data = module(folder)
    trainer(tmp_path, max_epochs=3).fit(second, datamodule=data, ckpt_path=tmp_path / "end.ckpt")
    epochs_left = 3 - (stop // size + 1)
    left = epochs_left * size - stop % size  # so that an epoch is a pass again
    assert len(second.seen) == left
    assert first.seen + second.seen == whole[: stop + left]
    assert (data.state_dict()["epoch"], data.state_dict()["done"]) == (3, 0)


def test_overfitting_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="overfit_batches needs an order that repeats"):
        seen_by_fit(tmp_path, module(folder), max_epochs=1, overfit_batches=2)


def test_the_loader_holds_no_state_that_lightning_would_keep_too(folder: Path) -> None:
    loader = module(folder).train_dataloader()
    assert not hasattr(loader, "state_dict")
    assert not hasattr(loader, "load_state_dict")


def test_iterating_draws_no_random_numbers_of_the_training_run(folder: Path) -> None:
    data = module(folder)
    before = torch.get_rng_state()
    next(iter(data.train_dataloader()))
    next(iter(data.val_dataloader()))
    assert torch.equal(torch.get_rng_state(), before)


def test_inactive_validation_decodes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[str] = []
    original = frames.Camera.decode

    def spy(camera: frames.Camera, *args: Any) -> None:
        decoded.append(camera.episode)
        original(camera, *args)

    assert left_behind() == []  # threads of a test before this one
    monkeypatch.setattr(frames.Camera, "decode", spy)
    data, recorder = module(folder), Recorder()
    trainer(tmp_path, max_epochs=1, limit_val_batches=0).fit(recorder, datamodule=data)
    trained = {e.name for source in data.sources.values() for e in source.episodes}
    assert decoded
    assert set(decoded) <= trained
    assert recorder.validated == 0
    trainer(tmp_path, max_epochs=1).fit(recorder, datamodule=module(folder))
    assert recorder.validated > 0
    assert set(decoded) > trained


def test_a_trainer_that_would_deal_frames_again_is_refused(folder: Path, tmp_path: Path) -> None:
    data = module(folder)
    two: dict[str, Any] = {"devices": 2, "strategy": "ddp"}
    data.trainer = trainer(tmp_path, **two)
    with pytest.raises(SettingsError, match=r"2 processes.*Trainer\(use_distributed_sampler=False"):
        data.setup("fit")
    data.trainer = trainer(tmp_path, **two, use_distributed_sampler=False)
    whole = len(data.train_dataloader())
    data.setup("fit")
    assert len(data.train_dataloader()) == -(-whole // 2)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_an_error_in_a_thread_keeps_its_own_sentence(tmp_path: Path, num_threads: int) -> None:
    for name in "ab":
        write_arm(tmp_path / f"{name}.zarr", 9)
    shard = tmp_path / "a.zarr/images.front_1/c/0"
    data = EpisodeDataModule(tmp_path, ARM, batch_size=4, valid_ratio=0, num_threads=num_threads)
    data.setup("fit")
    shard.write_bytes(shard.read_bytes()[:-900])
    with pytest.raises(ReadError) as caught:
        list(data.train_dataloader())
    assert str(caught.value).startswith("episode 'a.zarr', key 'images.front_1', frame ")
    assert "Traceback" not in str(caught.value)


def test_two_episodes_leave_none_for_validation_and_the_way_out_is_named(tmp_path: Path) -> None:
    for name in "ab":
        write_arm(tmp_path / f"{name}.zarr", 9)
    with pytest.raises(SettingsError, match=r"keeps 0 of 2 episodes.*valid_ratio: 0 to go without"):
        EpisodeDataModule(tmp_path, ARM).setup("fit")
    EpisodeDataModule(tmp_path, ARM, valid_ratio=0).setup("fit")
