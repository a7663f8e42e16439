"""Batches are prepared once, for what the network takes; predictions come back as floats."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from egoloader.augment import ColorJitter, ImageAugment
from egoloader.errors import SettingsError, TransformError
from egoloader.imagestats import ImageStats
from egoloader.normalizer import Normalizer
from egoloader.stats import KeyStats, NormStats
from egoloader.train.preparation import Preparation
from egoloader.train.spec import RecordedAction, SampleSpec

SPEC = SampleSpec(
    {"front": 1},
    {"pose": 3},
    {"arm": (4, 2), "is_open": (4, 1)},
    {"task": 259},
    {"arm": RecordedAction((4, 2))},
)
IMAGES = ImageStats((0.5, 0.5, 0.5), (0.25, 0.25, 0.25), 1.0)


def key_stats(mean: float, std: float, dims: int) -> KeyStats:
    """Statistics of numbers that are evenly about a mean."""
    middle, spread = np.full(dims, mean), np.full(dims, std)
    shares = {"q0.01": -2.0, "q1": -1.5, "q50": 0.0, "q99": 1.5, "q99.99": 2.0}
    return KeyStats(
        np.full(dims, 100),
        middle,
        spread,
        middle - 2 * spread,
        middle + 2 * spread,
        {name: middle + share * spread for name, share in shares.items()},
    )


def normalizer() -> Normalizer:
    return Normalizer(NormStats({"arm": {"pose": key_stats(5, 2, 3), "arm": key_stats(70, 10, 2)}}))


def make_batch() -> dict[str, Any]:
    images = torch.full((2, 3, 8, 8), 255, dtype=torch.uint8)
    images[1] = 0
    return {
        "fps": torch.full((2,), 30.0),
        "sample_seed": torch.arange(2),
        "front": images,
        "pose": torch.full((2, 3), 9.0),
        "arm": torch.full((2, 4, 2), 60.0),
        "is_open": torch.ones(2, 4, 1, dtype=torch.bool),
        "task_tokens": torch.zeros(2, 5, dtype=torch.int64),
        "task_tokens_is_pad": torch.zeros(2, 5, dtype=torch.bool),
    }


def test_images_and_numbers_are_normalised_and_absent_frames_stay_zero() -> None:
    batch = make_batch()
    made = Preparation({"arm": SPEC}, normalizer(), IMAGES, None)("arm", batch)
    assert torch.equal(made["front"][0], torch.full((3, 8, 8), 2.0))
    assert not made["front"][1].any()
    assert torch.equal(made["pose"], torch.full((2, 3), 2.0))
    assert torch.equal(made["arm"], torch.full((2, 4, 2), -1.0))
    assert batch["pose"].eq(9.0).all()


@pytest.mark.parametrize("numbers", [None, normalizer()])
def test_a_batch_is_prepared_once(numbers: Normalizer | None) -> None:
    prepare = Preparation({"arm": SPEC}, numbers, IMAGES, None)
    with pytest.raises(SettingsError, match="prepared already"):
        prepare("arm", prepare("arm", make_batch()))
    with pytest.raises(SettingsError, match="prepared already"):
        prepare("arm", normalizer().normalize("arm", make_batch()))


@pytest.mark.parametrize("gone", ["front", "pose", "fps", "task_tokens", "task_tokens_is_pad"])
def test_what_the_network_takes_must_be_there(gone: str) -> None:
    batch = {key: value for key, value in make_batch().items() if key != gone}
    prepare = Preparation({"arm": SPEC}, None, None, None)
    with pytest.raises(SettingsError, match=f"takes '{gone}', and the batch lacks it"):
        prepare("arm", batch)


def test_seeds_are_needed_where_images_are_changed() -> None:
    prepare = Preparation({"arm": SPEC}, None, None, ImageAugment((ColorJitter(brightness=0.5),)))
    batch = make_batch()
    batch["front"][0] = 102
    plain = torch.full((3, 8, 8), 102 / 255)
    changed = prepare("arm", batch)["front"]
    assert (changed[0] - plain).abs().max() > 0.01
    assert not changed[1].any()
    del batch["sample_seed"]
    with pytest.raises(SettingsError, match="'sample_seed'"):
        prepare("arm", batch)
    assert torch.equal(prepare.eval()("arm", batch)["front"][0], plain)


def test_images_in_a_list_are_refused() -> None:
    batch = make_batch()
    batch["front"] = list(batch["front"])
    with pytest.raises(SettingsError, match=r"'front' comes as a list.*set `size`"):
        Preparation({"arm": SPEC}, None, None, None)("arm", batch)


@pytest.mark.parametrize("is_training", [True, False])
def test_images_of_few_bits_are_refused_in_training_too(is_training: bool) -> None:
    batch = make_batch()
    batch["front"] = (batch["front"] / 255).bfloat16()
    augment = ImageAugment((ColorJitter(brightness=0.5),))
    prepare = Preparation({"arm": SPEC}, None, IMAGES, augment).train(is_training)
    with pytest.raises(TransformError, match=r"of camera 'front' are .*bfloat16, which rounds"):
        prepare("arm", batch)


@pytest.mark.parametrize("numbers", [None, normalizer()])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
def test_what_is_restored_are_floats(numbers: Normalizer | None, dtype: torch.dtype) -> None:
    prepare = Preparation({"arm": SPEC}, numbers, None, None)
    made = prepare.restore("arm", {"is_open": torch.ones(2, 4, 1).to(dtype)})["is_open"]
    assert made.dtype == torch.float32
    assert torch.equal(made, torch.ones(2, 4, 1))


def test_restoring_gives_the_samples_units_and_shapes() -> None:
    spec = dataclasses.replace(SPEC, actions={"arm": (4, 3, 2)})
    prepare = Preparation({"arm": spec}, normalizer(), None, None)
    made = prepare.restore("arm", {"arm": torch.full((5, 4, 6), -1.0)})["arm"]
    assert torch.equal(made, torch.full((5, 4, 3, 2), 60.0))


def test_an_embodiment_that_is_not_known() -> None:
    with pytest.raises(SettingsError, match=r"built for \['arm'\], not for 'leg'"):
        Preparation({"arm": SPEC}, None, None, None)("leg", make_batch())


def test_cameras_that_share_draws_are_those_of_any_embodiment() -> None:
    jitter = ColorJitter(brightness=0.5)
    specs = {"arm": SPEC, "hand": dataclasses.replace(SPEC, cameras={"palm": 1, "before": 1})}
    Preparation(specs, None, None, ImageAugment((jitter,), shared={"before": "palm"}))
    with pytest.raises(SettingsError, match=r"'plam', and there is no such camera; .*'palm'"):
        Preparation(specs, None, None, ImageAugment((jitter,), shared={"before": "plam"}))


def test_what_augments_must_be_an_image_augment() -> None:
    wrong: Any = ColorJitter(brightness=0.5)
    with pytest.raises(SettingsError, match="augment must be an ImageAugment"):
        Preparation({"arm": SPEC}, None, None, wrong)


def test_its_plain_form_makes_it_again() -> None:
    first = Preparation({"arm": SPEC}, normalizer(), IMAGES, None)
    again = Preparation({"arm": SPEC}, **first.to_plain(), augment=None)
    assert again.to_plain() == first.to_plain()
    assert not first.state_dict()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_weights_of_other_bits_leave_the_scale_exact(dtype: torch.dtype) -> None:
    numbers = Normalizer(NormStats({"arm": {"arm": key_stats(1000.123, 0.0123, 2)}}))
    values = 1000.123 + 0.0123 * torch.rand(3, 4, 2)
    before = numbers.normalize("arm", {"arm": values})["arm"]
    moved = torch.nn.Sequential(numbers).to(dtype)
    assert torch.equal(numbers.normalize("arm", {"arm": values})["arm"], before)
    moved.to("meta")
    assert all(buffer.is_meta for buffer in numbers.buffers())
