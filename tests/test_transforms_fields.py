"""Keys and dimensions: joined, taken apart, renamed, left out, padded, inverted; on ramps."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import KeyMap, MultiDataset, NormStats, collate
from egoloader.batch import Sample
from egoloader.errors import SettingsError
from egoloader.train.policy import padding
from egoloader.transforms import (
    Chain,
    Concatenate,
    CutDimensions,
    Drop,
    InvertGripper,
    PadDimensions,
    Rename,
    SelectDimensions,
    Split,
)
from tests.episodes import foreign_group, foreign_numbers
from tests.episodes import ramp as episode_ramp


def ramp(steps: int, size: int, start: int = 0) -> torch.Tensor:
    return 1000.0 * torch.arange(steps)[:, None] + torch.arange(start, start + size)


def two_arms() -> Sample:
    return {
        "first": 1,
        "left": ramp(3, 2),
        "left_is_pad": torch.tensor([False, False, True]),
        "between": "text",
        "right": ramp(3, 1, start=2),
        "right_is_pad": torch.tensor([False, True, True]),
        "last": ramp(3, 4),
    }


def test_concatenate_stands_where_the_first_part_did_and_joins_the_masks() -> None:
    joined = Concatenate(keys=["left", "right"], sizes=[2, 1], whole="arms")
    made = joined(two_arms())
    assert list(made) == ["first", "arms", "arms_is_pad", "between", "last"]
    assert torch.equal(made["arms"], ramp(3, 3))
    assert made["arms_is_pad"].tolist() == [False, True, True]
    back = joined.inverse()(made)
    assert list(back) == [
        *("first", "left", "left_is_pad", "right", "right_is_pad", "between", "last")
    ]
    assert torch.equal(back["left"], ramp(3, 2))
    assert torch.equal(back["right"], ramp(3, 1, start=2))
    assert back["left_is_pad"] is not back["right_is_pad"]
    for mask in ("left_is_pad", "right_is_pad"):
        assert back[mask].tolist() == [False, True, True]


def test_the_order_of_keys_is_the_order_of_numbers() -> None:
    made = Concatenate(keys=["right", "left"], sizes=[1, 2], whole="arms")(two_arms())
    assert list(made) == ["first", "between", "arms", "arms_is_pad", "last"]
    assert made["arms"][1].tolist() == [1002, 1000, 1001]


def test_one_part_may_give_its_name_and_one_may_have_no_mask() -> None:
    sample = two_arms()
    del sample["right_is_pad"]
    joined = Concatenate(keys=["left", "right"], sizes=[2, 1], whole="left")
    made = joined(sample)
    assert list(made) == ["first", "left", "left_is_pad", "between", "last"]
    assert torch.equal(made["left"], ramp(3, 3))
    assert made["left_is_pad"].tolist() == [False, False, True]
    back = joined.inverse()(made)
    assert torch.equal(back["left"], ramp(3, 2))
    del sample["left_is_pad"]
    assert list(joined(sample)) == ["first", "left", "between", "last"]
    assert list(joined.inverse()(joined(sample))) == ["first", "left", "right", "between", "last"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sizes": [2]}, "there are 2 keys and 1 sizes"),
        ({"sizes": "2,1"}, "sizes must list how long"),
        ({"sizes": [2, 0]}, "sizes must be a whole number from 1 on, got 0"),
        ({"sizes": [2, 2]}, r"key 'right' has the shape \[3, 1\], and must have \[3, 2\]"),
        ({"whole": "last"}, "there is a key 'last' already"),
        ({"whole": "fps"}, "there is a key 'fps' already, or every sample carries one"),
        ({"keys": ["left", "between"]}, "key 'between' is no tensor"),
        ({"keys": ["left", "rihgt"]}, "no key 'rihgt'; did you mean 'right'"),
    ],
)
def test_parts_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^Concatenate: .*{message}"):
        Concatenate(**{"keys": ["left", "right"], "sizes": [2, 1], "whole": "arms", **options})(
            two_arms()
        )


def test_masks_of_several_shapes_and_wholes_of_another_size_are_refused() -> None:
    shapes = {"a": (3, 2, 4), "a_is_pad": (3,), "b": (3, 2, 4), "b_is_pad": (3, 2)}
    with pytest.raises(SettingsError, match="have several shapes"):
        Concatenate(keys=["a", "b"], sizes=[4, 4], whole="c").shapes(shapes)
    with pytest.raises(SettingsError, match=r"Split: key 'a' has rows of 4 .* add up to 3"):
        Split(keys=["x", "y"], sizes=[1, 2], whole="a").shapes(shapes)
    with pytest.raises(SettingsError, match="Split: there is a key 'b' already"):
        Split(keys=["x", "b"], sizes=[2, 2], whole="a").shapes(shapes)


# Parts that an episode may lack.

MAY_LACK = Concatenate(keys=["left", "right"], sizes=[2, 1], whole="arms", optional=["right"])


def test_where_a_part_is_absent_its_dimensions_are_padded_and_the_steps_are_the_others() -> None:
    sample = two_arms()
    for is_pad in ([True, True, True], [False, True, True]):
        sample["right_is_pad"] = torch.tensor(is_pad)
        made = MAY_LACK(sample)
        assert list(made) == ["first", "arms", "arms_dim_is_pad", "arms_is_pad", "between", "last"]
        assert torch.equal(made["arms"], ramp(3, 3))
        assert made["arms_is_pad"].tolist() == [False, False, True]
        assert made["arms_dim_is_pad"].tolist() == [[False, False, one] for one in is_pad]
        back = MAY_LACK.inverse()(made)
        assert list(back) == [
            *("first", "left", "left_is_pad", "right", "right_is_pad", "between", "last")
        ]
        assert all(torch.equal(back[key], sample[key]) for key in ("left", "right"))
        assert back["left_is_pad"].tolist() == [False, False, True]
        assert back["right_is_pad"].tolist() == is_pad


def test_where_all_parts_may_be_absent_a_step_is_padded_where_all_are() -> None:
    sample = two_arms()
    both = Concatenate(
        keys=["left", "right"], sizes=[2, 1], whole="arms", optional=["right", "left"]
    )
    made = both(sample)
    assert made["arms_is_pad"].tolist() == [False, False, True]
    assert made["arms_dim_is_pad"].tolist() == [[False] * 3, [False, False, True], [True] * 3]
    back = both.inverse()(made)
    assert all(torch.equal(back[key], sample[key]) for key in sample if key.startswith(("l", "r")))


def test_dimensions_of_an_absent_part_stay_padded_among_more() -> None:
    sample = two_arms() | {"right_is_pad": torch.tensor([True, True, True])}
    padded = PadDimensions(keys=["arms"], given=3, size=5)
    made = Chain([MAY_LACK, padded])(sample)
    assert list(made)[:4] == ["first", "arms", "arms_dim_is_pad", "arms_is_pad"]
    assert made["arms_dim_is_pad"].tolist() == [[False, False, True, True, True]] * 3
    assert made["arms_is_pad"].tolist() == [False, False, True]
    back = Chain([MAY_LACK, padded]).inverse()(made)
    assert torch.equal(back["right"], sample["right"])
    assert "arms_dim_is_pad" not in back


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"optional": ["rihgt"]}, "optional lists 'rihgt'; did you mean 'right'"),
        ({}, {"optional": "right"}, "optional must list some of keys, got 'right'"),
        ({}, {"optional": ["right", "right"]}, "optional lists 'right' twice"),
        ({"right_is_pad": None}, {}, "optional lists 'right', and there is no 'right_is_pad'"),
        ({"left_is_pad": None}, {}, r"no mask tells which steps of \['left'\] are padded"),
        ({"arms_dim_is_pad": 1}, {}, "there is a key 'arms_dim_is_pad' already"),
    ],
)
def test_optional_parts_that_cannot_be_told_are_refused(
    changes: dict[str, Any], options: Any, message: str
) -> None:
    sample = {key: one for key, one in (two_arms() | changes).items() if one is not None}
    with pytest.raises(SettingsError, match=f"^Concatenate: {message}"):
        dataclasses.replace(MAY_LACK, **options)(sample)


def test_in_a_dataset_what_an_episode_has_counts_and_what_it_lacks_does_not(
    tmp_path: Path,
) -> None:
    totals = {"with.zarr": 9, "without.zarr": 7}
    for name, total in totals.items():
        group = foreign_group(tmp_path / name, total)
        foreign_numbers(group, "p", episode_ramp(total, 3))
        if name == "with.zarr":
            foreign_numbers(group, "g", episode_ramp(total, 1) + 7)
    window = {"key_type": "action_keys", "horizon": 4, "mask": True}
    keymap = KeyMap.from_config(
        {
            "p": {"zarr_key": "p", **window},
            "g": {"zarr_key": "g", "optional": True, "shape": [1], **window},
        }
    )
    joined = Concatenate(keys=["p", "g"], sizes=[3, 1], whole="a", optional=["g"])
    data = MultiDataset.from_folder(tmp_path, keymap, transforms=[joined])
    batch = collate(data.__getitems__([7, 9 + 5]))
    tail = [[False, False, True, True]] * 2
    assert batch["a_is_pad"].tolist() == tail
    assert not batch["a_dim_is_pad"][..., :3].any()
    assert batch["a_dim_is_pad"][..., 3].tolist() == [tail[0], [True] * 4]
    counted = ~padding(batch | {"is_repeat": torch.zeros(2, dtype=torch.bool)}, "a")
    assert counted.sum(dim=(1, 2)).tolist() == [8, 6]
    stats = NormStats.compute(data)["human"]["a"]
    assert stats.counts.tolist() == [16, 16, 16, 9]
    rows = np.concatenate([episode_ramp(total, 3) for total in totals.values()])
    np.testing.assert_allclose(stats.mean[:3], rows.mean(axis=0))
    np.testing.assert_allclose(stats.mean[3], episode_ramp(9, 1).mean() + 7)

    renamed = Rename(keys=["g"], to=["h"])
    joined = Concatenate(keys=["p", "h"], sizes=[3, 1], whole="a")
    wanted = r"^embodiment 'human', .* transforms\[1\], Concatenate: an episode may lack 'h'.* list"
    with pytest.raises(SettingsError, match=wanted):
        MultiDataset.from_folder(tmp_path, keymap, transforms=[Chain([renamed]), joined])


def test_rename_takes_what_belongs_to_a_key_along() -> None:
    sample = two_arms() | {"left_origin": torch.zeros(2)}
    sample = PadDimensions(keys=["right"], given=1, size=2)(sample)
    renamed = Rename(keys=["left", "right", "between"], to=["a", "left", "words"])
    made = renamed(sample)
    assert list(made) == [
        *("first", "a", "a_is_pad", "words", "left", "left_dim_is_pad", "left_is_pad", "last"),
        "a_origin",
    ]
    assert made["words"] == "text"
    assert made["left"] is sample["right"]
    back = renamed.inverse()(made)
    assert list(back) == list(sample)
    assert all(back[key] is sample[key] for key in sample)


def test_two_keys_may_swap_names() -> None:
    made = Rename(keys=["left", "right"], to=["right", "left"])(two_arms())
    assert torch.equal(made["left"], ramp(3, 1, start=2))
    assert made["left_is_pad"].tolist() == [False, True, True]


def test_what_keys_are_made_of_is_followed_through_a_chain() -> None:
    chain = Chain(
        [
            Rename(keys=["left", "right"], to=["right", "left"]),
            Concatenate(keys=["left", "right"], sizes=[1, 2], whole="arms"),
            Rename(keys=["arms", "last"], to=["action", "state"]),
        ]
    )
    assert chain.origins["action"] == ("right", "left")
    assert chain.origins["state"] == ("last",)
    back = chain.inverse()
    assert back.origins["left"] == ("action",)
    assert back.origins["last"] == ("state",)
    assert SelectDimensions(keys=["left"], dimensions=[1]).origins == {}


def test_drop_leaves_out_what_belongs_to_a_key() -> None:
    sample = PadDimensions(keys=["right"], given=1, size=2)(two_arms())
    made = Drop(keys=["right", "between"])(sample)
    assert list(made) == ["first", "left", "left_is_pad", "last"]


@pytest.mark.parametrize("kind", [Drop, lambda keys: Rename(keys=keys, to=["new"])])
def test_what_every_sample_carries_stays(kind: Any) -> None:
    with pytest.raises(SettingsError, match="every sample carries 'frame_index'; it stays"):
        kind(keys=["frame_index"])({"frame_index": torch.tensor(3)})


def test_as_many_new_names_as_keys() -> None:
    with pytest.raises(SettingsError, match="Rename: there are 2 keys and 1 new names"):
        Rename(keys=["a", "b"], to=["c"])
    with pytest.raises(SettingsError, match="Rename: to lists 'c' twice"):
        Rename(keys=["a", "b"], to=["c", "c"])


def test_select_takes_dimensions_in_the_order_given() -> None:
    made = SelectDimensions(keys=["last"], dimensions=[3, 0])(two_arms())
    assert made["last"].tolist() == [[3, 0], [1003, 1000], [2003, 2000]]
    for wrong, message in (
        ([], "must list places"),
        ("01", "must list places"),
        ([0, -1], "must be a whole number from 0 on, got -1"),
        ([1, 1], "lists 1 twice"),
    ):
        with pytest.raises(SettingsError, match=rf"^SelectDimensions: dimensions {message}"):
            SelectDimensions(keys=["last"], dimensions=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_padded_dimensions_are_zero_and_marked(lead: tuple[int, ...]) -> None:
    given = torch.arange(1, 2 * math.prod(lead) + 1).reshape(*lead, 2)
    padded = PadDimensions(keys=["a"], given=2, size=5)
    made = padded({"a": given, "a_is_pad": torch.zeros(lead, dtype=torch.bool)})
    assert list(made) == ["a", "a_dim_is_pad", "a_is_pad"]
    assert made["a"].dtype == torch.int64
    assert torch.equal(made["a"][..., :2], given)
    assert not made["a"][..., 2:].any()
    wanted = torch.tensor([False, False, True, True, True]).expand(*lead, 5)
    assert torch.equal(made["a_dim_is_pad"], wanted)
    back = padded.inverse()(made)
    assert list(back) == ["a", "a_is_pad"]
    assert torch.equal(back["a"], given)


def test_a_policys_outcome_is_cut_without_a_mask() -> None:
    cut = CutDimensions(keys=["a"], given=2, size=5)
    assert cut({"a": ramp(2, 5)})["a"].tolist() == [[0, 1], [1000, 1001]]
    with pytest.raises(SettingsError, match="rows of 2 numbers, and not of 5"):
        cut({"a": ramp(2, 2)})
    with pytest.raises(SettingsError, match="PadDimensions: size must be a whole number from 3"):
        PadDimensions(keys=["a"], given=3, size=2)


def test_a_gripper_that_is_inverted_is_open_where_it_was_closed() -> None:
    sample = {"a": torch.tensor([[5.0, 0.0], [6.0, 0.08], [7.0, 0.02], [math.nan, math.nan]])}
    invert = InvertGripper(keys=["a"], low=0, high=0.08, dimensions=[1])
    made = invert(sample)["a"]
    torch.testing.assert_close(made[:3, 1], torch.tensor([0.08, 0.0, 0.06]))
    assert made[:3, 0].tolist() == [5, 6, 7]
    assert made[3].isnan().all()
    torch.testing.assert_close(invert.inverse()({"a": made})["a"][:3], sample["a"][:3])
    whole = InvertGripper(keys=["a"], low=-1, high=1)({"a": torch.tensor([-1.0, 0.25, 2.0])})
    assert whole["a"].tolist() == [1.0, -0.25, -2.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 1, "high": 1}, "low, 1, must be below high, 1"),
        ({"low": 0, "high": math.inf}, "high must be a finite number, got inf"),
        ({"low": True, "high": 2}, "low must be a finite number, got True"),
        ({"low": 0, "high": 1, "dimensions": []}, "dimensions must list places"),
    ],
)
def test_ranges_that_cannot_be_meant_are_refused(options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^InvertGripper: {message}"):
        InvertGripper(keys=["a"], **options)
    with pytest.raises(SettingsError, match=r"InvertGripper: key 'a' has rows of 2 .*, and no 2"):
        InvertGripper(keys=["a"], low=0, high=1, dimensions=[2])({"a": ramp(1, 2)})
