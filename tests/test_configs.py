"""Every config composes and builds; what is built gets plain Python containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from egoloader import KeyMap
from egoloader.augment import ImageAugment
from egoloader.datamodule import EpisodeDataModule
from egoloader.errors import ConfigError, KeyMapError
from egoloader.imagestats import ImageStats
from egoloader.train.config import compose, config_dir, make, sample_folder
from egoloader.train.normalization import Normalization
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.spec import SampleSpec

CHOICES = sorted(
    (path.parent.name, path.stem)
    for path in config_dir().rglob("*.yaml")
    if path.parent != config_dir()
)
# What a choice leaves for the user to give.
NEEDED = {
    ("data", "folder"): [f"data.folder={sample_folder()}"],
    ("keymap", "state_action"): ["keymap.state=[obs_ee_pose]"],
    ("recipe", "cotraining"): [f"data.folder={sample_folder()}"],
}


def all_inside(value: Any, seen: set[int]) -> list[Any]:
    """Return every object that can be reached from a value, by containers and attributes."""
    if id(value) in seen or isinstance(value, str | bytes | int | float | bool | None | type):
        return []
    seen.add(id(value))
    found = [value]
    if isinstance(value, dict):
        children = [*value.keys(), *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        children = list(value)
    else:
        children = list(getattr(value, "__dict__", {}).values())
        children += [getattr(value, name, None) for name in getattr(value, "__slots__", ())]
    for child in children:
        found += all_inside(child, seen)
    return found


def test_the_tree_is_what_it_was() -> None:
    groups = {group for group, _ in CHOICES}
    assert groups == {
        *("augment", "callbacks", "data", "keymap", "logger", "model", "norm", "recipe"),
        *("sampler", "trainer"),
    }
    assert ("keymap", "human") in CHOICES


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes_and_builds(group: str, choice: str, tmp_path: Path) -> None:
    overrides = [f"{group}={choice}", f"output_dir={tmp_path}", *NEEDED.get((group, choice), [])]
    config = compose(overrides)
    if group in ("callbacks", "logger"):
        built = [make(node) for node in config[group].values()]
        assert built
    elif group in ("augment", "norm"):
        built = {name: make(node) for name, node in config[group].items()}
        wanted = {"images": (ImageAugment, ImageStats), "numbers": Normalization}
        assert all(isinstance(one, wanted[name]) for name, one in built.items() if one is not None)
        assert (choice == "none") == all(one is None for one in built.values())
    elif group == "recipe":  # what it chooses, and changes of that
        assert isinstance(make(config.data), EpisodeDataModule)
        assert all(make(config[name].images) is not None for name in ("augment", "norm"))
        assert make(config.norm.numbers).skip
    elif group == "model":
        spec = SampleSpec({"camera": 1}, {"state": 7}, {"action": (4, 2)})
        assert isinstance(make(config.model)({"arm": spec}), ActionChunkPolicy)
    elif group == "trainer":
        assert isinstance(make(config.trainer, logger=False), lightning.Trainer)
    else:
        built = make(config[group])
        wanted = {"data": EpisodeDataModule, "keymap": KeyMap}
        for one in built.values() if choice == "cotraining" else [built]:
            assert isinstance(one, wanted.get(group, object))


@pytest.mark.parametrize("choice", [name for group, name in CHOICES if group == "keymap"])
def test_case_36_built_keymaps_hold_no_config_containers(choice: str) -> None:
    keymap = make(compose([f"keymap={choice}", *NEEDED.get(("keymap", choice), [])]).keymap)
    inside = all_inside(keymap, set())
    assert len(inside) > len(keymap)
    assert not [one for one in inside if isinstance(one, DictConfig | ListConfig)]


def test_case_36_the_data_module_gets_plain_containers() -> None:
    config = compose(["data.filters={embodiment: [sawyer], task_name: pick_place}"])
    data = make(config.data)
    inside = all_inside(data._options, set())
    assert data._options["filters"] == {"embodiment": ["sawyer"], "task_name": "pick_place"}
    assert not [one for one in inside if isinstance(one, DictConfig | ListConfig)]


def test_a_keymap_per_embodiment(tmp_path: Path) -> None:
    keymap = "{_target_: egoloader.human_keymap, masks: true}"
    config = compose(["~keymap", f"+keymap={{human: {keymap}, other: {keymap}}}"])
    built = make(config.data)._keymap
    assert type(built) is dict
    assert set(built) == {"human", "other"}
    assert all(isinstance(one, KeyMap) for one in built.values())


@pytest.mark.parametrize("choice", ["human", "eva", "lerobot", "samples"])
def test_a_keymap_on_one_time_grid(choice: str) -> None:
    grid = ["keymap.rate_hz=10", "keymap.horizon_s=1.6", "keymap.interpolation=linear"]
    keymap = make(compose([f"keymap={choice}", *grid]).keymap)
    actions = [spec for spec in keymap.values() if spec.key_type == "action_keys"]
    assert actions
    for spec in actions:
        is_pose = spec.zarr_key.endswith("_pose")
        assert (spec.grid_steps, spec.interpolation) == (16, "slerp" if is_pose else "linear")


def test_an_entry_on_one_time_grid() -> None:
    action = "keymap.entries.action"
    grid = [f"{action}.horizon=null", f"+{action}.rate_hz=10", f"+{action}.horizon_s=1.6"]
    keymap = make(compose(["keymap=entries", *grid]).keymap)
    assert keymap["action"].grid_steps == 16


def test_overriding_a_keymap() -> None:
    plain = make(compose(["keymap=human"]).keymap)
    lagged = make(compose(["keymap=human", "keymap.image_history_gap_s=0.1"]).keymap)
    assert set(lagged) - set(plain) == {"observations.images.front_img_1_hist"}
    assert lagged["observations.images.front_img_1_hist"].lag_s == 0.1


def test_case_34_one_field_of_a_dotted_key_in_dict_form() -> None:
    before = make(compose(["keymap=entries"]).keymap)
    override = "keymap.entries={observation.state: {history: 8}}"
    after = make(compose(["keymap=entries", override]).keymap)
    assert list(after) == list(before)
    assert after["observation.state"].history == 8
    assert after["observation.state"].zarr_key == before["observation.state"].zarr_key
    assert {k: v for k, v in after.items() if k != "observation.state"} == {
        k: v for k, v in before.items() if k != "observation.state"
    }


def test_case_34_the_unescaped_form_says_how() -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["keymap=entries", "keymap.entries.observation.state.history=8"])
    assert "observation.state" in str(caught.value)
    assert "keymap.entries={observation.state: {history: 4}}" in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["keymap.image_histroy_gap_s=0.1"], "did you mean 'image_history_gap_s'"),
        (["keymap=humna"], "no keymap=humna; did you mean 'human'"),
        (["trainer.max_epoch=3"], "did you mean 'max_epochs'"),
        (["modle=policy"], "did you mean 'model'"),
        (["nonsense"], "missing EQUAL"),
        (["data.folder=my episodes/é"], "need quotes of their own"),
    ],
)
def test_typos_name_the_near_miss(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose(overrides)


def test_an_option_that_is_not_listed_is_passed_with_a_plus() -> None:
    with pytest.raises(ConfigError, match=r"does not list, write \+trainer\.fast_dev_run=…$"):
        compose(["trainer.fast_dev_run=true"])
    assert compose(["+trainer.fast_dev_run=true"]).trainer.fast_dev_run is True


def test_an_option_below_null_says_the_dict_form() -> None:
    with pytest.raises(ConfigError) as caught:
        compose(["data.filters.embodiment=sawyer"])
    assert "+data.filters.embodiment=…" in str(caught.value)
    assert "'data.filters={embodiment: …}'" in str(caught.value)
    for form in ("+data.filters.embodiment=sawyer", "data.filters={embodiment: sawyer}"):
        assert compose([form]).data.filters == {"embodiment": "sawyer"}


@pytest.mark.parametrize(
    ("recipe", "name", "value", "message"),
    [
        (
            "samples",
            "norm.numbers.skip",
            "[is_open]",
            "a list can't .*, which holds options by name",
        ),
        ("samples", "data.transforms", "{sawyer: []}", "options by name can't .* holds a list"),
        ("cotraining", "data.transforms", "[]", "a list can't .*, which holds options by name"),
    ],
)
def test_another_kind_of_value_replaces_null(
    recipe: str, name: str, value: str, message: str
) -> None:
    recipe = f"recipe={recipe}"
    for override in (f"{name}={value}", f"+{name}={value}"):
        with pytest.raises(ConfigError, match=message) as caught:
            compose([recipe, override])
        assert str(caught.value).endswith(f"set it to null first: {name}=null '{name}=…'")
    given = OmegaConf.select(compose([recipe, f"{name}=null", f"{name}={value}"]), name)
    assert given == OmegaConf.create(value)


def test_an_option_whose_name_holds_dots_is_added_in_dict_form() -> None:
    with pytest.raises(
        ConfigError, match=r"'norm\.numbers\.skip' has no option 'a\.pose'"
    ) as caught:
        compose(["recipe=samples", "norm.numbers.skip={a.pose: [1]}"])
    assert str(caught.value).endswith("write '+norm.numbers.skip={a.pose: …}'")
    config = compose(["recipe=samples", "+norm.numbers.skip={a.pose: [1]}"])
    assert list(config.norm.numbers.skip) == ["obs_ee_pose", "a.pose"]


def test_a_place_that_a_list_does_not_have() -> None:
    with pytest.raises(
        ConfigError, match=r"no data\.transforms\[3\]; the list has 1, counted from 0"
    ):
        compose(["recipe=samples", "data.transforms.3.keys=[a]"])


@pytest.mark.parametrize(
    "group", sorted({group for group, _ in CHOICES} - {"sampler", "norm", "augment"})
)
def test_a_group_is_not_null(group: str) -> None:
    with pytest.raises(ConfigError, match=rf"{group}=null: .* ~{group} takes it out"):
        compose([f"{group}=null"])
    assert group not in compose([f"~{group}"])


def test_the_sampler_is_neither_null_nor_of_unknown_options() -> None:
    with pytest.raises(ConfigError, match=r"sampler=null: .* choose one, as in sampler=pool"):
        compose(["sampler=null"])
    with pytest.raises(
        ConfigError, match=r"no sampler\.frame_weigths; did you mean 'frame_weights'"
    ):
        compose(["+sampler.frame_weigths=quality"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("+norm.number.mode=zscore", r"no norm\.number; did you mean 'numbers'"),
        ("+augment.image=null", r"no augment\.image; did you mean 'images'"),
    ],
)
def test_groups_of_named_parts_have_no_others(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compose([override])


@pytest.mark.parametrize("group", ["norm", "augment"])
def test_what_a_choice_turns_off_is_not_null(group: str) -> None:
    with pytest.raises(ConfigError, match=rf"{group}=null: .* choose one, as in {group}=none"):
        compose([f"{group}=null"])


def test_mappings_of_norm_and_augment_are_given_in_dict_form() -> None:
    config = compose(
        [
            "norm.numbers.modes={cmd.pose: zscore}",
            "norm.numbers.skip={cmd.pose: [3, 4]}",
            "augment.images.shared={wrist.before: wrist}",
        ]
    )
    normalization = make(config.norm.numbers)
    assert normalization.modes == {"cmd.pose": "zscore"}
    assert normalization.skip == {"cmd.pose": [3, 4]}
    assert make(config.augment.images).shared == {"wrist.before": "wrist"}
    assert make(compose(["norm.numbers.skip=[is_open]"]).norm.numbers).skip == ["is_open"]


def test_an_option_of_the_order_may_be_set_on_the_data() -> None:
    data = make(compose(["data.frame_filter=good", "data.pool_size=7"]).data)
    assert (data.frame_filter, data._settings.order.pool_size) == ("good", 7)


def test_the_samplers_options_reach_the_data_module() -> None:
    options = {"pool_size": 7, "byte_budget": 10**9, "tail": "drop", "at_end": "ends"}
    data = make(compose([f"sampler.{name}={value}" for name, value in options.items()]).data)
    order, schedule = data._settings.order, data._settings.schedule
    assert (order.pool_size, order.byte_budget, order.tail) == (7, 10**9, "drop")
    assert (schedule.combine, schedule.at_end) == ("all", "ends")
    weights = ["sampler=weighted", "sampler.weights={a: 1, b: 2.5}", "sampler.frame_filter=good"]
    data = make(compose([*weights, "sampler.frame_weights=w"]).data)
    assert (data.frame_filter, data._frame_weights) == ("good", "w")
    assert data._settings.schedule.combine == "weighted"
    assert data._settings.schedule.weights == {"a": 1, "b": 2.5}


JITTER = "{_target_: egoloader.augment.ColorJitter, brightnes: 0.2}"
DROP = "{_target_: egoloader.transforms.Drop, kyes: [a]}"


@pytest.mark.parametrize(
    ("overrides", "node", "message"),
    [
        (
            [f"augment.images.steps=[{JITTER}]"],
            "augment.images",
            r"augment\.images\.steps\[0\]: ColorJitter has no option 'brightnes'; did you mean "
            "'brightness'",
        ),
        ([f"data.transforms=[{DROP}]"], "data", r"transforms\[0\]: Drop .*'kyes'; .* 'keys'"),
        (
            [f"data.transforms={{human: [{DROP}]}}"],
            "data",
            r"data\.transforms\.human\[0\]: Drop has no option 'kyes'",
        ),
        (
            ["data.collate_fn={_target_: egoloader.TextCollate, keys: [a], tokeniser: null}"],
            "data",
            r"data\.collate_fn: TextCollate has no option 'tokeniser'; .* 'tokenizer'",
        ),
        (["+keymap.horizn=3"], "keymap", "state_action_keymap has no .*; did you mean 'horizon'"),
        (["+norm.images.mena=3"], "norm.images", "ImageStats has no .*; did you mean 'mean'"),
        (["+trainer.max_epoch=3"], "trainer", "trainer: Trainer has no .*; did .* 'max_epochs'"),
        (
            ["+callbacks.checkpoint.dir_path=3"],
            "callbacks.checkpoint",
            "ModelCheckpoint has no .*; did you mean 'dirpath'",
        ),
        (["~augment.images.steps"], "augment.images", "ImageAugment needs the option 'steps'"),
        (
            ["data.transforms=[{_target_: egoloader.transforms.Drp}]"],
            "data",
            r"egoloader\.transforms has no 'Drp'; did you mean 'Drop'",
        ),
        (
            ["norm.images._target_=egoloader.imagestat.ImageStats"],
            "norm.images",
            "egoloader has no 'imagestat'; did you mean 'imagestats'",
        ),
        (
            ["keymap._target_=egoloader.KeyMap.from_confg"],
            "keymap",
            r"egoloader\.KeyMap has no 'from_confg'; did you mean 'from_config'",
        ),
        (["norm.images._target_=nowhere.Stats"], "norm.images", "No module named 'nowhere'"),
        (
            ["data.transforms={human: [{_target_: egoloader.Drop}]}"],
            "data",
            r"data\.transforms\.human\[0\]: .* did you mean 'egoloader\.transforms\.Drop'",
        ),
        (
            ["augment.images.steps.1._target_=Affin"],
            "augment.images",
            r"augment\.images\.steps\[1\]: there is no 'Affin'; targets are dotted names",
        ),
        (
            ["augment.images.steps=[{_target_: builtins.int, _args_: [x]}]"],
            "augment.images",
            r"^augment\.images\.steps\[0\] can't be built: invalid literal",
        ),
        (
            ["augment.images.steps.1={_target_: egoloader.augment}"],
            "augment.images",
            r"^augment\.images\.steps\[1\] can't be built: Expected a callable target",
        ),
        (["trainer.devices=abc"], "trainer", "trainer can't be built: "),
    ],
)
def test_what_cannot_be_built_is_named(overrides: list[str], node: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(OmegaConf.select(compose(overrides), node))


def test_what_a_built_object_refuses_comes_through_unchanged() -> None:
    with pytest.raises(KeyMapError, match="horizon must be a whole number"):
        make(compose(["keymap.horizon=0"]).keymap)


def test_an_option_that_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"data\.folder is not set"):
        make(compose(["data=folder"]).data)
