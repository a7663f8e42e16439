"""What the demo shows after training: the loss epoch by epoch, and a picture of a sample."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from egoloader.episode import ZarrEpisode
from egoloader.picture import draw_sample
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.train.config import compose, make

EPISODE, FRAME = "pick_place_0.zarr", 22


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
    table = Table(title="mean absolute error of the predicted actions, in the actions' units")
    for name in ("epoch", "train", "validation"):
        table.add_column(name, justify="right")
    for epoch, loss in sorted(losses.items()):
        table.add_row(str(epoch), f"{loss['train']:.4f}", f"{loss.get('val', float('nan')):.4f}")
    console.print(table)
    first, last = losses[min(losses)]["train"], losses[max(losses)]["train"]
    if last >= first:
        sys.exit(f"the training loss did not fall: {first:.4f}, then {last:.4f}")
    picture = output / "sample.png"
    maker = SampleMaker(ZarrEpisode(samples / EPISODE), make(compose([]).keymap), SampleSettings())
    draw_sample(maker, FRAME, picture)
    console.print(f"the windows of one sample, as a picture: {picture.resolve()}", soft_wrap=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
