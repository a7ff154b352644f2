"""Make any text exportable: protobuf refuses lone surrogates, and with them everything in the same request."""

_MAX_CHARACTERS = 4096  # characters; a key has up to 1,024 bytes, an error may quote a page


def exportable(text: str) -> str:
    """Return the text as UTF-8 can encode it, cut to 4,096 characters."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[: _MAX_CHARACTERS - 1]}…"
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text
