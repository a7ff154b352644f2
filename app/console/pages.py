"""What every page has: its session and rights, the check of forms, the security headers, links and errors."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from flask import Blueprint, Response, current_app, g, make_response, render_template, request, send_from_directory

from app.api import Refused, auth
from app.api.errors import PROBLEM_TYPES, ApiProblem, note_refusal, to_problem
from app.api.services import services
from app.api.wsgi_layers import PROTECTION, Refusal, set_refusal
from app.config.fields.field_types import written_size
from app.config.settings import SCOPES
from app.console import formats, session
from app.console.formats import RANGES
from app.console.session import LOCAL, Seals, Session, identity, is_same_site

F = TypeVar("F", bound=Callable[..., Any])

routes = Blueprint("console", __name__, url_prefix="/console", template_folder="templates")
_STATIC = Path(__file__).with_name("static")
_EXACT = frozenset({"key", "prefix", "suffix", "regex", "metadata", "tags"})
_LARGEST_FORM = 1 << 20  # bytes
_PAGE = 100  # rows of what a filter lists
_COUNTS, _COUNTS_AGE = "bucketwire.console.counts", 5.0  # seconds
NOTHING_SELECTED = "Nothing was selected."
_A_YEAR = 365 * 86400  # seconds; a file's address contains its digest

# Everything comes from this server and is a file: no page can run or show what somebody has put into a key.
_POLICY = "; ".join(
    (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'",
        "form-action 'self'", "frame-ancestors 'none'", "base-uri 'none'",
    )
)  # fmt: skip
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    **PROTECTION,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # with `no-referrer`, browsers send `Origin: null` with a form
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at a page: the token's name, "" on a loopback address without tokens, and what it may do now."""

    name: str
    scopes: frozenset[str]
    session: str  # its number
    buckets: Sequence[str] = ()
    targets: Sequence[str] = ()
    kind: str = "token"
    is_limited: bool = False  # it sees only some buckets and targets, and nothing that concerns all of them

    @property
    def may_change(self) -> bool:
        """Whether to offer what changes something; the API decides again when it is called."""
        return auth.ADMIN in self.scopes


def page(rule: str, *methods: str) -> Callable[[F], F]:
    """Register a page for visitors; with `POST` it gets only forms that it has made itself, for this session."""

    return _registering(rule, methods, auth.VISITOR)


def open_page(rule: str, *methods: str) -> Callable[[F], F]:
    """Register a page that needs no session; it reveals nothing."""

    return _registering(rule, methods, auth.PUBLIC)


def action(rule: str, back: str, filters: Sequence[str] = ()) -> Callable[[F], F]:
    """Register what a form does; if it is refused, the page `back` says so once, with the form's filter."""

    def register(view: F) -> F:
        @wraps(view)
        def act(**names: Any) -> Response:
            try:
                response: Response = view(**names)
            except Refused as refused:
                return done(str(refused), back.format(**names), form_values(*filters), bad=True)
            return response

        page(rule, "POST")(act)
        return view

    return register


def _registering(rule: str, methods: Sequence[str], scope: str) -> Callable[[F], F]:
    def register(view: F) -> F:
        endpoint = f"{view.__module__.rpartition('.')[2]}_{view.__name__}"
        return routes.route(rule, methods=methods or ("GET",), endpoint=endpoint)(auth.needs(scope)(view))

    return register


def seals() -> Seals:
    """Return what seals sessions and forms."""
    return Seals(services().sealer)


def visitor() -> Visitor:
    """Return who looks at this page."""
    found: Visitor = g.visitor
    return found


@routes.before_request
def _identify() -> Response | None:
    """Find out who the visitor is, by the API's own check, and refuse forms that come from elsewhere."""
    request.max_content_length = _LARGEST_FORM
    if auth.scope_of_view(request.endpoint) != auth.VISITOR:
        return None
    held = seals().read_session(request)
    session = held if held is not None and is_active(held) else None
    request.environ[auth.SESSION] = _credential(session)
    try:
        token = auth.check(request, auth.READ)
    except ApiProblem as problem:
        if problem.kind != "unauthorized":
            raise
        return _to_sign_in(ended=held is not None and bool(held.subject))
    g.token = token
    if token is None or session is None:
        g.visitor = Visitor("", frozenset(SCOPES), LOCAL)
    else:
        g.visitor = Visitor(
            token.name, token.scopes, session.number, token.buckets, token.targets, token.kind, token.is_limited
        )
    if request.method == "POST":
        check_form(g.visitor.session)
    return None


