"""Every option of every config, set to what it can't be: an error that names it."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from egoloader.augment import ImageAugment
from egoloader.datamodule import EpisodeDataModule
from egoloader.errors import EgoloaderError
from egoloader.imagestats import ImageStats
from egoloader.train import recipe
from egoloader.train.callbacks import FileRecord
from egoloader.train.config import compose, config_dir, make, make_as, sample_folder
from egoloader.train.normalization import Normalization
from egoloader.train.spec import SampleSpec
from tests.test_train import quietly

#: A place in a config: names, and numbers in lists.
Place = tuple[str | int, ...]
#: Builds the part of a config that an option is in.
Building = Callable[[DictConfig, Place], None]

OTHER, MAPPING = "no such", {"no such": 1}
WRONG: list[Any] = [None, OTHER, -1, MAPPING]
#: Options that may be one of these values all the same, by the end of their dotted name.
MAY_BE: dict[int, set[str]] = {
    WRONG.index(None): {
        *("resume", "num_threads", "filters", "transforms", "collate_fn", "quarantine"),
        *("bad_frames_file", "byte_budget", "frame_filter", "frame_weights", "weights"),
        *("history_stride_s", "rate_hz", "horizon_s", "proprio_history_s", "image_history_gap_s"),
        *("image_memory", "annotation_key", "modes", "skip", "outliers", "cache", "shared"),
        # Without a window, an entry is the current frame; without a step, a reference has none.
        *("entries.action.horizon", "entries.observation.state.history", "step"),
        # What is not built then.
        *("norm", "numbers", "images", "augment", "callbacks", "checkpoint", "learning_rate"),
        *("telemetry", "progress_bar", "logger", "csv"),
        # Lightning has defaults of its own for these.
        *("precision", "max_epochs", "gradient_clip_val", "log_every_n_steps", "save_last"),
        *("num_sanity_val_steps", "limit_train_batches", "limit_val_batches", "filename"),
        *("val_check_interval", "enable_model_summary", "every_n_epochs", "logging_interval"),
        *("name", "version"),
    },
    WRONG.index(OTHER): {
        # Names and paths of what is made.
        *("output_dir", "annotation_key", "cache", "filename", "name", "version", "whole"),
        # That it is there is looked for elsewhere.
        *("resume", "keys", "reference"),
    },
    WRONG.index(-1): {
        *("max_epochs", "max_steps", "num_sanity_val_steps", "save_top_k"),  # no end
        *("refresh_rate", "version", "step"),
    },
    WRONG.index(MAPPING): set(),
}
#: What Python says of its own accord.
BARE = re.compile(r"' object |unhashable|not supported between|unexpected keyword|^$")


def places(node: Any, above: Place = ()) -> Iterator[Place]:
    """Yield the places of all that a config sets itself, what holds others among it."""
    for key in list(node) if isinstance(node, DictConfig) else range(len(node)):
        if key in ("_target_", "defaults", "hydra") or OmegaConf.is_interpolation(node, key):
            continue
        yield (*above, key)
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig | ListConfig):
            yield from places(node[key], (*above, key))


def at(config: Any, place: Place) -> Any:
    """Return what is at a place, null where nothing is given."""
    for key in place:
        config = None if OmegaConf.is_missing(config, key) else config[key]
    return config


def name_of(place: Place) -> str:
    """Return the name of the option that a place is in."""
    return next(part for part in reversed(place) if isinstance(part, str))


def build(config: DictConfig, place: Place) -> None:
    """Build what `egoloader train` does of the part of a config that an option is in."""
    recipe._checked(config)
    group = place[0]
    if group in ("trainer", "callbacks", "logger"):
        recipe._make_trainer(config, FileRecord(Path(), {}))
    elif group in ("data", "keymap", "sampler"):
        make_as(EpisodeDataModule, config, "data").setup("fit")
    elif place in (("norm",), ("norm", "numbers")) or place[:2] == ("norm", "numbers"):
        numbers = recipe._optional(Normalization, config, "norm.numbers")
        if numbers is not None:
            numbers.fit(make_as(EpisodeDataModule, config, "data"))
    elif group == "norm":
        recipe._optional(ImageStats, config, "norm.images")
    elif group == "augment":
        recipe._optional(ImageAugment, config, "augment.images")
    elif group == "model":
        spec = SampleSpec({"camera": 1}, {"state": 7}, {"action": (4, 2)})
        make_as(functools.partial, config, "model")({"arm": spec})


def build_node(config: DictConfig, place: Place) -> None:
    """Build the innermost thing that an option is of, without episodes."""
    nodes = [at(config, place[:length]) for length in reversed(range(len(place)))]
    make(next(node for node in nodes if isinstance(node, DictConfig) and "_target_" in node))


def complaint(config: DictConfig, place: Place, value: Any, building: Building) -> str | None:
    """Return what is said of an option's value; None where it is taken."""
    at(config, place[:-1])[place[-1]] = value
    try:
        building(config, place)
    except EgoloaderError as error:
        return str(error)
    except Exception as error:
        return f"' object {error!r}"
    return None


def is_right(place: Place, value: Any, said: str | None) -> bool:
    if said is None:
        dotted = "." + ".".join(part for part in place if isinstance(part, str))
        return any(dotted.endswith(f".{end}") for end in MAY_BE[WRONG.index(value)])
    # Of a name that is not there, it is enough to say which one.
    is_named = name_of(place) in said or (value in (OTHER, MAPPING) and repr(OTHER) in said)
    return is_named and not BARE.search(said)


COTRAINING = ["recipe=cotraining", f"data.folder={sample_folder()}"]
#: Things of the recipe whose options are looked at without episodes.
BUILT: list[Place] = [
    *(("data", "transforms", "human", place) for place in range(8)),
    *(("data", "transforms", "eva", place) for place in range(5)),
    *(("data", "collate_fn"), ("keymap", "human"), ("keymap", "eva")),
]
SWEEPS: dict[str, tuple[list[str], list[Place], Building]] = {
    "default": ([], [()], build),
    "entries": (["keymap=entries"], [("keymap",)], build),
    "eva": (["keymap=eva"], [("keymap",)], build_node),
    "cotraining": (COTRAINING, BUILT, build_node),
}


@functools.cache
def composed(name: str) -> DictConfig:
    config = compose([*SWEEPS[name][0], "output_dir=out", "trainer.accelerator=cpu"])
    OmegaConf.set_struct(config, False)
    return config


def swept(name: str) -> list[Place]:
    """Return the places that a sweep looks at: all below some."""
    tops = SWEEPS[name][1]
    found = places(composed(name))
    return [one for one in found if any(one[: len(top)] == top != one for top in tops)]


@quietly
@pytest.mark.parametrize("name", SWEEPS)
def test_what_an_option_cannot_be_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for place in swept(name):
        config = copy.deepcopy(composed(name))
        for value in WRONG:
            said = complaint(config, place, value, SWEEPS[name][2])
            if not is_right(place, value, said):
                wrong.append((place, value, said))
    assert wrong == []


def test_no_option_of_any_file_is_left_out() -> None:
    seen = {(place[0], name_of(place)) for name in SWEEPS for place in swept(name)}
    for path in config_dir().rglob("*.yaml"):
        file = OmegaConf.load(path)
        is_grouped = path.parent != config_dir() and path.parent.name != "recipe"
        above: Place = (path.parent.name,) if is_grouped else ()
        for place in places(file, above):
            is_holding = isinstance(at(file, place[len(above) :]), DictConfig | ListConfig)
            if not is_holding and "skip" not in place:  # whose names are those of samples' keys
                assert (place[0], name_of(place)) in seen, (path, place)
