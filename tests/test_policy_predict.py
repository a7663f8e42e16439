"""A policy predicts from what a robot has: texts as they are spoken, actions of the recording."""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import (
    ByteTokenizer,
    EpisodeWriter,
    KeyMap,
    MultiDataset,
    Normalizer,
    NormStats,
    TextCollate,
    collate,
)
from egoloader.errors import SettingsError
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.spec import RecordedAction, SampleSpec, describe, vocabularies
from egoloader.train.texts import kept_collate
from egoloader.transforms import Rename
from tests.episodes import ramp

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "layers": 1}
TEXTS = {"task": 259, "note": 259}
SPEC = SampleSpec({}, {"pose": 3}, {"arm": (4, 2)}, TEXTS, {"arm": RecordedAction((4, 2))})
COLLATE = TextCollate(tokenizer=ByteTokenizer(max_length=9), keys=["task", "note"])
SAID = {"task": ["pick the cup", "", "Gieß Öl"], "note": ["left", "now", "left"]}


def observed(**more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    numbers = {"fps": torch.full((3,), 30.0), "pose": torch.randn(3, 3, generator=generator)}
    return {**numbers, "spare": ["a", "b", "c"], **more}


def policy_of(specs: Mapping[str, SampleSpec], **options: Any) -> ActionChunkPolicy:
    torch.manual_seed(0)
    return ActionChunkPolicy(specs, **options, **SMALL).eval()


def tokens(collate_fn: TextCollate = COLLATE) -> dict[str, torch.Tensor]:
    """Return the tokens of what is said, as training samples have them."""
    said = [dict(zip(SAID, texts, strict=True)) for texts in zip(*SAID.values(), strict=True)]
    return {key: value for key, value in collate_fn(said).items() if "tokens" in key}


def reloaded(policy: ActionChunkPolicy) -> ActionChunkPolicy:
    """Return a policy of what a checkpoint keeps, read without executing any of it."""
    file = io.BytesIO()
    torch.save({"options": dict(policy.hparams), "weights": policy.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    again = ActionChunkPolicy(**kept["options"])
    again.load_state_dict(kept["weights"])
    return again.eval()


# Texts.


def test_texts_are_as_good_as_their_tokens() -> None:
    policy = policy_of({"arm": SPEC}, collate_fn=COLLATE)
    wanted = policy.predict("arm", observed(**tokens()))["arm"]
    given = {
        "texts": SAID,
        "both": SAID | tokens(),
        "one of each": {"note": SAID["note"]}
        | {key: value for key, value in tokens().items() if key.startswith("task")},
    }
    for one in (policy, reloaded(policy), reloaded(reloaded(policy))):
        for name, said in given.items():
            assert torch.equal(one.predict("arm", observed(**said))["arm"], wanted), name
    for key in SAID:  # each of them matters
        other = observed(**SAID | {key: ["put it back"] * 3})
        assert not torch.allclose(policy.predict("arm", other)["arm"], wanted)


def test_what_was_observed_stays_as_it_was() -> None:
    policy, given = policy_of({"arm": SPEC}, collate_fn=COLLATE), observed(**SAID)
    before = copy.deepcopy(given)
    policy.predict("arm", given)
    assert given.keys() == before.keys()
    assert all(given[key] == before[key] for key in ("spare", *SAID))


def test_tokens_that_are_there_are_taken() -> None:
    policy = policy_of({"arm": SPEC}, collate_fn=COLLATE)
    wanted = policy.predict("arm", observed(**tokens()))["arm"]
    said = {"task": ["put it back"] * 3, "note": ["right"] * 3}
    assert torch.equal(policy.predict("arm", observed(**said, **tokens()))["arm"], wanted)
    half = {key: value for key, value in tokens().items() if key != "task_tokens_is_pad"}
    with pytest.raises(SettingsError, match="takes 'task_tokens_is_pad', and the batch lacks it"):
        policy.predict("arm", observed(**SAID, **half))


def test_tokens_go_where_the_policy_is() -> None:
    policy = policy_of({"arm": SPEC}, collate_fn=COLLATE).to("meta")
    given = observed(**SAID)
    moved = {key: given[key].to("meta") for key in ("fps", "pose")}
    made = policy.predict("arm", given | moved)["arm"]
    assert (made.shape, made.device.type) == ((3, 4, 2), "meta")


def test_texts_go_through_the_transforms() -> None:
    spec = SampleSpec({}, {"pose": 3}, {"arm": (4, 2)}, {"order": 259}, SPEC.recorded)
    collate_fn = TextCollate(tokenizer=ByteTokenizer(9), keys=["order"])
    transforms = {"arm": [Rename(keys=["task"], to=["order"])]}
    policy = policy_of({"arm": spec}, collate_fn=collate_fn, transforms=transforms)
    plain = policy_of({"arm": spec}, collate_fn=collate_fn)
    made = policy.predict("arm", observed(task=SAID["task"]))["arm"]
    assert torch.equal(made, plain.predict("arm", observed(order=SAID["task"]))["arm"])


def test_an_embodiment_without_texts_needs_none() -> None:
    blind = SampleSpec({}, {"pose": 3}, {"arm": (4, 2)}, {}, SPEC.recorded)
    policy = policy_of({"arm": SPEC, "leg": blind}, collate_fn=COLLATE)
    assert policy.predict("leg", observed())["arm"].shape == (3, 4, 2)
    assert policy.predict("leg", observed(task=7))["arm"].shape == (3, 4, 2)


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"task": "pick the cup"}, "'task' must be a list of texts, one for each of 3 samples, .*"),
        ({"task": ("a", "b", "c")}, "'task' must be a list of texts, .* got a tuple"),
        ({"task": torch.zeros(3)}, "'task' must be a list of texts, .* got a Tensor"),
        ({"task": None}, "'task' must be a list of texts, .* got a NoneType"),
        ({"task": ["a"]}, "'task' must be a list of texts, one for each of 3 samples, got 1$"),
        ({"note": ["a"] * 4}, "'note' must be a list of texts, .* got 4$"),
        ({"task": []}, "'task' must be a list of texts, .* got 0$"),
        ({"task": ["a", b"b", "c"]}, "'task' must be a list of texts, .* place 1 holds a bytes"),
        ({"task": ["a", "b", None]}, "its place 2 holds a NoneType"),
    ],
)
def test_what_are_no_texts_is_refused(said: dict[str, Any], message: str) -> None:
    policy = policy_of({"arm": SPEC}, collate_fn=COLLATE)
    with pytest.raises(SettingsError, match=message):
        policy.predict("arm", observed(**SAID | said))


