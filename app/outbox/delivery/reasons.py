"""Make reasons storable: what a remote or a driver answered, in characters and lengths that every database takes."""

LONGEST = 2_000  # characters
_MOST_BYTES = 4_000  # in UTF-8; so ten attempts as JSON, quotes and backslashes escaped, fit the 65,535 of MySQL's TEXT
PLAIN = "the outbox database refused to store the reason"


def clean_reason(text: str) -> str:
    """The reason in one line, without control characters, of at most 2,000 characters and 4,000 bytes in UTF-8.

    Line breaks and tabs become spaces. Other characters that cannot be printed (NUL, escape sequences, lone
    surrogates, marks that reverse the direction of text) become U+FFFD.
    """
    line = "".join(char if char.isprintable() else " " if char.isspace() else "\ufffd" for char in text[:LONGEST])
    return line.encode()[:_MOST_BYTES].decode(errors="ignore")
