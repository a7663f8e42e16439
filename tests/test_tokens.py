"""Tokens next to texts: made once a batch, images and numbers left where they are."""

from __future__ import annotations

import io
import json
import pickle
import threading
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from egoloader import (
    ByteTokenizer,
    EpisodeDataModule,
    EpisodeLoader,
    MultiDataset,
    TextCollate,
    collate,
    tokens,
)
from egoloader.errors import SampleError, SettingsError
from egoloader.train.config import compose, make
from tests.entries import camera, entry, keymap
from tests.episodes import (
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
)

ENTRIES = keymap(
    cam=camera(),
    task=entry("annotations", "annotation_keys", text="task"),
    pose=entry("pose", "action_keys", horizon=3, mask=True),
    note=entry("annotations", "annotation_keys"),
)
TASKS = {"a.zarr": "Fold the towel.", "b.zarr": "", "c.zarr": "Gieß Öl: 倒油"}
TOTAL = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for name, task in TASKS.items():
        group = foreign_group(root / name, TOTAL, task_description=task)
        foreign_numbers(group, "pose", ramp(TOTAL, 4))
        foreign_bytes(group, "images.front_1", jpegs(pictures(TOTAL)))
        foreign_annotations(group, [("pick", 0, 5), ("place", 4, 9)])
    return root


@pytest.fixture(scope="module")
def md(folder: Path) -> MultiDataset:
    return MultiDataset.from_folder(folder, ENTRIES)


class Words:
    """A tokenizer of whole words, which remembers what it was asked; words are numbered by size."""

    def __init__(self, form: str = "lists") -> None:
        self.form = form
        self.asked: list[list[str]] = []

    def __call__(self, texts: list[str]) -> Any:
        self.asked.append(texts)
        ids = [[len(word) for word in text.split()] for text in texts]
        if self.form == "lists":
            return ids
        if self.form == "ragged":
            return {"input_ids": ids}
        longest = max(map(len, ids))
        masks = [[0] * (longest - len(one)) + [1] * len(one) for one in ids]  # padded on the left
        padded = [[99] * (longest - len(one)) + one for one in ids]
        made = {"input_ids": padded, "attention_mask": masks}
        kinds: dict[str, Any] = {"tensors": torch.tensor, "arrays": np.array, "padded": list}
        return {name: kinds[self.form](value) for name, value in made.items()}


def slow(
    texts: list[str], length: int | None, pad: int
) -> tuple[list[list[int]], list[list[bool]]]:
    rows = [[len(word) for word in text.split()] for text in texts]
    size = length or max([1, *map(len, rows)])
    ids = [[*row, *[pad] * size][:size] for row in rows]
    return ids, [[place >= len(row) for place in range(size)] for row in rows]


@pytest.mark.parametrize("form", ["lists", "ragged", "tensors", "arrays", "padded"])
@settings(deadline=None, max_examples=15)
@given(
    batches=st.lists(st.lists(st.integers(0, 3 * TOTAL - 1), min_size=1, max_size=6), max_size=4),
    length=st.sampled_from([None, 1, 2, 7]),
    pad=st.sampled_from([0, 5]),
)
def test_tokens_stand_next_to_their_texts(
    md: MultiDataset, form: str, batches: list[list[int]], length: int | None, pad: int
) -> None:
    words = Words(form)
    collate_fn = TextCollate(tokenizer=words, keys=["note", "task"], max_length=length, pad_id=pad)
    met: set[str] = set()
    for indices in batches:
        before, wanted = len(words.asked), collate(md.__getitems__(indices))
        batch = collate_fn(md.__getitems__(indices))
        expected: list[str] = []
        for key in wanted:
            its = [f"{key}_tokens", f"{key}_tokens_is_pad"] if key in ("note", "task") else []
            expected += [key, *its]
        assert list(batch) == expected
        for key in ("note", "task"):
            ids, is_pad = slow(wanted[key], length, pad)
            assert batch[f"{key}_tokens"].tolist() == ids
            assert batch[f"{key}_tokens_is_pad"].tolist() == is_pad
            assert batch[f"{key}_tokens"].dtype == torch.int64
            assert batch[f"{key}_tokens_is_pad"].dtype == torch.bool
        new = list(dict.fromkeys([*wanted["note"], *wanted["task"]]))
        new = [text for text in new if text not in met]
        assert words.asked[before:] == ([new] if new else [])  # once a batch, each text once
        met |= set(new)