def test_texts_that_are_not_there_are_named() -> None:
    policy = policy_of({"arm": SPEC}, collate_fn=COLLATE)
    with pytest.raises(
        SettingsError, match=r"the text 'task', and the batch lacks it, .*'task_tokens'; did you m"
    ):
        policy.predict("arm", observed(tsk=SAID["task"], note=SAID["note"]))


class Own:
    """A tokenizer of somebody's own."""

    vocab_size = 300

    def __call__(self, texts: list[str]) -> list[list[int]]:
        return [[len(text)] for text in texts]


class OwnCollate(TextCollate):
    """A way of somebody's own to collate."""


class OwnBytes(ByteTokenizer):
    """A tokenizer of somebody's own, from one that is known."""


OWN = {
    "tokenizer": TextCollate(tokenizer=Own(), keys=["task", "note"]),
    "kind of tokenizer": TextCollate(tokenizer=OwnBytes(9), keys=["task", "note"]),
    "collate": OwnCollate(tokenizer=ByteTokenizer(9), keys=["task", "note"]),
    "options": TextCollate(
        tokenizer=ByteTokenizer(9), keys=["task", "note"], options={"padding": True}
    ),
}


@pytest.mark.parametrize("kind", OWN)
def test_what_a_checkpoint_cannot_keep_is_left_out(kind: str) -> None:
    with pytest.raises(SettingsError, match="can't be made again from a checkpoint"):
        OWN[kind].to_plain()
    assert kept_collate(OWN[kind]) is None


def test_a_tokenizer_that_is_not_known_makes_predictions_want_tokens() -> None:
    own = OWN["tokenizer"]
    texts = vocabularies(own)
    spec = SampleSpec({}, {"pose": 3}, {"arm": (4, 2)}, texts, SPEC.recorded)
    policy = policy_of({"arm": spec}, collate_fn=kept_collate(own))
    assert policy.hparams["collate_fn"] is None
    for said in ({}, SAID):
        with pytest.raises(
            SettingsError, match="takes 'task_tokens' and 'task_tokens_is_pad', and the batch lacks"
        ):
            policy.predict("arm", observed(**said))
    made = policy.predict("arm", observed(**tokens(own)))["arm"]
    assert made.shape == (3, 4, 2)
    assert torch.equal(policy.predict("arm", observed(**SAID, **tokens(own)))["arm"], made)


def test_samples_that_are_not_text_collated_have_none_to_keep() -> None:
    assert kept_collate(collate) is None
    assert kept_collate(COLLATE) is COLLATE


