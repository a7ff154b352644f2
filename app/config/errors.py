"""What is wrong with something a person wrote: the place, the value, the reason and the way out."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

REDACTED = "*redacted*"
_SHOWN = 80


class BadValue(ValueError):
    """A text is not a value of its kind. The sentence never quotes the text: it may be a secret."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `value` is fit to be shown: secrets are already out of it."""

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
        """The same problems, said of this target."""
        return BadSettings(self.problems, subject)


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one, or an empty text where none is."""
    folded = {each.casefold(): each for each in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return folded[close[0]] if close else ""


def did_you_mean(word: str, known: Sequence[str]) -> str:
    """A hint for an unknown word: the nearest known one, else all of them."""
    close = nearest(word, known)
    return f"did you mean {close}?" if close else f"known are {', '.join(known)}"
