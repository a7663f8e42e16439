"""The README: its Python runs as written, its commands compose."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from bench.result import load
from egoloader import EpisodeDataModule, KeyMap, MultiDataset, ZarrDataset, ZarrEpisode
from egoloader.train.config import compose, make
from tests.conftest import REPO

TEXT = (REPO / "README.md").read_text()


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


def commands(verb: str) -> list[list[str]]:
    """Return the arguments of every `egoloader VERB` in the README, without comments."""
    lines = [line for block in blocks("") for line in block.replace("\\\n", " ").splitlines()]
    split = [shlex.split(line, comments=True) for line in lines if line.startswith("egoloader ")]
    return [words[2:] for words in split if words[1] == verb]


def run(block: str, **names: Any) -> dict[str, Any]:
    exec(compile(block, "README.md", "exec"), names)
    return names


def measured(node: Any) -> Iterator[tuple[float, float, float]]:
    """Yield every median, with its 10th and 90th percentile, of a result."""
    if isinstance(node, dict) and {"median", "p10", "p90"} <= node.keys():
        yield node["median"], node["p10"], node["p90"]
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, dict | list):
            yield from measured(child)


def is_written(number: float, text: str) -> bool:
    """Return whether a text is a number, rounded to as many decimals as it has."""
    return f"{number:.{len(text.partition('.')[2])}f}" == text


def test_what_it_costs_is_what_was_measured() -> None:
    results = [load(path) for path in (REPO / "bench" / "results").glob("*.json")]
    known = [spread for result in results for spread in measured(result)]
    written = re.findall(r"([\d.]+) \(([\d.]+)\u2013([\d.]+)\)", TEXT)
    assert len(written) > 15
    for texts in written:
        assert any(all(map(is_written, spread, texts)) for spread in known), texts


def test_the_factors_of_augmentation_are_those_measured() -> None:
    targets = load(REPO / "bench" / "results" / "augment.json")["targets"]
    (sentence,) = re.findall(r"kornia takes .*? shift and scale\.", TEXT, re.DOTALL)
    factors = re.findall(r"\d+\.\d+", sentence)
    assert len(factors) == len(targets) == 3
    for target, factor in zip(targets, factors, strict=True):
        assert is_written(target["figure"]["median"], factor), target["what"]


def test_loading_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    found = run(next(block for block in blocks("python") if "EpisodeLoader" in block))
    assert isinstance(found["train"], MultiDataset)
    frames = len(found["train"]) % 32 or 32
    assert found["batch"]["images.front_1"].shape == (frames, 3, 120, 160)
    assert found["batch"]["cmd_ee_delta"].shape == (frames, 16, 4)


def test_the_order_and_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    made = run(next(block for block in blocks("python") if "EpisodeLoader" in block))
    names = {name: made[name] for name in ("train", "EpisodeLoader")}
    found = run(next(block for block in blocks("python") if "EpisodePoolSampler" in block), **names)
    assert (found["sampler"].epoch, found["sampler"].done) == (1, 0)
    assert len(found["loader"]) == -(-len(found["train"]) // 32)


def test_texts_become_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    found = run(next(block for block in blocks("python") if "TextCollate" in block))
    batch, task = found["batch"], found["batch"]["task"][0]
    assert task == ZarrEpisode("egoloader/samples/pick_place_0.zarr").attrs["task_description"]
    wanted = [*(byte + 3 for byte in task.encode()[:63]), 1]
    assert batch["task_tokens"].tolist() == [wanted] * 32
    assert not batch["task_tokens_is_pad"].any()
    assert batch["action_is_other_span"].shape == batch["action_is_pad"].shape == (32, 16)


def test_the_keymap_fits_the_samples() -> None:
    found = run(next(block for block in blocks("python") if "KeySpec" in block))
    assert isinstance(found["keymap"], KeyMap)
    sample = ZarrDataset(REPO / "egoloader/samples/pick_place_0.zarr", found["keymap"])[20]
    assert sample["image"].shape == (3, 224, 224)
    assert sample["task"] == "lower the gripper and grasp the puck"


def test_transforms_of_a_sample_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    found = run(next(block for block in blocks("python") if "PoseRotation" in block))
    assert found["shapes"]["state"] == found["sample"]["state"].shape == (4, 9)
    assert found["shapes"]["action"] == found["sample"]["action"].shape == (16, 9)
    # The first action is the current state.
    assert found["actions"][0].tolist() == pytest.approx([0, 0, 0, 1, 0, 0, 0], abs=1e-6)


def test_augmenting_the_images_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    found = run(next(block for block in blocks("python") if "ImageAugment" in block))
    for key in ("image", "past"):
        assert found["moved"][key].shape == found["batch"][key].shape
        assert found["moved"][key].dtype == torch.float32


def test_writing_an_episode_and_training_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = SimpleNamespace(
        state=np.zeros(3), action=np.zeros(2), rgb=np.zeros((8, 8, 3), np.uint8)
    )
    run(next(b for b in blocks("python") if "EpisodeWriter" in b), recording=[frame] * 4)
    assert ZarrEpisode("my_episodes/one.zarr").total_frames == 4
    fitted: list[Any] = []
    trainer = SimpleNamespace(fit=lambda policy, datamodule: fitted.append(datamodule))
    module = next(block for block in blocks("python") if "EpisodeDataModule" in block)
    keymap = KeyMap.from_config({"state": {"zarr_key": "state", "key_type": "proprio_keys"}})
    run(module, keymap=keymap, trainer=trainer, policy=None)
    assert isinstance(fitted[0], EpisodeDataModule)


def test_every_training_command_composes() -> None:
    found = [words for words in commands("train") if "…" not in words]
    assert len(found) >= 5
    for words in found:
        config = compose([word for word in words if "=" in word or word.startswith("~")])
        keymap = make(config.keymap)
        assert isinstance(keymap, KeyMap) or all(isinstance(k, KeyMap) for k in keymap.values())


def test_every_plan_and_conversion_is_there() -> None:
    assert [words[:2] for words in commands("convert")] == [["lerobot", "my_lerobot_folder"]]
    for words in commands("plan"):
        assert isinstance(make(compose(words[1:]).keymap), KeyMap)


def test_normalising(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPO)
    found = run(next(block for block in blocks("python") if "NormStats.compute" in block))
    command, batch = found["actions"]["cmd_ee_delta"], found["batch"]["cmd_ee_delta"]
    wanted = np.stack([found["data"][index]["cmd_ee_delta"].numpy() for index in (3, 9)])
    np.testing.assert_allclose(command.numpy(), wanted, atol=1e-6)
    assert not np.allclose(batch.numpy(), wanted)
