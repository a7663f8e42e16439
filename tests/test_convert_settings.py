from __future__ import annotations

from typing import Any

import pytest

from egoloader.convert import LeRobotSettings, parse_episodes
from egoloader.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "episodes"),
    [("0:3", (0, 1, 2)), ("12,29", (12, 29)), ("0:3, 2,12", (0, 1, 2, 12)), ("5", (5,))],
)
def test_parse_episodes(text: str, episodes: tuple[int, ...]) -> None:
    assert parse_episodes(text) == episodes


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "3:3", "4:2", "1:", ":4", "0:99999999999"])
def test_parse_episodes_refuses(text: str) -> None:
    with pytest.raises(SettingsError, match="in the episodes"):
        parse_episodes(text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("episodes", ()),
        ("episodes", (-1,)),
        ("episodes", (1, 1)),
        ("image_size", (0, 10)),
        ("image_size", (240,)),
        ("quality", 0),
        ("quality", 101),
        ("quality", 85.5),
        ("subsampling", "421"),
        ("workers", 0),
        ("embodiment", " "),
    ],
)
def test_wrong_values_are_named(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        LeRobotSettings(**{name: value})
