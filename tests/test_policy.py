"""The policy: its loss leaves padding out, its shapes follow the spec, it learns."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from egoloader import MultiDataset, ZarrDataset, collate, human_keymap
from egoloader.augment import Affine, ColorJitter, ImageAugment
from egoloader.errors import SettingsError
from egoloader.train.policy import ActionChunkPolicy, PolicySettings, chunk_loss, masked_l1
from egoloader.train.spec import SampleSpec, describe
from tests.episodes import write_human

SMALL = {"width": 16, "heads": 2, "layers": 1}
SPEC = SampleSpec({"front": 1, "front_mem": 2}, {"pose": 12}, {"arm": (4, 3), "hand": (2, 1)})


def make_batch(size: int, *, fps: float = 30.0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    return {
        "front": torch.randint(256, (size, 3, 32, 48), dtype=torch.uint8, generator=generator),
        "front_mem": torch.randint(
            256, (size, 2, 3, 32, 48), dtype=torch.uint8, generator=generator
        ),
        "pose": torch.randn(size, 4, 3, generator=generator),
        "arm": torch.randn(size, 4, 3, generator=generator),
        "arm_is_pad": torch.zeros(size, 4, dtype=torch.bool),
        "hand": torch.randn(size, 2, 1, generator=generator),
        "hand_is_pad": torch.zeros(size, 2, dtype=torch.bool),
        "fps": torch.full((size,), fps),
        "is_repeat": torch.zeros(size, dtype=torch.bool),
        "frame_index": torch.arange(size),
    }


def loss_of(policy: ActionChunkPolicy, batch: dict[str, Any]) -> torch.Tensor:
    prepared = policy.preparation("arm", batch)
    return chunk_loss(policy.network("arm", prepared), prepared)


def test_masked_l1_is_the_mean_over_real_steps() -> None:
    predicted = torch.tensor([[[1.0, 3.0], [100.0, 100.0]], [[0.0, 0.0], [4.0, 0.0]]])
    target = torch.zeros_like(predicted)
    is_pad = torch.tensor([[False, True], [False, False]])
    # Real steps: (1 + 3) / 2, 0, (4 + 0) / 2.
    assert masked_l1(predicted, target, is_pad).item() == pytest.approx((2 + 0 + 2) / 3)
    assert masked_l1(predicted, target, torch.ones(2, 2, dtype=torch.bool)).item() == 0.0


def test_no_gradient_comes_from_padded_steps_even_where_they_are_nan() -> None:
    predicted = torch.randn(2, 3, 4, requires_grad=True)
    target = torch.randn(2, 3, 4)
    is_pad = torch.tensor([[False, False, True], [False, True, True]])
    target[is_pad] = torch.nan
    masked_l1(predicted, target, is_pad).backward()
    assert predicted.grad is not None
    assert (predicted.grad[is_pad] == 0).all()
    assert (predicted.grad[~is_pad] != 0).all()


def test_what_is_padded_does_not_move_the_loss() -> None:
    torch.manual_seed(0)
    policy, batch = ActionChunkPolicy({"arm": SPEC}, **SMALL), make_batch(3)
    batch["arm_is_pad"][:, 2:] = True
    before = loss_of(policy, batch)
    batch["arm"][:, 2:] += 7.0
    assert torch.equal(loss_of(policy, batch), before)
    batch["arm"][:, :2] += 7.0
    assert not torch.equal(loss_of(policy, batch), before)


def test_shapes_follow_the_spec() -> None:
    policy = ActionChunkPolicy({"arm": SPEC}, **SMALL)
    out = policy("arm", make_batch(5))
    assert {key: tuple(value.shape) for key, value in out.items()} == {
        "arm": (5, 4, 3),
        "hand": (5, 2, 1),
    }
    blind = ActionChunkPolicy({"a": SampleSpec({}, {"pose": 12}, {"arm": (4, 3)})}, **SMALL)
    assert blind("a", make_batch(2))["arm"].shape == (2, 4, 3)
    with pytest.raises(SettingsError, match="built for \\['arm'\\], not for 'leg'"):
        policy("leg", make_batch(1))


@pytest.mark.parametrize("changed", ["front", "front_mem", "pose", "fps"])
def test_every_input_reaches_the_actions(changed: str) -> None:
    torch.manual_seed(0)
    policy, batch = ActionChunkPolicy({"arm": SPEC}, **SMALL).eval(), make_batch(2)
    before = policy("arm", batch)["arm"]
    batch[changed] = 255 - batch[changed] if "front" in changed else batch[changed] * 3
    assert (policy("arm", batch)["arm"] - before).abs().max() > 1e-6


def test_floats_and_bytes_of_one_image_give_one_action() -> None:
    policy, batch = ActionChunkPolicy({"arm": SPEC}, **SMALL).eval(), make_batch(2)
    as_float = {**batch, "front": batch["front"] / 255, "front_mem": batch["front_mem"] / 255}
    assert torch.allclose(policy("arm", batch)["arm"], policy("arm", as_float)["arm"])


def test_frames_that_only_fill_a_batch_up_do_not_move_the_loss() -> None:
    policy, batch = ActionChunkPolicy({"arm": SPEC}, **SMALL).eval(), make_batch(4)
    alone = {key: value[:3] for key, value in batch.items()}
    batch["is_repeat"][3] = True
    assert loss_of(policy, batch).item() == pytest.approx(loss_of(policy, alone).item())
    batch["is_repeat"][:] = True
    assert loss_of(policy, batch).item() == 0.0


def test_validation_errors_are_means_over_the_numbers_that_are_real(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, meters = ActionChunkPolicy({"arm": SPEC}, **SMALL).eval(), {}
    monkeypatch.setattr(policy, "log", lambda name, value, **_: meters.update({name: value}))
    whole = make_batch(6)
    whole["hand"] = whole["hand"] > 0  # a flag
    whole["arm_is_pad"][0, 1:] = whole["is_repeat"][5] = True
    whole["arm_is_other_span"] = torch.zeros(6, 4, dtype=torch.bool)
    whole["arm_is_other_span"][1, 3] = True
    whole["arm_dim_is_pad"] = torch.zeros(6, 4, 3, dtype=torch.bool)
    whole["arm_dim_is_pad"][..., 2] = True
    for part in (slice(0, 1), slice(1, 4), slice(4, 6)):
        policy.validation_step({"arm": {key: value[part] for key, value in whole.items()}}, 0)
    off = {
        key: (chunk - whole[key].float()).abs().detach()
        for key, chunk in policy("arm", whole).items()
    }
    is_real = torch.ones(6, 4, 3, dtype=torch.bool)
    is_real[0, 1:] = is_real[1, 3] = is_real[5] = is_real[..., 2] = False
    for key, wanted in (("arm", off["arm"][is_real]), ("hand", off["hand"][:5])):
        error = meters[f"val/error/arm/{key}"].compute()
        assert error.item() == pytest.approx(wanted.mean().item(), rel=1e-5)


class NoWaiting(TorchDispatchMode):
    """Refuses what waits for the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert not any(one in name for one in ("_local_scalar_dense", "nonzero", "aten.equal")), (
            name
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_step_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, *, is_mixed: bool) -> None:
    augment = ImageAugment((ColorJitter(brightness=0.2, hue=0.1), Affine(degrees=3)))
    policy = ActionChunkPolicy({"arm": SPEC}, augment=augment, **SMALL)
    monkeypatch.setattr(policy, "log", lambda *_, **__: None)
    batch = {"arm": {**make_batch(2), "sample_seed": torch.arange(2)}}
    with NoWaiting(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_mixed):
        policy.training_step(batch, 0).backward()
        policy.validation_step(batch, 0)
    assert all(one.grad is not None for one in policy.parameters())


