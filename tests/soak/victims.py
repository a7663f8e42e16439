"""All writers and converters that are killed, and how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from egoloader.convert import LeRobotSettings
from tests.lerobot_folders import Folder, coded, png
from tests.soak.casualties import Converting, Leaving, Writing, kill_all, kill_main, kill_worker
from tests.soak.forks import Strike, Task

__all__ = ["CONVERTER", "WRITER", "Victim", "victims"]

WRITER, CONVERTER = "EpisodeWriter", "convert_lerobot"
_FRAMES = 240


@dataclass(frozen=True)
class Victim:
    """What is killed.

    Attributes:
        who: a writer or a converter.
        case: what it does.
        task: makes what it does in a folder.
        strike: kills it.
        before: makes what was done in the folder before; nothing unless given.
        keeps: whether the same once more leaves episodes that are there as they are.
        refusal: the error of the same once more where nothing is left to do; none unless given.
    """

    who: str
    case: str
    task: Callable[[Path], Task]
    strike: Strike = kill_all
    before: Callable[[Path], Task] | None = None
    keeps: bool = True
    refusal: str = ""


def victims(root: Path) -> dict[str, Victim]:
    """Return all that is killed, by a short name; writes what converters convert."""
    return {**_writers(), **_converters(root), **_converters_with_workers(root)}


def _writers() -> dict[str, Victim]:
    write = partial(Writing, total=_FRAMES)
    return {
        "writer": Victim(WRITER, "a new episode", write, refusal="EpisodeExistsError"),
        "overwriter": Victim(
            WRITER,
            "in place of another, overwrite=True",
            partial(write, options={"overwrite": True}),
            before=partial(Writing, total=_FRAMES // 2),
            keeps=False,
        ),
        "recoverer": Victim(
            WRITER,
            "in place of one that a kill left moved aside, overwrite=True",
            partial(write, options={"overwrite": True}),
            before=partial(Leaving, totals=(_FRAMES // 2, _FRAMES)),
            keeps=False,
        ),
    }


def _converters(root: Path) -> dict[str, Victim]:
    videos = partial(_converting, _with_videos(root / "videos", 5), workers=1)
    pictures = partial(_converting, _with_pictures(root / "pictures"), workers=1)
    return {
        "videos": Victim(CONVERTER, "5 episodes of video, 1 process", videos),
        "pictures": Victim(CONVERTER, "2 episodes of pictures, 1 process", pictures),
        "overwriting": Victim(
            CONVERTER,
            "2 episodes of pictures in place of others, overwrite=True, 1 process",
            partial(pictures, overwrite=True),
            before=partial(pictures, quality=50),
            keeps=False,
        ),
    }


def _converters_with_workers(root: Path) -> dict[str, Victim]:
    # Large, or most of the time would go into the start of the workers.
    source, size = _with_videos(root / "videos of two", 10), (240, 320)
    convert = partial(_converting, source, workers=2, image_size=size)
    case = "10 episodes of video, 2 workers"
    return {
        "workers": Victim(CONVERTER, f"{case}, all are killed", convert),
        "main": Victim(CONVERTER, f"{case}, all but these are killed", convert, kill_main),
        "worker": Victim(CONVERTER, f"{case}, one of these is killed", convert, kill_worker),
    }


def _converting(source: Path, folder: Path, **settings: Any) -> Task:
    return Converting(folder, source, LeRobotSettings(**{"image_size": (120, 160), **settings}))


def _with_videos(root: Path, count: int) -> Path:
    cameras = ("observation.images.top", "observation.images.wrist")
    return Folder(root, dict.fromkeys(range(count), 60), cameras).build()


def _with_pictures(root: Path) -> Path:
    """Write a LeRobot folder whose pictures lie in its parquet files."""
    key = "observation.images.wrist"
    feature = {"dtype": "image", "shape": [32, 48, 3], "names": ["height", "width", "channel"]}
    folder = Folder(root, {0: 60, 1: 40}, cameras=(), features={key: feature})
    folder.write_meta()
    for index, length in folder.lengths.items():
        cells = [{"bytes": png(coded(t)), "path": f"frame_{t}.png"} for t in range(length)]
        folder.write_rows(index, length, {key: cells})
    return root