def is_active(session: Session) -> bool:
    """Return whether somebody has signed in to this session, and it was not ended at any API process."""
    return bool(session.subject) and services().sessions.is_active(session.number)


def _credential(session: Session | None) -> auth.ConsoleSession:
    """Return what the API's check finds of a session."""
    if session is None:
        return auth.ConsoleSession()
    person = None if session.person is None else identity(services().settings, session.person)
    return auth.ConsoleSession(session.number, session.digest, person)


def check_form(number: str) -> None:
    """Raise `Refused` unless the form in this request was made by the console for the session of this number."""
    if not is_same_site(request.headers):
        set_refusal(request.environ, Refusal("bad-form"))
        raise Refused(403, {"title": "Refused", "detail": "this form was sent from another site; nothing was changed"})
    if not seals().is_form_of(number, request.form.get("form", "")):
        set_refusal(request.environ, Refusal("bad-form"))
        detail = (
            "this form is out of date or was not made for this session; nothing was changed. Go back, reload, retry"
        )
        raise Refused(403, {"title": "Refused", "detail": detail})


def _to_sign_in(*, ended: bool) -> Response:
    if request.headers.get("HX-Request"):
        return Response(headers={"HX-Refresh": "true"})  # the page is loaded again, which then leads to the sign-in
    asked = request.path.removeprefix("/console").strip("/")
    if request.query_string and request.method == "GET":
        asked += "?" + request.query_string.decode("latin-1")
    query = {"next": asked if request.method == "GET" else "", "ended": "1" if ended else ""}
    return redirect("sign-in", **query)