@pytest.mark.parametrize(
    ("collate_fn", "message"),
    [
        (collate, "collate_fn must be a TextCollate, or None, got <function collate"),
        (TextCollate(tokenizer=ByteTokenizer(), keys=["tsk", "note"]), "makes no tokens of 'task'"),
        (
            TextCollate(tokenizer=ByteTokenizer(), keys=["task", "note"], pad_id=300),
            "makes tokens of 'note' below 301, and those of samples are below 259",
        ),
        (OWN["collate"], "can't be made again from a checkpoint"),
        ({"_target_": "os.system"}, "egoloader.TextCollate in plain values is"),
    ],
)
def test_a_collate_that_does_not_fit_is_refused(collate_fn: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        policy_of({"arm": SPEC}, collate_fn=collate_fn)


# Actions.


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> MultiDataset:
    """Actions of several dtypes; `place` lies so far out that float32 tells few differences."""
    folder = tmp_path_factory.mktemp("far")
    EpisodeWriter.write(
        folder / "a.zarr",
        numeric={
            "pose": ramp(20, 3),
            "place": 1e3 + 1e-2 * np.random.default_rng(0).normal(size=(20, 2)),
            "count": np.arange(20, dtype=np.int32)[:, None],
            "is_open": (np.arange(20) % 2 == 0)[:, None],
        },
        fps=10,
        embodiment="arm",
    )
    entry = {"key_type": "action_keys", "horizon": 4, "mask": True}
    dtypes = {"place": "float64", "count": "int16", "is_open": "bool"}
    keymap: dict[str, Any] = {"pose": {"zarr_key": "pose", "key_type": "proprio_keys"}}
    keymap |= {key: {**entry, "zarr_key": key, "dtype": one} for key, one in dtypes.items()}
    keymap["plain"] = {**entry, "zarr_key": "place"}
    return MultiDataset.from_folder(folder, KeyMap.from_config(keymap))


def test_predictions_have_the_dtypes_of_samples(far: MultiDataset) -> None:
    specs = describe({"arm": far})
    assert specs["arm"].recorded == {
        "place": RecordedAction((4, 2), "float64"),
        "count": RecordedAction((4, 1), "int16"),
        "is_open": RecordedAction((4, 1), "bool"),
        "plain": RecordedAction((4, 2), "float32"),
    }
    normalizer = Normalizer(NormStats.compute(far))
    policy = policy_of(specs, normalizer=normalizer)
    batch = collate([far[3], far[18]])
    for one in (policy, reloaded(policy)):
        made = one.predict("arm", batch)
        assert {key: value.dtype for key, value in made.items()} == {
            key: batch[key].dtype for key in specs["arm"].recorded
        }
        raw = policy.network("arm", policy.preparation("arm", batch))
        stats = normalizer.stats["arm"]
        for key, off in (("place", 1e-8), ("plain", 1e-4)):
            wanted = raw[key].detach().double().numpy() * stats[key].std + stats[key].mean
            np.testing.assert_allclose(made[key].double().numpy(), wanted, rtol=0, atol=off)
        # Whole numbers and flags are learned as they are.
        assert torch.equal(made["count"], raw["count"].round().to(torch.int16))
        assert torch.equal(made["is_open"], raw["is_open"] > 0.5)


def test_a_spec_comes_back_from_its_plain_form(far: MultiDataset) -> None:
    plain = policy_of(describe({"arm": far})).hparams["specs"]["arm"]
    assert SampleSpec.from_plain(plain) == describe({"arm": far})["arm"]
    place = {"shape": (4, 2), "dtype": "float64", "is_absent": False}
    assert plain["recorded"]["place"] == place


@pytest.mark.parametrize("recorded", [(4, 2), {"shape": (4, 2)}, {"shape": (4, 2), "d": "int8"}, 3])
def test_a_spec_of_another_version_is_refused(recorded: Any) -> None:
    plain = policy_of({"arm": SPEC}).hparams["specs"]["arm"]
    for wrong in (
        {**plain, "recorded": {"arm": recorded}},
        {key: value for key, value in plain.items() if key != "recorded"},
        {**plain, "more": {}},
        3,
    ):
        with pytest.raises(SettingsError, match=r"is made of .*; a checkpoint of another version"):
            ActionChunkPolicy({"arm": wrong}, **SMALL)


@pytest.mark.parametrize("dtype", ["flaot32", "float32; import os", "load", ["int8"], None])
def test_only_dtypes_of_the_keymap_are_known(dtype: Any) -> None:
    plain = policy_of({"arm": SPEC}).hparams["specs"]["arm"]
    wrong = {**plain, "recorded": {"arm": {"shape": (4, 2), "dtype": dtype, "is_absent": False}}}
    with pytest.raises(SettingsError, match=r"unknown dtype .* of an action; "):
        ActionChunkPolicy({"arm": wrong}, **SMALL)
