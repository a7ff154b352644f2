"""Convert trace contexts and texts to what OpenTelemetry can export."""

from collections.abc import Iterable
from functools import lru_cache

from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags, TraceState, set_span_in_context

from app.events.trace import trace_of

# Each costs 9 µs, in both threads: 128, the specification's limit, would take a tenth as long as delivering 500 events.
MAX_LINKS = 4
_SAMPLED = 0x01


@lru_cache(maxsize=16)  # each line of a log asks twice
def span_context(trace: str) -> SpanContext | None:
    """Return the context that a stored text describes; None for "" and for what is none."""
    text, _, members = trace.partition(" ")
    parent = trace_of(text)
    if not parent:
        return None
    _, trace_id, span_id, flags = parent.split("-")
    state = TraceState.from_header([members]) if members else None  # it was checked before it was stored
    return SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)), trace_state=state
    )


def parent_context(trace: str) -> Context:
    """Return the context in which a span follows the one that the text describes; without one it begins a trace."""
    parent = span_context(trace)
    return Context() if parent is None else set_span_in_context(NonRecordingSpan(parent), Context())


def text_of(context: SpanContext) -> str:
    """Return a context as it is stored with an event."""
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    return trace_of(parent, context.trace_state.to_header()) if context.trace_state else parent


def links_to(traces: Iterable[str], most: int) -> list[Link]:
    """Return links to the sampled ones of these contexts, each once, and at most so many."""
    links: dict[str, Link] = {}
    for trace in traces:
        if not trace or trace in links:
            continue
        if len(links) == most:
            break
        # Without `span_context`, which takes three times as long: there may be many, and the text was checked before it
        # was stored. A context that is not sampled has no span to link to.
        flags = int(trace[53:55], 16)
        if flags & _SAMPLED:
            of_span = int(trace[3:35], 16), int(trace[36:52], 16)
            links[trace] = Link(SpanContext(*of_span, is_remote=True, trace_flags=TraceFlags(flags)))
    return list(links.values())


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
