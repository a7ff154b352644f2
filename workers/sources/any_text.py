"""Bytes of a queue's library, of which some that should be UTF-8 are not."""

from typing import Any


class AnyText(bytearray):
    """Bytes whose slices decode to a text in any case."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return AnyText(found) if isinstance(place, slice) else found

    def decode(self, *_: Any) -> str:
        """Return the text, with U+FFFD for what is none."""
        return super().decode(errors="replace")