def test_all_else_stays_where_it_is(md: MultiDataset) -> None:
    batch = md.__getitems__([3, 20, 5])
    given_ = collate(batch)
    made = TextCollate(tokenizer=Words(), keys=["task"])(batch)
    for key, value in given_.items():
        if torch.is_tensor(value):
            assert made[key].data_ptr() == value.data_ptr(), key
            assert made[key].stride() == value.stride()


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_MAX_TEXTS", 3)
    monkeypatch.setattr(tokens, "_MAX_CHARACTERS", 5)
    words = Words()
    collate_fn = TextCollate(tokenizer=words, keys=["t"])

    def ask(*texts: str) -> None:
        batch = collate_fn([{"t": text} for text in texts])
        assert batch["t_tokens"].tolist() == slow(list(texts), None, 0)[0]

    ask("a", "bb", "a", "c c c c")
    ask("a", "c c c c", "d", "e")
    ask("bb", "a")
    assert words.asked == [["a", "bb", "c c c c"], ["c c c c", "d", "e"], ["a"]]
    assert len(collate_fn._known._ids) == 3


# Where batches are made.


def byte_tokens(text: str, length: int) -> list[int]:
    ids = [*(byte + 3 for byte in text.encode()[: length - 1]), 1]
    return [*ids, *[0] * (length - len(ids))]


COLLATE = TextCollate(tokenizer=ByteTokenizer(max_length=12), keys=["task"], max_length=12)


def test_loaders_put_tokens_into_their_batches(md: MultiDataset, folder: Path) -> None:
    order = [[3, 20, 35], [7], [1, 1, 30, 12]]
    wanted = [[byte_tokens(md[index]["task"], 12) for index in indices] for indices in order]
    workers: Any = {"num_workers": 2, "persistent_workers": True}
    for loader in (
        EpisodeLoader(md, batch_sampler=order, num_threads=2, collate_fn=COLLATE),
        DataLoader(md, batch_sampler=order, collate_fn=pickle.loads(pickle.dumps(COLLATE))),
        DataLoader(md, batch_sampler=order, collate_fn=COLLATE, **workers),
        DataLoader(
            md, batch_sampler=order, collate_fn=COLLATE, multiprocessing_context="spawn", **workers
        ),
    ):
        for _ in range(2):
            assert [batch["task_tokens"].tolist() for batch in loader] == wanted


def test_a_data_module_puts_tokens_into_its_batches(folder: Path) -> None:
    data = EpisodeDataModule(
        folder, ENTRIES, batch_size=4, valid_ratio=0.34, collate_fn=COLLATE, num_threads=2
    )
    data.setup("fit")
    for loader in (data.train_dataloader(), data.val_dataloader()):
        for step in loader:
            batch = step["human"]
            texts = [byte_tokens(text, 12) for text in batch["task"]]
            assert batch["task_tokens"].tolist() == texts


def test_a_recipe_names_the_tokenizer() -> None:
    config = compose(
        [
            "data.collate_fn={_target_: egoloader.TextCollate, keys: [task],"
            " tokenizer: {_target_: egoloader.ByteTokenizer, max_length: 64}}"
        ]
    )
    built = make(config.data)._collate
    assert built == TextCollate(tokenizer=ByteTokenizer(64), keys=["task"])
    assert make(compose([]).data)._collate is collate


def test_threads_take_turns_at_the_tokenizer(md: MultiDataset) -> None:
    busy, most = [0], [0]

    def one_at_a_time(texts: list[str]) -> list[list[int]]:
        busy[0] += 1
        most[0] = max(most[0], busy[0])
        threading.Event().wait(0.01)
        busy[0] -= 1
        return [[len(text)] for text in texts]

    collate_fn = TextCollate(tokenizer=one_at_a_time, keys=["task", "note"])
    order = [[index] for index in range(0, 36, 3)]
    for batch in EpisodeLoader(md, batch_sampler=order, num_threads=4, collate_fn=collate_fn):
        assert batch["task_tokens"].tolist() == [[len(text)] for text in batch["task"]]
    assert most == [1]