def test_weights_of_fewer_bits_take_batches_as_they_are() -> None:
    policy = ActionChunkPolicy({"arm": SPEC}, **SMALL).to(torch.bfloat16)
    assert policy("arm", make_batch(2))["arm"].dtype == torch.float32


def test_it_learns_a_batch_by_heart() -> None:
    torch.manual_seed(0)
    policy, batch = ActionChunkPolicy({"arm": SPEC}, **SMALL), make_batch(4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    first = loss_of(policy, batch).item()
    for _ in range(120):
        optimizer.zero_grad()
        loss = loss_of(policy, batch)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


def test_the_rate_rises_and_falls() -> None:
    policy = ActionChunkPolicy({"arm": SPEC}, **SMALL, warmup=0.1)
    rates = [policy._rate(step, 100) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == pytest.approx(1.0)
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"width": 0},
        {"width": 10, "heads": 4},
        {"dropout": 1.0},
        {"learning_rate": 0.0},
        {"weight_decay": -1.0},
        {"warmup": 1.0},
        {"width": "abc"},
        {"dropout": "abc"},
        {"learning_rate": "1e-3"},
        {"learning_rate": float("inf")},
        {"weight_decay": None},
        {"warmup": True},
    ],
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"model\."):
        PolicySettings(**wrong)


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(SettingsError, match=r"no option 'widht'; did you mean 'width'\?"):
        ActionChunkPolicy({"arm": SPEC}, widht=16)


