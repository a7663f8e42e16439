"""Augmentation: what a sample's images depend on, what they don't, and what is refused."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from egoloader import EpisodeLoader, KeyMap, KeySpec, ZarrDataset, seeding
from egoloader.augment import (
    Affine,
    Blur,
    ColorJitter,
    Erasing,
    Grayscale,
    ImageAugment,
    ResizedCrop,
    absent_frames,
)
from egoloader.augment.draws import uniforms
from egoloader.errors import MissingExtraError, SettingsError
from egoloader.train.config import make
from tests.augment_images import scenes, some_seeds
from tests.conftest import REPO
from tests.dtypes import default_dtype

JITTER = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
MOVES = [Affine(degrees=20, translate=0.1, scale=[0.8, 1.2], p=0.7), ResizedCrop(p=0.6)]
OTHERS = [Grayscale(p=0.3), Blur(p=0.5), Erasing(value=0.5, p=0.5)]
ALL = ImageAugment([JITTER, *MOVES, *OTHERS])
SIZE = (20, 28)


def bytes_of(images: torch.Tensor) -> torch.Tensor:
    """Return images as loaders make them: uint8, views of channels-last memory."""
    return (images * 255).round().to(torch.uint8).movedim(-3, -1).contiguous().movedim(-1, -3)


def windows(batch: int, frames: int) -> torch.Tensor:
    return scenes(batch * frames, SIZE).unflatten(0, (batch, frames))


def test_draws_are_splitmix64s() -> None:
    seeds = torch.cat([some_seeds(5), torch.tensor([0, 2**63 - 1, -1, -(2**63)])])
    made = uniforms(seeds, 7, "front", "Blur", 1)
    key = seeding.stream_key("augment", "front", "Blur", 1)
    for seed, row in zip(seeds.tolist(), made, strict=True):
        # One word of the purpose's stream is the key of the sample's.
        start = np.array([(seed + key) % 2**64], dtype=np.uint64)
        stream = int(seeding.words(int(start[0]) - 0x9E3779B97F4A7C15 & 2**64 - 1, 1)[0])
        words = seeding.words(stream, 7) >> np.uint64(40)
        assert row.tolist() == (words.astype(np.float64) * 2.0**-24).tolist()
    assert made.dtype == torch.float32
    assert torch.equal(uniforms(seeds, 3, "front", "Blur", 1), made[:, :3])


def test_draws_are_even_and_differ_by_sample_and_purpose() -> None:
    numbers = uniforms(torch.arange(20_000), 4, "front", "Blur", 1)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = torch.histc(numbers, 32, 0, 1)
    assert (counts / counts.mean() - 1).abs().max() < 0.1
    other = uniforms(torch.arange(20_000), 4, "wrist", "Blur", 1)
    both = torch.cat([numbers[1:], numbers[:-1], other[1:]], dim=1)
    between = torch.corrcoef(both.T) - torch.eye(12)
    assert between.abs().max() < 0.03


def test_a_sample_is_changed_as_if_it_were_alone() -> None:
    images, seeds = windows(9, 2), some_seeds(9)
    batch = {"front": images[:, 0], "front_mem": images, "wrist": images[:, 1]}
    whole = ALL(batch, seeds)
    order = torch.tensor([4, 0, 4, 8])
    picked = ALL({key: value[order] for key, value in reversed(batch.items())}, seeds[order])
    for key, value in whole.items():
        assert value.shape == batch[key].shape
        assert value.dtype == torch.float32
        torch.testing.assert_close(picked[key], value[order], atol=1e-6, rtol=0)
        alone = ALL({key: batch[key][3:4]}, seeds[3:4])[key]
        torch.testing.assert_close(alone, value[3:4], atol=1e-6, rtol=0)
        assert (value - batch[key]).abs().mean() > 0.01
        assert 0 <= value.min() <= value.max() <= 1


def test_the_blocks_of_a_cpu_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    images, seeds = bytes_of(windows(7, 3)), some_seeds(7)
    whole = ALL({"front": images}, seeds)["front"]
    monkeypatch.setattr("egoloader.augment.augmenter._BLOCK", 4 * 3 * SIZE[0] * SIZE[1])
    in_blocks = ALL({"front": images}, seeds)["front"]
    torch.testing.assert_close(in_blocks, whole, atol=1e-6, rtol=0)


@pytest.mark.parametrize("step", [*MOVES, *OTHERS, ColorJitter(brightness=0.5, hue=0.5)], ids=str)
def test_frames_of_a_camera_are_changed_alike(step: Any) -> None:
    # One picture at all times: what differed would be a draw.
    images, seeds = scenes(6, SIZE), some_seeds(6)
    keys = {
        "front": images,
        "front_hist": images,
        "front_mem": images[:, None].repeat(1, 3, 1, 1, 1),
    }
    shared = ImageAugment([step], shared={"past": "front"})
    made = shared({**keys, "past": images, "wrist": images}, seeds)
    for key in ("front_hist", "past"):
        assert torch.equal(made[key], made["front"])
    for frame in made["front_mem"].unbind(1):
        torch.testing.assert_close(frame, made["front"], atol=1e-6, rtol=0)
    assert not torch.equal(made["wrist"], made["front"])
    assert torch.equal(
        ImageAugment([step])({"front_hist": images}, seeds)["front_hist"], made["front"]
    )


def test_shared_draws_are_those_of_the_last_camera_in_a_row() -> None:
    images, seeds = scenes(6, SIZE), some_seeds(6)
    shared = {"before": "front_hist", "long_before": "before", "other": "front_mem", "x_mem": "y"}
    augment = ImageAugment(MOVES, shared=shared)
    keys = ("front", "before", "long_before", "other", "x", "x_mem", "y", "y_hist")
    made = augment(dict.fromkeys(keys, images), seeds)
    for key in ("before", "long_before", "other"):
        assert torch.equal(made[key], made["front"])
    assert torch.equal(made["x_mem"], made["y"])
    assert not torch.equal(made["x_mem"], made["x"])


@pytest.mark.parametrize(
    ("shared", "circle"),
    [
        ({"x": "a", "a": "b", "b": "a"}, "'a' → 'b' → 'a'"),
        ({"front": "front_hist"}, "'front' → 'front_hist' → 'front'"),
    ],
)
def test_shared_draws_in_a_circle_are_refused(shared: dict[str, str], circle: str) -> None:
    with pytest.raises(SettingsError, match=f"in a circle: {circle}; leave one out"):
        ImageAugment([JITTER], shared=shared)


@pytest.mark.parametrize("shared", [{"pats": "front"}, {"past": "fornt"}])
def test_shared_names_are_those_of_cameras(shared: dict[str, str]) -> None:
    cameras = ["past", "front", "wrist"]
    ImageAugment([JITTER], shared={"past": "front"}).check_cameras(cameras)
    with pytest.raises(SettingsError, match=r"shared names '(pats|fornt)', .*'(past|front)'"):
        ImageAugment([JITTER], shared=shared).check_cameras(cameras)


def test_a_batch_has_the_camera_whose_draws_are_shared() -> None:
    augment = ImageAugment([JITTER], shared={"past": "front"})
    batch = {"past": scenes(2, SIZE), "frnt": scenes(2, SIZE), "sample_seed": some_seeds(2)}
    assert "frnt" in augment.augment_batch(batch, ["frnt"])
    with pytest.raises(SettingsError, match=r"shared names 'front', .* did you mean 'frnt'"):
        augment.augment_batch(batch, ["past"])


def test_cameras_and_samples_have_their_own_draws() -> None:
    images = scenes(1, SIZE).repeat(50, 1, 1, 1)
    seeds = torch.arange(50)
    made = ImageAugment([JITTER])({"front": images, "wrist": images}, seeds)
    means = torch.cat([value.mean((2, 3)) for value in made.values()])
    assert len(torch.unique(means.round(decimals=6), dim=0)) == 100
    again = ImageAugment([JITTER])({"front": images}, seeds)["front"]
    assert torch.equal(again, made["front"])


def test_another_kind_of_step_changes_no_draws() -> None:
    images, seeds = scenes(8, SIZE), some_seeds(8)
    plain = ImageAugment([JITTER])({"front": images}, seeds)["front"]
    erased = ImageAugment([Erasing(value=1.0, p=1.0), JITTER, Erasing(value=1.0, p=1.0)])
    # A jitter of brightness alone keeps to its places.
    bright = ColorJitter(brightness=0.4)
    one = ImageAugment([bright])({"front": images}, seeds)["front"]
    two = ImageAugment([Blur(p=1e-12), bright, Grayscale(p=1e-12)])({"front": images}, seeds)[
        "front"
    ]
    assert torch.equal(one, two)
    assert erased({"front": images}, seeds)["front"].shape == plain.shape
    twice = ImageAugment([bright, bright])({"front": images}, seeds)["front"]
    again = ImageAugment([bright])({"front": one}, seeds)["front"]
    assert not torch.allclose(twice, again, atol=1e-3)  # two of a kind draw apart


def test_steps_of_one_kind_draw_apart() -> None:
    seeds = torch.arange(20_000)
    (alone,) = ImageAugment([JITTER])._draws("front", seeds)
    first, _, second = ImageAugment([JITTER, *MOVES[:1], JITTER])._draws("front", seeds)
    assert torch.equal(first, alone)
    between = torch.corrcoef(torch.cat([first, second], dim=1).T) - torch.eye(18)
    assert between.abs().max() < 0.03
    # So that what they do to pixels is independent, too, and as wide.
    gray = torch.full((4000, 3, 1, 1), 0.25)
    bright = ColorJitter(brightness=0.3)
    once, twice = (
        ImageAugment([bright] * count)({"front": gray}, seeds[:4000])["front"][:, 0, 0, 0]
        for count in (1, 2)
    )
    factors = torch.stack([once / 0.25, twice / once])
    assert abs(float(torch.corrcoef(factors)[0, 1])) < 0.05
    assert (factors.amin(1) - 0.7).abs().max() < 0.01
    assert (factors.amax(1) - 1.3).abs().max() < 0.01


def test_a_steps_draws_are_the_same_in_every_run() -> None:
    (draws,) = ImageAugment([JITTER])._draws("front", torch.tensor([0, 7, -5]))
    assert (draws * 2**24).long().tolist() == [
        [967976, 11992586, 1665949, 15359771, 16227464, 10630593, 11421619, 1903553, 9723059],
        [2959341, 15335587, 13050749, 12645429, 11010372, 1100776, 1634905, 13544127, 11579646],
        [8910520, 13994873, 9590247, 7181028, 12225066, 2535834, 14334791, 6970839, 9969929],
    ]


def test_steps_in_a_row_move_pixels_once() -> None:
    # Turned by a quarter and back: interpolated twice, it would not be what it was.
    images, seeds = scenes(4, (21, 21)), some_seeds(4)
    there, back = (Affine(degrees=[a, a], padding="reflection") for a in (45, -45))
    made = ImageAugment([there, back])({"front": images}, seeds)["front"]
    torch.testing.assert_close(made, images, atol=1e-4, rtol=0)
    apart = [there, Affine(degrees=[-45, -45], padding="border")]  # see other things beyond it
    made = ImageAugment(apart)({"front": images}, seeds)["front"]
    assert (made - images).abs().mean() > 1e-3


def test_an_affine_and_a_crop_are_one_after_the_other() -> None:
    # A ramp has the same values, however often it is interpolated.
    y, x = torch.meshgrid(*(torch.arange(float(n)) for n in (64, 96)), indexing="ij")
    ramp = torch.stack([x / 95, y / 63, (x + y) / 158]).expand(6, -1, -1, -1)
    seeds, steps = (
        some_seeds(6),
        [ResizedCrop(scale=[0.3, 0.5]), Affine(degrees=10, scale=[1.5, 2])],
    )
    at_once = ImageAugment(steps)({"front": ramp}, seeds)["front"]
    first = ImageAugment(steps[:1])({"front": ramp}, seeds)
    torch.testing.assert_close(
        ImageAugment(steps[1:])(first, seeds)["front"], at_once, atol=1e-4, rtol=0
    )


def test_a_step_that_is_not_drawn_leaves_a_sample_as_it_is() -> None:
    images, seeds = scenes(400, (6, 8)), some_seeds(400)
    for step in (*MOVES, *OTHERS, ColorJitter(brightness=0.4, hue=0.1, p=0.25)):
        made = ImageAugment([step])({"front": images}, seeds)["front"]
        kept = (made == images).flatten(1).all(1).float().mean()
        assert float(kept) == pytest.approx(1 - step.p, abs=0.08)


def test_absent_cameras_stay_zero_and_change_nothing_else() -> None:
    images, seeds = bytes_of(windows(6, 2)), some_seeds(6)
    some = images.clone()
    some[1], some[4, 0] = 0, 0
    whole = ALL({"front": images, "wrist": images[:, 0]}, seeds)
    made = ALL({"front": some, "wrist": images[:, 0]}, seeds)
    assert torch.equal(made["wrist"], whole["wrist"])
    is_absent = absent_frames(some)
    assert is_absent.tolist() == [
        [False] * 2,
        [True] * 2,
        *[[False] * 2] * 2,
        [True, False],
        [False] * 2,
    ]
    assert not made["front"][is_absent].any()
    assert torch.equal(made["front"][~is_absent], whole["front"][~is_absent])
    assert not absent_frames(images).any()
    assert torch.equal(absent_frames(some.float() / 255), is_absent)
    # Nor does a camera that is not in the batch at all.
    assert torch.equal(ALL({"wrist": images[:, 0]}, seeds)["wrist"], whole["wrist"])


def test_pytorchs_generators_are_left_as_they_are() -> None:
    images, seeds = scenes(4, SIZE), some_seeds(4)
    before = torch.get_rng_state()
    made = ALL({"front": images}, seeds)["front"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    assert torch.equal(ALL({"front": images}, seeds)["front"], made)


def test_what_is_handed_in_is_not_written_into() -> None:
    for images in (scenes(4, SIZE), bytes_of(scenes(4, SIZE)), scenes(4, SIZE).double()):
        kept, seeds = images.clone(), some_seeds(4)
        for augment in (ALL, ImageAugment([*MOVES]), ImageAugment([JITTER]), ImageAugment(OTHERS)):
            made = augment({"front": images}, seeds)["front"]
            assert torch.equal(images, kept)
            assert made.data_ptr() != images.data_ptr()
            assert torch.equal(augment({"front": images}, seeds)["front"], made)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_nothing_waits_for_the_device(device: str) -> None:
    # Tensors without numbers: what asks for one, or for a shape that hangs on one, is an error, and
    # so is anything that was made on another device.
    steps = [JITTER, ColorJitter(contrast=0.2, p=0.5), *MOVES, Grayscale(), Erasing(value=0.5)]
    if device == "cpu":
        steps.append(Blur())
    with FakeTensorMode():
        images = torch.empty(4, 2, 3, *SIZE, dtype=torch.uint8, device=device)
        seeds = torch.zeros(4, dtype=torch.int64, device=device)
        made = ImageAugment(steps)({"front": images, "wrist": images[:, 0]}, seeds)
        absent = absent_frames(images)
        with pytest.raises(DataDependentOutputException):
            absent.any().item()
    assert {value.device.type for value in (*made.values(), absent)} == {device}
    assert made["front"].shape == (4, 2, 3, *SIZE)


def test_autocast_does_not_reach_it() -> None:
    images, seeds = scenes(4, SIZE), some_seeds(4)
    plain = ALL({"front": images}, seeds)["front"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = ALL({"front": images}, seeds)["front"]
    assert cast.dtype == torch.float32
    assert torch.equal(cast, plain)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("step", [JITTER, *MOVES, *OTHERS, Erasing(value=0.3)], ids=str)
def test_the_default_dtype_does_not_reach_it(step: Any, dtype: torch.dtype) -> None:
    augment, images, seeds = ImageAugment([step]), bytes_of(scenes(6, SIZE)), some_seeds(6)
    wanted = augment({"front": images}, seeds)["front"]
    with default_dtype(dtype):
        made = augment({"front": images}, seeds)["front"]
    assert made.dtype == torch.float32
    assert torch.equal(made, wanted)


def test_no_gradient_passes() -> None:
    images = scenes(2, SIZE).requires_grad_()
    assert not ALL({"front": images}, some_seeds(2))["front"].requires_grad


def test_empty_batches_and_single_pixels() -> None:
    assert ALL({"front": torch.empty(0, 3, *SIZE)}, some_seeds(0))["front"].shape == (0, 3, *SIZE)
    tiny = ImageAugment([JITTER, *MOVES, OTHERS[0], OTHERS[2]])
    made = tiny({"front": scenes(3, (1, 1))}, some_seeds(3))["front"]
    assert made.isfinite().all()


def load(dtype: str) -> list[dict[str, Any]]:
    camera = {"zarr_key": "images.front_1", "key_type": "camera_keys"}
    keymap = KeyMap({"front": KeySpec(**camera), "front_hist": KeySpec(lag_s=0.5, **camera)})
    episode = ZarrDataset(REPO / "egoloader/samples/pick_place_0.zarr", keymap, image_dtype=dtype)
    return list(EpisodeLoader(episode, batch_size=40, shuffle=True, seed=3))


def test_bytes_are_a_quarter_and_give_what_floats_give() -> None:
    cameras = ["front", "front_hist"]
    for few, many in zip(load("uint8"), load("float32"), strict=True):
        for key in cameras:
            assert few[key].dtype == torch.uint8
            assert 4 * few[key].nbytes == many[key].nbytes
        made, wanted = (ALL.augment_batch(batch, cameras) for batch in (few, many))
        assert made["fps"] is few["fps"]
        assert few["front"].dtype == torch.uint8  # the batch stays as it is
        for key in cameras:
            assert torch.equal(made[key], wanted[key])
            assert made[key].dtype == torch.float32


def test_a_config_makes_it() -> None:
    def node(kind: str, **options: Any) -> dict[str, Any]:
        return {"_target_": f"egoloader.augment.{kind}", **options}

    steps = [
        node("ColorJitter", brightness=0.3, hue=[-0.1, 0.2]),
        node("Affine", translate=[0, 0.1]),
    ]
    augment = make(node("ImageAugment", steps=steps, shared={"past": "front"}))
    assert augment.steps == (
        ColorJitter(brightness=0.3, hue=[-0.1, 0.2]),
        Affine(translate=[0, 0.1]),
    )
    assert pickle.loads(pickle.dumps(augment)) == augment


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (ColorJitter, {}, "nothing to change"),
        (ColorJitter, {"hue": 0.6}, r"hue must be a number from 0 to 0\.5"),
        (ColorJitter, {"brightness": -1}, "brightness must be a number from 0 on"),
        (ColorJitter, {"brightness": [1.2, 0.8]}, "brightness must ascend"),
        (ColorJitter, {"contrast": "much"}, "contrast must be a number, or two"),
        (ColorJitter, {"contrast": float("nan")}, "contrast must be a number, or two"),
        (ColorJitter, {"saturation": True}, "saturation must be a number, or two"),
        (ColorJitter, {"brightness": 0.1, "p": 1.5}, r"p must be a probability"),
        (ColorJitter, {"brightness": [1, 1], "hue": [0, 0]}, "nothing to change"),
        (Affine, {}, "nothing to change"),
        (Affine, {"degrees": 400}, "degrees must be a number from 0 to 360"),
        (Affine, {"translate": 2}, "translate must be a share from 0 to 1"),
        (Affine, {"translate": [0.1, 0.1, 0.1]}, "translate must be a share"),
        (Affine, {"scale": 0.1}, "scale must be two numbers"),
        (Affine, {"scale": [0, 1]}, "scale must ascend, above 0"),
        (Affine, {"degrees": 5, "padding": "boarder"}, "did you mean 'border'"),
        (ResizedCrop, {"scale": [0.5, 1.5]}, "scale must ascend, above 0 and at most 1"),
        (ResizedCrop, {"ratio": [2, 1]}, "ratio must ascend"),
        (Blur, {"kernel_size": 4}, "kernel_size must be odd"),
        (Blur, {"sigma": [0, 1]}, "sigma must ascend, above 0"),
        (Erasing, {"value": 2}, "value must be a number from 0 to 1"),
        (Erasing, {"scale": [0.1]}, "scale must be two numbers"),
        (ImageAugment, {"steps": []}, "at least one"),
        (ImageAugment, {"steps": [JITTER, "blur"]}, r"steps\[1\] is no step"),
        (ImageAugment, {"steps": [JITTER], "shared": ["front"]}, "shared must be {key: camera}"),
    ],
)
def test_options_that_cannot_be_meant(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=f"{kind.__name__}: .*{message}"):
        kind(**options)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([torch.zeros(3, 4, 4)], "holds a list, .* set `size`"),
        (torch.zeros(2, 4, 4, 3), r"must be \(B, 3, H, W\).*\[2, 4, 4, 3\]"),
        (torch.zeros(3, 4, 4), "must be"),
        (torch.zeros(2, 3, 4, 4, dtype=torch.int64), "must be uint8 .*is torch.int64"),
        (torch.zeros(3, 3, 4, 4), "has 3 samples, and sample_seed has 2"),
    ],
)
def test_images_that_are_none(images: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=f"key 'front' {message}"):
        ALL({"front": images}, some_seeds(2))


def test_a_kernel_reaches_no_farther_than_images_do() -> None:
    blur = ImageAugment([Blur(kernel_size=7, p=1)])
    images = scenes(2, (4, 30))
    assert blur({"front": images}, some_seeds(2))["front"].shape == images.shape
    for thin in (images[:, :, :3], images[..., :3]):
        with pytest.raises(SettingsError, match="Blur: kernel_size 7 needs images of more than 3"):
            blur({"front": thin}, some_seeds(2))


def test_batches_without_what_is_asked_for() -> None:
    batch = {"front": scenes(2, SIZE), "sample_seed": some_seeds(2)}
    with pytest.raises(SettingsError, match="no key 'frnt'; did you mean 'front'"):
        ALL.augment_batch(batch, ["frnt"])
    with pytest.raises(SettingsError, match="no key 'sample_seed'"):
        ALL.augment_batch({"front": batch["front"]}, ["front"])
    for seeds in (some_seeds(2).int(), some_seeds(2)[:, None], some_seeds(2).tolist()):
        with pytest.raises(SettingsError, match="sample_seed must be"):
            ALL({"front": batch["front"]}, seeds)


def test_only_blur_needs_kornia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(MissingExtraError, match=r"egoloader\[augment\]"):
        Blur()
    code = "import sys, egoloader.augment; print('kornia' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False"]