# What goes wrong.


def picky(texts: list[str]) -> list[list[int]]:
    if any("倒" in text for text in texts):
        raise RuntimeError("no such word")
    return [[1] for _ in texts]


def test_a_failing_tokenizer_names_the_frame(md: MultiDataset) -> None:
    collate_fn = TextCollate(tokenizer=picky, keys=["note", "task"])
    wanted = r"episode 'c\.zarr', frame 7: the tokenizer failed for 'Gieß .*\('task'\).*no such"
    with pytest.raises(SampleError, match=wanted):
        collate_fn(md.__getitems__([3, 24 + 7, 24 + 2]))
    loader = EpisodeLoader(md, batch_sampler=[[1], [31], [2]], collate_fn=collate_fn)
    batches = iter(loader)
    next(batches)
    with pytest.raises(SampleError, match=wanted):
        next(batches)
    assert next(batches)["task_tokens"].tolist() == [[1]]
    assert collate_fn(md.__getitems__([3]))["task_tokens"].tolist() == [[1]]


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda texts: [[1]] * (len(texts) + 1), "must return ids for each of 1 texts"),
        (lambda texts: None, "must return ids for each of 1 texts"),
        (lambda texts: "x" * len(texts), "must return ids"),
        (lambda texts: {"ids": [[1]]}, "returned no 'input_ids', but"),
        (lambda texts: [[0.5]] * len(texts), "must be whole numbers, got"),
        (lambda texts: [[-1]] * len(texts), "must be from 0 on, got"),
        (lambda texts: [1] * len(texts), "must be whole numbers, got"),
        (lambda texts: [[2**70]] * len(texts), "must be whole numbers, got"),
        (
            lambda texts: {"input_ids": [[1, 2]], "attention_mask": [[1]]},
            "2 ids, and 1 in attention_mask",
        ),
    ],
)
def test_what_are_no_tokens_is_refused(made: Any, message: str) -> None:
    sample = {"t": "x", "episode": "e", "frame_index": torch.tensor(4)}
    with pytest.raises(SampleError, match=rf"episode 'e', frame 4: .*{message}"):
        TextCollate(tokenizer=made, keys=["t"])([sample])


def test_texts_that_are_not_there_are_refused(md: MultiDataset) -> None:
    with pytest.raises(SettingsError, match="no key 'tsk' to tokenize; did you mean 'task'"):
        TextCollate(tokenizer=Words(), keys=["tsk"])(md.__getitems__([1]))
    with pytest.raises(SettingsError, match="key 'pose' must hold texts, and holds a Tensor"):
        TextCollate(tokenizer=Words(), keys=["pose"])(md.__getitems__([1]))
    with pytest.raises(SettingsError, match="key 'row' must hold texts, and holds a dict"):
        TextCollate(tokenizer=Words(), keys=["row"])([{"row": {}}])
    with pytest.raises(SettingsError, match="a key 't_tokens' already"):
        TextCollate(tokenizer=Words(), keys=["t"])([{"t": "x", "t_tokens": "y"}])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenizer": "gpt2"}, "tokenizer must take a list of texts, got 'gpt2'"),
        ({"keys": "task"}, "keys must list sample keys"),
        ({"keys": []}, "keys must list sample keys"),
        ({"max_length": 0}, "max_length"),
        ({"pad_id": -1}, "pad_id"),
        ({"options": [1]}, "options must map names"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TextCollate(**{"tokenizer": Words(), "keys": ["t"], **options})


def test_a_collate_fn_must_be_callable(md: MultiDataset, folder: Path) -> None:
    with pytest.raises(SettingsError, match="collate_fn must take a list of samples, got 3"):
        EpisodeLoader(md, collate_fn=3)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="collate_fn must take"):
        EpisodeDataModule(folder, ENTRIES, collate_fn="collate")  # type: ignore[arg-type]


