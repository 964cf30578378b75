"""Where a text file may be cut: at the end of a line, else of a word, else of a character."""

from __future__ import annotations

from pathlib import Path

SIGHT = 2**16  # bytes that are searched for the end of a line


def border(path: Path, offset: int, size: int) -> int:
    """The first place from `offset` on where the file, of `size` bytes, may be cut; its end where there is none.

    A line ends after its newline. A word ends before the space that follows, since tokens begin with spaces.
    """
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    with path.open("rb") as file:
        file.seek(offset - 1)
        seen = file.read(SIGHT)
    if (newline := seen.find(b"\n")) >= 0:
        return offset + newline
    if (space := seen.find(b" ", 1)) >= 0:
        return offset - 1 + space
    # A byte 10xxxxxx goes on with the character before it.
    start = next((place for place, byte in enumerate(seen[1:5]) if byte & 0xC0 != 0x80), 0)
    return min(offset + start, size)