def test_a_checkpoint_holds_every_setting() -> None:
    policy = ActionChunkPolicy({"arm": SPEC}, **SMALL)
    kept = {"specs", "normalizer", "images", "transforms", "collate_fn"}
    assert set(policy.hparams) == kept | {field.name for field in fields(PolicySettings)}
    again = ActionChunkPolicy(**policy.hparams)
    assert again.settings == policy.settings
    assert dict(again.hparams) == dict(policy.hparams)


@pytest.mark.parametrize("steps", [1, 3])
def test_arrays_of_one_number_a_row(steps: int) -> None:
    spec = SampleSpec({}, {"grip": steps}, {"arm": (4, 1)})
    policy = ActionChunkPolicy({"arm": spec}, **SMALL)
    batch = make_batch(2)
    batch["arm"] = batch["arm"][:, :, 0]
    batch["grip"] = torch.randn(2) if steps == 1 else torch.randn(2, steps)
    predicted = policy("arm", batch)["arm"]
    assert predicted.shape == (2, 4, 1)
    wanted = (predicted[..., 0] - batch["arm"]).abs().mean()
    assert loss_of(policy, batch).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_describe_reads_shapes_from_a_sample(tmp_path: Path) -> None:
    write_human(tmp_path / "a.zarr", 12)
    keymap = human_keymap("cartesian", horizon=5, proprio_history=3, image_memory=2, masks=True)
    source = MultiDataset.from_folder(tmp_path, keymap)
    spec = describe({"human": source})["human"]
    front = "observations.images.front_img_1"
    assert spec.cameras == {front: 1, f"{front}_mem": 2}
    assert spec.states == {"left.obs_ee_pose": 21, "right.obs_ee_pose": 21, "obs_head_pose": 7}
    assert spec.actions == {"left.action_ee_pose": (5, 7), "right.action_ee_pose": (5, 7)}
    dataset = ZarrDataset(tmp_path / "a.zarr", keymap)
    batch = collate([dataset[0], dataset[11]])
    policy = ActionChunkPolicy({"human": spec}, **SMALL)
    assert policy("human", batch)["left.action_ee_pose"].shape == (2, 5, 7)


def test_describe_refuses_actions_without_masks_or_without_actions(tmp_path: Path) -> None:
    write_human(tmp_path / "a.zarr", 12)
    unmasked = MultiDataset.from_folder(tmp_path, human_keymap("cartesian"))
    with pytest.raises(SettingsError, match="padded steps would be learned"):
        describe({"human": unmasked})
    states = {"pose": {"zarr_key": "obs_head_pose", "key_type": "proprio_keys"}}
    from egoloader import KeyMap

    blind = MultiDataset.from_folder(tmp_path, KeyMap.from_config(states))
    with pytest.raises(SettingsError, match="no action_keys entry"):
        describe({"human": blind})


@pytest.mark.parametrize("memory", [None, 2])
def test_describe_refuses_encoded_images(tmp_path: Path, memory: int | None) -> None:
    write_human(tmp_path / "a.zarr", 12)
    keymap = human_keymap("cartesian", image_memory=memory, masks=True)
    source = MultiDataset.from_folder(tmp_path, keymap, image_dtype="jpeg")
    with pytest.raises(SettingsError, match=r"front_img_1' of 'human' .* data\.image_dtype=uint8"):
        describe({"human": source})