def test_options_are_passed_on() -> None:
    def tokenizer(texts: list[str], *, upto: int) -> list[list[int]]:
        return [list(range(upto)) for _ in texts]

    made = TextCollate(tokenizer=tokenizer, keys=["t"], options={"upto": 3})([{"t": "x"}])
    assert made["t_tokens"].tolist() == [[0, 1, 2]]


# Plain values.


KEPT = [
    COLLATE,
    TextCollate(tokenizer=ByteTokenizer(), keys=["a", "b"]),
    TextCollate(tokenizer=ByteTokenizer(64), keys=("a",), pad_id=5),
]
PLAIN = KEPT[0].to_plain()


@pytest.mark.parametrize("kept", KEPT)
def test_there_and_back_through_files(kept: TextCollate) -> None:
    plain = kept.to_plain()
    assert TextCollate.from_plain(plain) == kept
    for again in (json.loads(json.dumps(plain)), yaml.safe_load(yaml.safe_dump(plain))):
        assert again == plain
        assert TextCollate.from_plain(again) == kept
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    assert TextCollate.from_plain(torch.load(file, weights_only=True)) == kept
    # As a recipe lists it.
    assert hydra.utils.instantiate(plain, _convert_="all") == kept


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (
            None,
            r"^egoloader\.TextCollate in plain values is {_target_: egoloader\.TextCollate, tok",
        ),
        ([PLAIN], r"^egoloader\.TextCollate in plain values is"),
        (PLAIN | {"_target_": "os.system"}, r"^egoloader\.TextCollate in plain values is"),
        (PLAIN | {"_target_": ["egoloader.TextCollate"]}, "TextCollate in plain values is"),
        (PLAIN | {"options": {"padding": True}}, "TextCollate in plain values is"),
        ({key: PLAIN[key] for key in PLAIN if key != "pad_id"}, "TextCollate in plain values is"),
        (PLAIN | {"tokenizer": "tests.test_tokens.Words"}, r"^egoloader\.ByteTokenizer in plain"),
        (
            PLAIN | {"tokenizer": {"_target_": "tests.test_tokens.Words", "max_length": 3}},
            r"^egoloader\.ByteTokenizer in plain values is .*, max_length: …}, got",
        ),
        (PLAIN | {"tokenizer": {"_target_": "egoloader.ByteTokenizer"}}, "ByteTokenizer in plain"),
        (PLAIN | {"keys": "task"}, "keys must list sample keys"),
        (PLAIN | {"max_length": 0}, "max_length must be a whole number from 1 on"),
    ],
)
def test_plain_values_that_are_none_are_refused(plain: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        TextCollate.from_plain(plain)


def test_some_keys_of_a_batch_get_tokens() -> None:
    collate_fn = TextCollate(tokenizer=Words(), keys=["a", "b"])
    batch = {"b": ["x y", "z"], "n": [1, 2], "a": ["o", ""]}
    made = collate_fn.add_tokens(batch, ["b"])
    assert list(made) == ["b", "b_tokens", "b_tokens_is_pad", "n", "a"]
    assert made["b_tokens"].tolist() == [[1, 1], [1, 0]]
    assert list(batch) == ["b", "n", "a"]
    assert collate_fn.add_tokens(batch, []) == batch


# Bytes.


@settings(deadline=None)
@given(texts=st.lists(st.text(st.characters(codec="utf-8"))), length=st.integers(1, 20))
def test_bytes_are_their_own_vocabulary(texts: list[str], length: int) -> None:
    tokenizer = ByteTokenizer(max_length=length)
    made = tokenizer(texts)
    for text, ids in zip(texts, made, strict=True):
        assert len(ids) <= length
        assert ids[-1] == 1
        assert all(3 <= one < tokenizer.vocab_size for one in ids[:-1])
        whole = text.encode()
        assert bytes(one - 3 for one in ids[:-1]) == whole[: length - 1]
    assert tokenizer.pad_id == 0
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_half_a_surrogate_pair_is_a_text_like_any_other() -> None:
    assert ByteTokenizer(9)(["a\ud800"]) == [[100, 0xED + 3, 0xA0 + 3, 0x80 + 3, 1]]
    with pytest.raises(SettingsError, match="max_length"):
        ByteTokenizer(0)
