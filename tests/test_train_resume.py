"""What a run may be gone on with, and what that is refused for: never other numbers unnoticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from egoloader.errors import ConfigError
from egoloader.train.config import compose
from egoloader.train.recipe import fit
from tests.test_train import ONE_STEP, quietly

RECIPE = [*ONE_STEP, "recipe=samples", "augment=none"]
ROTATION = "{_target_: egoloader.transforms.PoseRotation, keys: [obs_ee_pose], target: [xyz, %s]}"
FLIP = "{_target_: egoloader.transforms.InvertGripper, keys: [obs_gripper], low: 0, high: 1}"


@pytest.fixture(scope="module")
def resume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run of one step."""
    output = tmp_path_factory.mktemp("one") / "run"
    fit(compose([f"output_dir={output}", *RECIPE]))
    return output / "checkpoints" / "last.ckpt"


@quietly
def test_a_run_goes_on_with_another_augmentation(resume: Path, tmp_path: Path) -> None:
    overrides = ["augment=default", "trainer.max_epochs=2"]
    fit(compose([f"output_dir={tmp_path / 'out'}", f"resume={resume}", *RECIPE, *overrides]))
    before, after = (
        torch.load(path, weights_only=True)
        for path in (resume, tmp_path / "out" / "checkpoints" / "last.ckpt")
    )
    assert (before["global_step"], after["global_step"]) == (1, 2)
    assert after["hyper_parameters"] == before["hyper_parameters"]
    weights = (one["state_dict"]["network.rate.0.weight"] for one in (before, after))
    assert not torch.equal(*weights)


@quietly
@pytest.mark.parametrize(
    ("override", "differing"),
    [
        (
            "norm.numbers.mode=zscore",
            "policy than this run's: normalizer settings mode was quantile and is zscore. Set data",
        ),
        (
            "norm.numbers.skip={obs_ee_pose: [3, 4, 5]}",
            "normalizer settings skip obs_ee_pose was [3, 4, 5, 6, 7, 8] and is [3, 4, 5]",
        ),
        ("norm.images.scale=0.5", "images scale was 1.0 and is 0.5"),
        (
            f"data.transforms=[{ROTATION % 'matrix'}]",
            "policy than this run's: sawyer states obs_ee_pose was 36 and is 48; transforms sawyer",
        ),
        # Samples of the same shapes: what has changed their statistics comes ahead of these.
        (
            f"data.transforms=[{ROTATION % 'rotation_6d'}, {FLIP}]",
            "policy than this run's: transforms sawyer was [{'_target_': 'egoloader.transforms.",
        ),
        (
            "data.collate_fn.tokenizer.max_length=32",
            "policy than this run's: collate_fn tokenizer max_length was 64 and is 32. Set data",
        ),
    ],
)
def test_a_run_does_not_go_on_with_other_numbers(
    resume: Path, tmp_path: Path, override: str, differing: str
) -> None:
    overrides = [f"output_dir={tmp_path / 'out'}", f"resume={resume}", *RECIPE, override]
    with pytest.raises(ConfigError, match="is of another policy than this run's") as caught:
        fit(compose(overrides))
    assert differing in str(caught.value)
    assert not (tmp_path / "out").exists()
