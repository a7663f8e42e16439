"""What the bench of augmentation times, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench import augment
from bench.pairing import WrongAnswerError
from egoloader.augment import ImageAugment

TINY = augment.Settings(batch_size=3, size=(12, 16), rounds=2)


def test_every_case_is_timed_beside_kornia() -> None:
    result = augment.measure_augment(TINY)
    contenders = ["egoloader", "kornia at batch 1", "the same draws", "kornia batched"]
    assert [row.contender for row in result.figures] == contenders * 4
    assert {row.n for row in result.figures} == {2}
    wanted = [(target.sense, target.bound) for target in result.targets]
    assert wanted == [("at least", 1.2), ("at least", 1.8), ("at least", 3.0)]
    for place, target in enumerate(result.targets):
        assert target.figure == result.figures[4 * place + 1].ratio


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda images: images, "no changed images"),
        (lambda images: images[:2], "no changed images"),
        (lambda images: images * 0.9, "otherwise than kornia, by 0"),
    ],
)
def test_a_wrong_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    def call(self: ImageAugment, images: Any, sample_seed: torch.Tensor) -> dict[str, torch.Tensor]:
        return {key: wrong(value) for key, value in images.items()}

    monkeypatch.setattr(ImageAugment, "__call__", call)
    with pytest.raises(WrongAnswerError, match=f"'egoloader' answers .* {message}"):
        augment.measure_augment(TINY)
