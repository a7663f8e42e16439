"""The task of an episode, in words."""

from __future__ import annotations

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError

__all__ = ["MAX_TEXT", "task_text"]

#: Characters that the text of one frame may have, as every sample has it anew.
MAX_TEXT = 2**20


def task_text(episode: ZarrEpisode) -> str:
    """Return the episode's `task_description`, else its `task_name`, else "".

    Raises:
        EpisodeFormatError: an attribute that is no text, or a longer one than anybody writes.
    """
    for name in ("task_description", "task_name"):
        text = episode.attrs.get(name)
        if text is None or text == "":
            continue
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            what = f"{len(text)} characters" if isinstance(text, str) else f"{text!r:.80}"
            raise EpisodeFormatError(
                f"{name} must be a text of at most {MAX_TEXT} characters, got {what}",
                episode=episode.name,
            )
        return text
    return ""