@routes.after_request
def _protect(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


@routes.errorhandler(Exception)
def _answer(error: Exception) -> Response:
    """Answer every error with a page; what was not expected is in the log under the id that the page shows."""
    if isinstance(error, Refused):
        if error.kind == "unauthorized":  # revoked while the page was made
            return _to_sign_in(ended=True)
        if error.kind in PROBLEM_TYPES:  # of a call of the API, which counts no request of its own
            note_refusal(ApiProblem(error.kind, str(error), status=error.status))
        return error_page(error)
    problem = to_problem(error)
    note_refusal(problem)
    response = problem.response()
    return error_page(Refused(response.status_code, response.get_json()))


def error_page(refused: Refused) -> Response:
    """Return the page for a problem, with its status."""
    return show("error.html", refused.status, title=refused.body.get("title", "Error"), refused=refused)


@open_page("/static/<path:name>")
def static(name: str) -> Response:
    """Return a file of the console; its address changes with its content."""
    return send_from_directory(_STATIC, name, max_age=_A_YEAR if request.args.get("v") else 0)


@page("/<path:rest>", "GET", "POST")
def missing(rest: str) -> Response:
    """Answer an address that no page has."""
    raise Refused(404, {"title": "Not found", "detail": f"the console has no page {rest[:200]}"})


def base() -> str:
    """Return the relative address of the console's folder as the browser sees it, behind whatever prefix.

    Every link is relative, so that a proxy may serve the console anywhere and needs to tell nobody.
    """
    depth = request.path.count("/") - 2
    if depth < 0:
        return "console"
    return "/".join([".."] * depth) or "."


def link(path: str = "", **query: Any) -> str:
    """Return the relative address of a page; parameters that are empty or None are left out."""
    given = {name: value for name, value in query.items() if value not in (None, "", False)}
    address = f"{base()}/{quote(path, safe='/')}"
    return f"{address}?{urlencode(given, doseq=True)}" if given else address


def redirect(path: str, **query: Any) -> Response:
    """Lead the browser to a page of the console after a form, by GET."""
    return Response(status=303, headers={"Location": link(path, **query)})


def done(text: str, path: str, query: Mapping[str, str] | None = None, *, bad: bool = False) -> Response:
    """Lead the browser to a page that shows the result of an action once; `query` is that page's filter."""
    return redirect(path, **{**(query or {}), "notice": seals().notice(text, bad=bad)})


def show(template: str, http_status: int = 0, /, **values: Any) -> Response:
    """Return a page; unless it is given a status, it has 400 if it shows something `wrong` or a `problem`."""
    status = http_status or (400 if values.get("wrong") or values.get("problem") else 200)
    values["counts"] = _counts() if status < 500 else {}
    return make_response(render_template(template, **values), status)


def _counts() -> Mapping[str, int]:
    """Return what is beside the names of pages: how many events need somebody; nothing where it is not shown.

    It is at most some seconds old, because a service with many targets takes a while to count; after an action it is
    counted again.
    """
    who: Visitor | None = g.get("visitor")
    if who is None or who.is_limited:
        return {}
    kept: dict[str, Any] = current_app.extensions.setdefault(_COUNTS, {"at": 0.0, "counts": {}})
    if kept["at"] + _COUNTS_AGE <= (now := time.monotonic()) or request.args.get("notice"):
        try:
            events = session.get("/v1/status")["events"]
        except Refused:  # the page itself says what is wrong
            return {}
        kept.update(at=now, counts={"dead-letters": events["dead"], "retries": events["parked"]})
    counts: Mapping[str, int] = kept["counts"]
    return counts


class FormRefusal:
    """What the API refuses in a `with` block and the page itself shows: `wrong`, if it has one of these statuses."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = statuses
        self.wrong: Refused | None = None

    def __enter__(self) -> "FormRefusal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if not isinstance(error, Refused) or error.status not in self._statuses:
            return False
        self.wrong = error
        return True


def filtered(path: str, member: str, filters: Sequence[str], *limits: str) -> dict[str, Any]:
    """Return what a page with a filter shows: the filter, a page of what matches it, or what is wrong with it."""
    given, after = within_limits(form_values(*filters), *limits), request.args.get("after", "")
    found: dict[str, Any] = {member: [], "next": None}
    with FormRefusal(400, 404) as refusal:
        found = session.get(path, **given, after=after, limit=_PAGE)
    return {
        "given": given, "filtered": any(given.values()), "after": after, "found": found, "wrong": refusal.wrong,
    }  # fmt: skip


def form_values(*names: str) -> dict[str, str]:
    """Return what a form or a query has under these names; "" for what it lacks.

    Spaces around a value are left out, except where a key, metadata or tags may have them.
    """
    given: Mapping[str, str] = request.form if request.method == "POST" else request.args
    values = {name: given.get(name, "") for name in names}
    return {name: text if name in _EXACT else text.strip() for name, text in values.items()}


def ticked_numbers() -> list[int]:
    """Return the numbers of the rows that are ticked in a form."""
    texts = request.form.getlist("ids")
    return [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 19]


def within_limits(given: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return the values of a filter; those of `bucket` and `target` that a limited visitor has to give are filled in.

    Its first bucket or target stands for one that is not given. The API refuses what is beyond the limits.
    """
    who, filled = visitor(), dict(given)
    own = {"bucket": who.buckets, "target": who.targets}
    for name in names:
        if who.is_limited and not filled[name] and own[name]:
            filled[name] = own[name][0]
    return filled


@cache
def _digest(name: str) -> str:
    return sha256((_STATIC / name).read_bytes()).hexdigest()[:16]


@routes.context_processor
def _context() -> dict[str, Any]:
    who: Visitor | None = g.get("visitor")
    return {
        "visitor": who,
        "link": link,
        "ranges": RANGES,
        "asset": lambda name: f"{base()}/static/{name}?v={_digest(name)}",
        "form_token": seals().form(who.session) if who else "",
        "notice": seals().read_notice(request.args.get("notice", "")),
        **formats.TEMPLATE_FUNCTIONS,
    }


routes.add_app_template_filter(formats.visible, "visible")
routes.add_app_template_filter(formats.sentence, "sentence")
routes.add_app_template_filter(formats.with_code, "with_code")
routes.add_app_template_filter(written_size, "size")
