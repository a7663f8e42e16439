"""Text out of episodes on terminals: names and messages that may hold anything."""

from __future__ import annotations

from rich.markup import escape

__all__ = ["shown"]

#: Characters that are shown of one text.
_LONGEST = 4000


def shown(text: str) -> str:
    """Return text for `rich` that shows as it is: no markup, and nothing that steers a terminal.

    Line breaks stay; other characters that can't be printed are spelt out, half characters among
    them; what is very long is cut.
    """
    cut = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return escape("".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in cut))
