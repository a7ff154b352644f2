"""Make error reasons from targets and drivers storable: limit their characters and length for every database."""

MAX_CHARACTERS = 2_000  # characters
_MAX_BYTES = 4_000  # in UTF-8; ten attempts as JSON, with escaped quotes and backslashes, fit MySQL's TEXT of 65,535
PLAIN = "the outbox database refused to store the reason"


def clean_reason(text: str) -> str:
    """Return the reason in one line, without control characters, with at most 2,000 characters and 4,000 UTF-8 bytes.

    Line breaks and tabs become spaces. Other unprintable characters (NUL, escape characters, lone surrogates, marks
    that reverse the text direction) become U+FFFD.
    """
    line = "".join(
        char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text[:MAX_CHARACTERS]
    )
    return line.encode()[:_MAX_BYTES].decode(errors="ignore")
