"""Where an event goes: the grammar of templates, what it refuses and where, and how values are encoded."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.errors import BadValue
from app.config.fields.field_types import Text
from app.config.fields.templates import PLACEHOLDERS, Templated, escaped, percent, underscored
from app.events.model import Event
from tests.support import sample_events

AT = 1_795_698_123_456  # 2026-11-26T13:02:03.456Z


def event(key: str = "photos/2026/cat.jpg", name: str = "s3:ObjectCreated:Put", bucket: str = "my.images") -> Event:
    return sample_events.put(key, bucket=bucket)._replace(name=name, time=AT)


def place(text: str, made: Event | None = None, kind: Templated | None = None) -> str:
    return (kind or Templated(Text(), "subject")).parse(text).of(made or event())


def test_each_placeholder_gives_what_the_event_is_about() -> None:
    made = event()
    names = [*PLACEHOLDERS, "prefix:1", "prefix:2", "prefix:9"]
    names.remove("prefix:N")
    assert {name: place(f"{{{name}}}", made) for name in names} == {
        "bucket": "my.images", "key": "photos/2026/cat.jpg", "name": "cat.jpg", "event": "s3:ObjectCreated:Put",
        "kind": "ObjectCreated", "action": "Put", "year": "2026", "month": "2026-11", "date": "2026-11-26",
        "hour": "13", "id": made.id, "prefix:1": "photos", "prefix:2": "photos/2026", "prefix:9": "photos/2026",
    }  # fmt: skip


def test_fixed_text_stands_around_them_and_doubled_braces_are_braces() -> None:
    assert place("a-{bucket}.{kind}-z") == "a-my.images.ObjectCreated-z"
    assert place("{{bucket}}{bucket}}}") == "{bucket}my.images}"
    fixed = Templated(Text(), "key").parse("{{tag}}:events")
    assert (fixed, fixed.fixed, fixed.of(event())) == ("{tag}:events",) * 3


def test_a_value_without_a_character_is_an_underscore() -> None:
    assert place("{prefix:1}/{name}", event("folder/")) == "folder/_"
    assert place("{prefix:1}", event("cat.jpg")) == "_"
    assert place("{kind}{action}", event(name="odd")) == "__"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("events-{buckte}", "unknown placeholder at character 8"),
        ("{bucket.__class__}", "single brace at character 1"),
        ("{0}", "single brace at character 1"),
        ("{}", "single brace at character 1"),
        ("{bucket", "single brace at character 1"),
        ("a}b", "single brace at character 2"),
        ("{{a}", "single brace at character 4"),
        ("{prefix}", "unknown placeholder at character 1"),
        ("{prefix:0}", "single brace at character 1"),
        ("{prefix:10}", "single brace at character 1"),
        ("{bucket:1}", "unknown placeholder at character 1"),
        ("{bucket!r}", "single brace at character 1"),
        ("{ bucket }", "single brace at character 1"),
        ("{trace}", "unknown placeholder at character 1"),
        ("{BUCKET}", "single brace at character 1"),
    ],
)
def test_what_is_not_of_the_grammar_is_refused_with_its_place(text: str, problem: str) -> None:
    with pytest.raises(BadValue) as refused:
        place(text)
    assert problem in refused.value.problem
    assert text not in str(refused.value)  # a header's value may be a secret


@given(st.text())
def test_any_escaped_text_is_itself(text: str) -> None:
    kind = Templated(Text(), "subject")
    if text.isprintable():
        assert kind.parse(escaped(text)).fixed == text


@given(st.text(alphabet="{}:1bucketkyprfxa.", max_size=30))
def test_every_text_is_a_template_or_refused(text: str) -> None:
    try:
        made = place(text)
    except BadValue:
        return
    assert isinstance(made, str)


def test_the_fixed_parts_are_checked_when_it_is_set_and_the_whole_for_each_event() -> None:
    kind = Templated(Text(max_characters=30), "topic")
    with pytest.raises(BadValue, match=r"^is longer than 30 characters$"):
        kind.parse("x" * 30 + "{bucket}")
    made = kind.parse("x-{key}")
    assert made.of(event("a")) == "x-a"
    for _ in range(2):  # the second time from the cache
        with pytest.raises(BadValue, match=r"^topic of this event is longer than 30 characters$"):
            made.of(event("a" * 40))


def test_events_of_an_object_have_one_place_where_that_is_asked_for() -> None:
    kind = Templated(Text(), "key", of_object=True)
    assert not kind.parse("{bucket}/{prefix:1}/{name}").varies
    assert Templated(Text(), "key").parse("{kind}").varies
    for text in ("{event}", "{bucket}{date}", "{id}"):
        with pytest.raises(BadValue, match="not the same for all events of an object"):
            kind.parse(text)


def test_values_are_encoded_and_the_fixed_parts_are_not() -> None:
    dots = Templated(Text(), "subject", percent(r"[.%\x00-\x1f]"))
    assert place("s3.{bucket}.{name}", event("a/50%\n.x"), dots) == "s3.my%2Eimages.50%25%0A%2Ex"
    words = Templated(Text(), "index", underscored("[^a-z0-9.-]", lower=True))
    assert place("A.{name}", event("Über uns.TXT"), words) == "A._ber_uns.txt"
    assert place("{name}", event("é/ü")) == "ü"


@given(st.text(min_size=1))
def test_encoded_values_differ_where_the_values_do(key: str) -> None:
    """As `%` is encoded, too."""
    encode = percent(r"[.%\s]")
    if key.isprintable():
        assert unquote(encode(key)) == key


def test_a_place_is_a_text_and_its_copy_a_plain_one() -> None:
    made = Templated(Text(), "subject").parse("a.{bucket}")
    assert f"{made}" == "a.{bucket}"
    assert made.literals == ["a."]
    assert type(pickle.loads(pickle.dumps(made))) is str


def test_the_page_names_every_placeholder() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/targets/index.md").read_text()
    table = page.partition("\n| placeholder |")[2].partition("\n\n")[0]
    named = re.findall(r"`\{([a-z:0-9]+)\}`", table)
    assert [name for name in named if ":" not in name] == [name for name in PLACEHOLDERS if ":" not in name]
    alike = [row.split("|")[1] for row in table.splitlines() if row.endswith("| yes |")]
    assert re.findall(r"`\{([a-z]+)", "".join(alike)) == ["bucket", "key", "prefix", "prefix", "prefix", "name"]
    assert [name for name, known in PLACEHOLDERS.items() if known.of_object] == ["bucket", "key", "prefix:N", "name"]
