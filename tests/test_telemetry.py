"""What a run is told of its data: rates by a clock, counts by what was read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning
import pytest
import torch

from egoloader import EpisodeDataModule, KeyMap, KeySpec
from egoloader.telemetry import LoaderTelemetry
from tests.episodes import write_human


class Clock:
    """Stands for `time.perf_counter`: tells the time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """Stands for a policy; keeps what is logged."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self.episodes: list[float] = []
        self.names: set[str] = set()

    def log_dict(self, values: dict[str, float], **options: Any) -> None:
        self.names |= set(values)
        if "samples/s" in values:
            assert options["prog_bar"]
            self.rates.append(values["samples/s"])
        else:
            self.episodes.append(values["data/episodes"])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("egoloader.telemetry.time.perf_counter", clock)
    return clock


ALONE: Any = SimpleNamespace(world_size=1, datamodule=None)


def test_samples_per_second_leaves_out_the_first_step_and_validation(clock: Clock) -> None:
    callback, log = LoaderTelemetry(), Log()
    batch = {
        "arm": {"frame_index": range(5), "episode": ["a", "a", "b", "a", "c"]},
        "leg": {"frame_index": range(3), "episode": ["d"] * 3},
    }

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    def step(seconds: float) -> None:
        pass_time(seconds)
        callback.on_train_batch_end(ALONE, log, None, batch, 0)

    def validate(seconds: float) -> None:
        callback.on_validation_start(ALONE, log)
        pass_time(seconds)
        callback.on_validation_end(ALONE, log)

    validate(7.0)  # as a sanity check ahead of the first epoch
    for _ in range(2):
        log.rates.clear()
        callback.on_train_epoch_start(ALONE, log)
        step(100.0)
        step(2.0)
        validate(50.0)
        step(6.0)
        validate(50.0)
        validate(50.0)
        step(8.0)
        assert log.rates == [8 / 2, 16 / 8, 24 / 16]
        validate(50.0)
    assert set(log.episodes) == {2.0}
    assert log.names == {"samples/s", "data/episodes"}


def test_validation_ahead_of_the_second_step_is_left_out(clock: Clock) -> None:
    callback, log = LoaderTelemetry(), Log()
    pair: Any = SimpleNamespace(world_size=2, datamodule=None)
    batch = {"arm": {"frame_index": range(5), "episode": list("abcde")}}
    callback.on_train_epoch_start(pair, log)
    callback.on_train_batch_end(pair, log, None, batch, 0)
    callback.on_validation_start(pair, log)
    clock.now = 50.0
    callback.on_validation_end(pair, log)
    clock.now = 51.0
    callback.on_train_batch_end(pair, log, None, batch, 1)
    assert log.rates == [10.0]  # both processes' frames


class Seen(lightning.LightningModule):
    """Trains one number; keeps how many episodes its batches are of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.episodes: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (frames,) = batch.values()
        self.episodes.append(len(set(frames["episode"])))
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings(
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*isinstance.treespec:FutureWarning",
    "ignore:.*isinstance.treespec:UserWarning",
)
def test_a_run_logs_what_its_data_cost(tmp_path: Path) -> None:
    for number in range(5):
        write_human(tmp_path / f"e{number}.zarr", 20)
    keymap = KeyMap({"pose": KeySpec(zarr_key="left.obs_ee_pose", key_type="proprio_keys")})
    data = EpisodeDataModule(
        tmp_path, keymap, batch_size=5, valid_ratio=0, pool_size=4, cache_bytes=0, num_threads=1
    )
    module = Seen()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[LoaderTelemetry()],
    )
    trainer.fit(module, datamodule=data)
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert set(metrics) == {"samples/s", "data/wait", "data/episodes", "data/pool", "data/bytes"}
    assert metrics["data/episodes"] == pytest.approx(sum(module.episodes[1:]) / 19)
    assert 0 <= metrics["data/wait"] <= 1
    assert metrics["data/pool"] == 0  # behind the last frame
    source = data.sources["human"]
    assert data.load().bytes_read == source.bytes_read > 0
    # All batches that are ahead of the second step's end are counted before it.
    assert 0 < metrics["data/bytes"] <= source.bytes_read / (19 * 5)


def test_bytes_of_closed_episodes_stay_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from egoloader import MultiDataset, dataset

    for number in range(5):
        write_human(tmp_path / f"e{number}.zarr", 20)
    keymap = KeyMap({"pose": KeySpec(zarr_key="left.obs_ee_pose", key_type="proprio_keys")})
    read = {}
    for capacity in (64, 2):
        monkeypatch.setattr(dataset, "MAX_OPEN_EPISODES", capacity)
        md = MultiDataset.from_folder(tmp_path, keymap, cache_bytes=2**20)
        assert md.bytes_read == 0
        for index in range(0, 100, 7):
            md[index]
        read[capacity] = md.bytes_read
    assert read[64] == read[2] > 0
    # Of a batch of more episodes than may be open, the first are read when they are let go.
    for capacity in (64, 2):
        monkeypatch.setattr(dataset, "MAX_OPEN_EPISODES", capacity)
        md = MultiDataset.from_folder(tmp_path, keymap, cache_bytes=2**20)
        for start in range(0, 20, 5):
            md.__getitems__(range(start, 100, 20))
        read[capacity] = md.bytes_read
    assert read[64] == read[2] > 0


def test_batches_of_others_are_passed_over() -> None:
    telemetry, trainer, module = LoaderTelemetry(), ALONE, Log()
    for batch in ([{"frame_index": [1]}], {"x": 3}, (1, 2)) * 2:
        telemetry.on_train_batch_end(trainer, module, None, batch, 0)
    assert not module.names


def test_the_share_of_samples_in_the_place_of_bad_ones(clock: Clock) -> None:
    telemetry, log = LoaderTelemetry(), Shares()
    marks = {"arm": [[1, 1, 0], [1, 0, 0], [0, 0, 0]], "leg": [[1, 1], [0, 1], [0, 0]]}
    for epoch in range(2):
        telemetry.on_train_epoch_start(ALONE, log)
        for step in range(3):
            clock.now += 1
            batch = {
                name: {
                    "frame_index": list(steps[step]),
                    "episode": ["e"] * len(steps[step]),
                    "is_replaced": torch.tensor(steps[step], dtype=torch.bool),
                }
                for name, steps in marks.items()
            }
            telemetry.on_train_batch_end(ALONE, log, None, batch, step)
        # The first step is left out.
        assert log.shares == [2 / 5, 2 / 10] * (epoch + 1)


class Shares(Log):
    """Keeps the shares of samples that are replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.shares: list[float] = []

    def log_dict(self, values: dict[str, Any], **options: Any) -> None:
        super().log_dict(values, **options)
        self.shares += [round(float(v), 6) for k, v in values.items() if k == "data/replaced"]
