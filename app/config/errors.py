"""Problems with settings and other user input: the key, the value, what is wrong and what to do."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REDACTED = "*redacted*"
MAX_SUGGESTIONS = 10  # unknown names of one request for which a known one is searched
_SHOWN = 80
_MAX_NAME_CHARACTERS, _MAX_LIKE = 100, 10  # of an unknown name that is compared; names like it


class BadValue(ValueError):
    """A text is not a valid value of its type. The message never quotes the text, which may be a secret."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem with a setting. `value` is safe to print: secrets are already redacted."""

    key: str
    value: str
    problem: str
    hint: str = ""

    def __str__(self) -> str:
        value = self.value if len(self.value) <= _SHOWN else self.value[:_SHOWN] + "…"
        shown = value if value in ("", REDACTED) else f"“{value}”"
        sentence = f"{self.key}: {shown} {self.problem}" if shown else f"{self.key}: {self.problem}"
        return f"{sentence}; {self.hint}" if self.hint else sentence


class BadSettings(ValueError):
    """Settings that cannot be used, with every problem they have. `subject` is the target, where one is known."""

    def __init__(self, problems: Iterable[Problem], subject: str = "") -> None:
        self.problems = tuple(problems)
        self.subject = subject
        text = "\n".join(str(problem) for problem in self.problems)
        super().__init__(f"{subject}: {text}" if subject else text)

    def about(self, subject: str) -> "BadSettings":
        """Return the same problems with this target as their subject."""
        return BadSettings(self.problems, subject)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known word that is most similar to this one, or an empty text if none is similar."""
    import difflib  # noqa: PLC0415 - only for a mistake

    folded = {candidate.casefold(): candidate for candidate in known}
    matches = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[matches[0]] if matches else ""


def suggestion(word: str, known: Sequence[str], problems: Sequence[Problem]) -> str:
    """Return `did_you_mean`, or nothing after many problems: thousands of unknown words would take seconds."""
    return did_you_mean(word, known) if len(problems) < MAX_SUGGESTIONS else ""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """Return a hint for an unknown word: the nearest known word, or all of them if none is near."""
    close = nearest(word, known)
    return f"did you mean {close}?" if close else f"known are {', '.join(known)}"


def nearest_name(name: object, known: Iterable[object]) -> str:
    """Return the known `type:name`, or name, that was probably meant: one with a like name, however like the types."""
    import difflib  # noqa: PLC0415 - only for a mistake

    wanted, by_name = str(name)[:_MAX_NAME_CHARACTERS], dict[str, list[str]]()
    for candidate in map(str, known):
        by_name.setdefault(candidate.rpartition(":")[2].casefold(), []).append(candidate)
    like = difflib.get_close_matches(wanted.rpartition(":")[2].casefold(), by_name, n=_MAX_LIKE, cutoff=0.6)
    return nearest(wanted, [candidate for one in like for candidate in by_name[one]])


def suggest_name(name: object, known: Iterable[object], listing: str) -> str:
    """Return a hint for an unknown name: the nearest known one, or the command that lists all of them."""
    close = nearest_name(name, known)
    return f"did you mean {close}?" if close else f"`{listing}` shows those there are"
