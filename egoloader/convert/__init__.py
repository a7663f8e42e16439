"""Converters from other recording formats to episodes; they need the extra `convert`."""

from __future__ import annotations

from egoloader.convert.lerobot import convert_lerobot
from egoloader.convert.report import ConversionEvent, ConversionReport
from egoloader.convert.settings import LeRobotSettings, parse_episodes

__all__ = [
    "ConversionEvent",
    "ConversionReport",
    "LeRobotSettings",
    "convert_lerobot",
    "parse_episodes",
]
