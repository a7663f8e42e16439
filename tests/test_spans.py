"""Texts, tasks and masks of annotation spans, against plain loops over their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrDataset, collate
from egoloader.errors import EpisodeFormatError, KeyMapError, MissingKeyError
from egoloader.spans import holding_spans
from egoloader.transforms import Stride
from tests.entries import CAMERA, entry, keymap
from tests.episodes import (
    edit_attrs,
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
)
from tests.oracle import slow_rows

#: Episode, frames, Hz, spans, attributes. Spans overlap, nest, end alike, or leave the episode.
EPISODES: dict[str, tuple[int, float, list[tuple[str, int, int]] | None, dict[str, Any]]] = {
    "a.zarr": (
        40,
        10.0,
        [("reach", 3, 12), ("grasp", 9, 20), ("all", 0, 20), ("late", 30, 99), ("", 22, 24)],
        {"task_description": "Fold it.", "task_name": "fold"},
    ),
    "b.zarr": (25, 30.0, [], {"task_name": "pour", "task_description": ""}),
    "c.zarr": (17, 10.0, None, {}),
    "d.zarr": (31, 10.0, [("x", -(10**30), 7), ("y", 5, 10**30), ("z", 9, 9), ("w", 12, 31)], {}),
}
TOTAL = sum(total for total, *_ in EPISODES.values())

WINDOWS: dict[str, dict[str, Any]] = {
    "next": {"key_type": "action_keys", "horizon": 7, "mask": True},
    "past": {"history": 4},
    "strided": {"history": 3, "stride_s": 0.4},
    "lag": {"lag_s": 0.5},
    "around": {"offsets": [-6, 0, 3, 50]},
    "around_s": {"offsets_s": [-0.4, 0.9], "key_type": "metadata_keys"},
    "one": {"history": 1},
    "absent": {"zarr_key": "arm", "horizon": 2, "optional": True, "shape": [3]},
    "cam": {"zarr_key": CAMERA, "key_type": "camera_keys", "history": 3, "stride_s": 0.3},
}
ENTRIES = KeyMap(
    {
        **{
            key: KeySpec(span_mask=True, **{"zarr_key": "pose", "key_type": "proprio_keys", **spec})
            for key, spec in WINDOWS.items()
        },
        "text": entry("annotations", "annotation_keys", optional=True),
        "task": entry("annotations", "annotation_keys", text="task"),
        "either": entry("annotations", "annotation_keys", text="annotation_or_task", optional=True),
    }
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for name, (total, fps, spans, attrs) in EPISODES.items():
        group = foreign_group(root / name, total, fps=fps, **attrs)
        foreign_numbers(group, "pose", ramp(total + 3, 4))
        foreign_bytes(group, CAMERA, jpegs(pictures(total)))
        if name == "a.zarr":
            foreign_numbers(group, "arm", ramp(total, 3))
        if spans is not None:
            foreign_annotations(group, spans)
    return root


def stored_spans(path: Path) -> list[tuple[str, int, int]]:
    group = zarr.open_group(path, mode="r")
    if "annotations" not in group:
        return []
    rows = [json.loads(bytes(row)) for row in group["annotations"][:]]  # type: ignore[index,union-attr]
    return [(row["text"], row["start_idx"], row["end_idx"]) for row in rows]


def slow_span(spans: list[tuple[str, int, int]], total: int, i: int) -> range:
    """Return the frames of the span that holds `i`; all, where none does."""
    held = [(min(b, total), -max(a, 0)) for _, a, b in spans if a <= i < b]
    if not held:
        return range(total)
    end, start = min(held)
    return range(-start, end)


def slow_masks(path: Path, i: int, cutoff: bool) -> dict[str, Any]:
    total, fps, _, attrs = EPISODES[path.name]
    spans = stored_spans(path)
    within = slow_span(spans, total, i)
    wanted: dict[str, Any] = {}
    for key, spec in ENTRIES.items():
        if not spec.span_mask:
            continue
        rows, _ = slow_rows(spec, fps, total, i, within.stop if cutoff else None)
        is_other = [row not in within for row in rows]
        if key == "absent" and path.name != "a.zarr":
            is_other = [False] * len(rows)
        has_axis = key not in ("lag", "one")
        wanted[f"{key}_is_other_span"] = is_other if has_axis else is_other[0]
    held = [text for text, a, b in spans if a <= i < b]
    task = attrs.get("task_description") or attrs.get("task_name") or ""
    return {
        **wanted,
        "text": "; ".join(held),
        "task": task,
        "either": "; ".join(held) if held else task,
    }


def plain(value: Any) -> Any:
    return value.tolist() if torch.is_tensor(value) else value


@settings(deadline=None, max_examples=60)
@given(
    indices=st.lists(st.integers(0, TOTAL - 1), min_size=1, max_size=12),
    cutoff=st.booleans(),
)
def test_texts_and_masks_are_those_of_plain_loops(
    folder: Path, indices: list[int], cutoff: bool
) -> None:
    md = MultiDataset.from_folder(folder, ENTRIES, annotation_cutoff=cutoff)
    assert list(md[0])[: len(ENTRIES.sample_keys)] == list(ENTRIES.sample_keys)
    places = [md.locate(index) for index in indices]
    wanted = [slow_masks(folder / record.name, i, cutoff) for record, i in places]
    for found in (md.__getitems__(indices), [md[index] for index in indices]):
        for sample, its in zip(found, wanted, strict=True):
            assert {key: plain(sample[key]) for key in its} == its
    batch = collate(md.__getitems__(indices))
    for key in wanted[0]:
        assert plain(batch[key]) == [its[key] for its in wanted], key
        if key.endswith("_is_other_span"):
            assert batch[key].dtype == torch.bool


def test_masked_steps_keep_their_real_rows(folder: Path) -> None:
    ds = ZarrDataset(folder / "a.zarr", ENTRIES)
    sample = ds[10]  # in `reach`, `grasp` and `all`: the first ends at 12, and starts at 3
    assert sample["next"][:, 0].tolist() == [1000.0 * row for row in range(10, 17)]
    assert sample["next_is_other_span"].tolist() == [False] * 2 + [True] * 5
    assert not sample["next_is_pad"].any()
    assert ds[4]["past_is_other_span"].tolist() == [True, True, False, False]
    assert ds[4]["around_is_other_span"].tolist() == [True, False, False, True]
    assert not ds[25]["around_is_other_span"].any()  # no span holds it
    assert not ds[39]["next_is_other_span"].any()  # rows behind the end repeat one of the span
    assert ds[39]["next_is_pad"].tolist() == [False] + [True] * 6
    cut = ZarrDataset(folder / "a.zarr", ENTRIES, annotation_cutoff=True)[10]
    assert cut["next"][:, 0].tolist() == [10000.0, *[11000.0] * 6]
    assert not cut["next_is_other_span"].any()
    assert cut["past_is_other_span"].tolist() == [False] * 4


def test_case_10_a_chunk_that_crosses_into_the_next_execution(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e.zarr", 10)
    foreign_numbers(group, "pose", ramp(10, 2))
    foreign_annotations(group, [("one", 0, 5), ("two", 5, 10)])
    spec = entry("pose", "action_keys", horizon=4, span_mask=True)
    sample = ZarrDataset(tmp_path / "e.zarr", keymap(pose=spec))[3]
    assert sample["pose"][:, 0].tolist() == [3000, 4000, 5000, 6000]
    assert sample["pose_is_other_span"].tolist() == [False, False, True, True]


@settings(deadline=None, max_examples=200)
@given(
    spans=st.lists(st.tuples(st.just("t"), st.integers(-3, 14), st.integers(-3, 14)), max_size=5),
    total=st.integers(1, 10),
)
def test_the_span_that_holds_a_frame(spans: list[tuple[str, int, int]], total: int) -> None:
    starts, ends = holding_spans(spans, np.arange(total), total)
    for i in range(total):
        assert range(int(starts[i]), int(ends[i])) == slow_span(spans, total, i)


def test_masks_go_along_with_transforms(folder: Path) -> None:
    steps = [Stride(keys=["next", "past"], every=2)]
    few = KeyMap({key: ENTRIES[key] for key in ("next", "past")})
    sample = ZarrDataset(folder / "a.zarr", few, transforms=steps)[10]
    assert sample["next_is_other_span"].tolist() == [False, True, True, True]


# What goes wrong.


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"span_mask": True}, "span_mask needs a window"),
        ({"span_mask": 1, "history": 2}, "span_mask must be true or false, got 1"),
        ({"text": "task"}, "text is for annotation_keys, not for proprio_keys"),
        (
            {"text": "tsk", "key_type": "annotation_keys"},
            "unknown text 'tsk'; did you mean 'task'",
        ),
        ({"key_type": "annotation_keys", "span_mask": True}, "span_mask needs a window"),
    ],
)
def test_entries_that_cannot_be_meant_are_refused(fields: Any, message: str) -> None:
    with pytest.raises(KeyMapError, match=message):
        KeySpec(**{"zarr_key": "pose", "key_type": "proprio_keys", **fields})


def test_the_masks_name_is_taken() -> None:
    spec = entry(history=2, span_mask=True)
    with pytest.raises(KeyMapError, match="'a_is_other_span' clashes with the mask of entry 'a'"):
        KeyMap({"a": spec, "a_is_other_span": entry()})
    assert KeyMap({"a": spec}).sample_keys == ("a", "a_is_other_span")


def test_a_task_needs_no_array_and_the_rest_does(folder: Path) -> None:
    path = folder / "c.zarr"
    only = keymap(task=entry("no such array", "annotation_keys", text="task"))
    assert only.zarr_keys == ()
    assert ZarrDataset(path, only)[3]["task"] == ""
    for text in ("annotation", "annotation_or_task"):
        with pytest.raises(MissingKeyError, match="'either' needs an array"):
            ZarrDataset(path, keymap(either=entry("annotations", "annotation_keys", text=text)))


@pytest.mark.parametrize("task", [7, ["fold"], {"a": 1}, "x" * (2**20 + 1)])
def test_a_task_that_is_no_text_is_refused(tmp_path: Path, task: Any) -> None:
    foreign_numbers(foreign_group(tmp_path / "e.zarr", 3), "pose", ramp(3, 2))
    edit_attrs(tmp_path / "e.zarr", task_description=task)
    with pytest.raises(EpisodeFormatError, match=r"'e\.zarr': task_description must be a text"):
        ZarrDataset(tmp_path / "e.zarr", keymap(t=entry("a", "annotation_keys", text="task")))
    assert len(ZarrDataset(tmp_path / "e.zarr", keymap(pose=entry("pose")))) == 3


def test_a_quarantine_of_annotations_reaches_their_masks(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    spans = [{"episode": "a.zarr", "start": 0, "end": 8, "key": "annotations", "reason": "wrong"}]
    bad.write_text(json.dumps(spans))
    few = KeyMap({"next": ENTRIES["next"]})
    left = MultiDataset.from_folder(folder, few, quarantine=bad).frames_by_episode()
    assert dict(left)["a.zarr"] == 32
    task = keymap(task=ENTRIES["task"], now=entry("pose"))
    left = MultiDataset.from_folder(folder, task, quarantine=bad).frames_by_episode()
    assert dict(left)["a.zarr"] == 40
