"""What the demo shows after training: the losses, a picture of a sample, and one of predictions."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from egoloader import MultiDataset
from egoloader.episode import ZarrEpisode
from egoloader.picture import draw_sample
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.train.config import compose, make
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.predictionpicture import draw_predictions, roll_out

EPISODE, FRAME = "pick_place_0.zarr", 22
#: Frames from one predicted chunk to the next.
EVERY = 8


def read_losses(metrics: Path) -> dict[int, dict[str, float]]:
    """Return, per epoch, the logged losses: {epoch: {"train": …, "val": …}}."""
    losses: dict[int, dict[str, float]] = {}
    with metrics.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, column in (("train", "train/loss_epoch"), ("val", "val/loss")):
                if row.get(column):
                    losses.setdefault(int(row["epoch"]), {})[name] = float(row[column])
    return losses


def main(samples: Path, output: Path) -> None:
    """Print the losses and draw the picture."""
    console = Console()
    losses = read_losses(output / "logs" / "metrics.csv")
    table = Table(title="mean absolute error of the predicted actions, as normalised")
    for name in ("epoch", "train", "validation"):
        table.add_column(name, justify="right")
    for epoch, loss in sorted(losses.items()):
        table.add_row(str(epoch), f"{loss['train']:.4f}", f"{loss.get('val', float('nan')):.4f}")
    console.print(table)
    first, last = losses[min(losses)]["train"], losses[max(losses)]["train"]
    if last >= first:
        sys.exit(f"the training loss did not fall: {first:.4f}, then {last:.4f}")
    config = compose(["recipe=samples"])
    keymap = make(config.keymap)
    picture = output / "sample.png"
    draw_sample(
        SampleMaker(ZarrEpisode(samples / EPISODE), keymap, SampleSettings()), FRAME, picture
    )
    console.print(f"the windows of one sample, as a picture: {picture.resolve()}", soft_wrap=True)
    predict(console, config, samples, output)


def predict(console: Console, config: DictConfig, samples: Path, output: Path) -> None:
    """Predict along an episode that was not trained on; print the errors, and draw them."""
    checkpoint = output / "checkpoints" / "last.ckpt"
    policy = ActionChunkPolicy.load_from_checkpoint(checkpoint, map_location="cpu").eval()
    keymap = make(config.keymap)
    valid = MultiDataset.from_folder(
        samples, keymap, split="valid", valid_ratio=config.data.valid_ratio, seed=config.seed
    )
    episode = next(valid.open_each())
    maker = SampleMaker(episode, keymap, SampleSettings())
    rollouts = roll_out(policy, maker, range(0, episode.total_frames, EVERY))
    for key, rollout in rollouts.items():
        errors = ", ".join(f"{error:.3g}" for error in rollout.error)
        console.print(f"{episode.name}, not trained on: {key} is off by {errors}, in its own units")
    picture = output / "predictions.png"
    draw_predictions(rollouts, f"{episode.name}: actions recorded and predicted", picture)
    console.print(f"predicted against recorded, as a picture: {picture.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
