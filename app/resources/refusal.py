"""Requests that the API refuses: by which surface they came, why they were refused, and what to do about it.

A new problem type, or a code of the S3 API, that refuses a caller is a member of `REASONS`. What is said of a refusal
is in words of ours: no header and nothing of the body is in it. Only what an OpenID Connect provider has answered is
quoted, in printable characters.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from app.logs import clause

# The surfaces of the API; what the server could not read as a request is of HTTP.
INTAKE, API, S3, ADMIN, STREAM, CONSOLE, SIGN_IN, HTTP = (
    "intake", "api", "s3", "admin", "stream", "console", "sign-in", "http",
)  # fmt: skip
INTAKE_ROUTE = "POST /v1/events"
# Routes of requests for which no route was found, because they were refused before.
S3_ROUTE, ADMIN_ROUTE = "S3", "mc admin"
# Reasons of requests for which there is no route: a sender posts elsewhere, and no server can read it.
WRONG_PATH, NOT_HTTP = "wrong-path", "not-http"
_BY_REASON = MappingProxyType({WRONG_PATH: INTAKE, NOT_HTTP: HTTP})
_BY_ROUTE = MappingProxyType(
    {
        INTAKE_ROUTE: INTAKE, S3_ROUTE: S3, ADMIN_ROUTE: ADMIN, "GET /v1/events/stream": STREAM,
        "GET /<bucket>?events": STREAM,
    }
)  # fmt: skip
_BY_PATH = (
    ("/console/sign-in", SIGN_IN), ("/console/openid", SIGN_IN), ("/console", CONSOLE), ("/minio/", ADMIN),
    ("/<bucket>", S3),
)  # fmt: skip
OTHERS = "others"  # instead of whose they were, where many are refused at once

# When a refusal counts as over before none of its kind has come for a while: once a token of the same name is used, or
# once events are recorded again.
UNTIL_USED, UNTIL_RECORDED = "used", "recorded"


class Reason(NamedTuple):
    """Why a request was refused.

    `text` has `{who}` for the token, key or person, and `{fact}` for what a refusal adds, such as a time. `mend` tells
    an operator what to do, `command` has the words of a command that helps. `loses` says whether events of a sender
    that is known are lost, or wait in its queue.
    """

    text: str
    mend: str
    command: tuple[str, ...] = ()
    loses: bool = False
    over: str = ""


_TOKENS = ("token", "ls")
_OF_CREDENTIALS: Mapping[str, Reason] = {
    "token-revoked": Reason(
        "{who} was revoked{fact}", "give its user the token that replaces it", _TOKENS, loses=True, over=UNTIL_USED
    ),
    "token-expired": Reason(
        "{who} expired{fact}", "create another one for its user", _TOKENS, loses=True, over=UNTIL_USED
    ),
    "token-unknown": Reason("the token is unknown", "give the client one that is valid", _TOKENS),
    "token-missing": Reason("no token was sent", "give the client one"),
    "token-in-url": Reason(
        "{who} is in the URL and has more scopes than ingest", "give its user one with this scope alone", loses=True
    ),
    "scope": Reason("{who} lacks the scope {fact}", "give its user one that has it", _TOKENS, loses=True),
    "limits": Reason("{who} is limited to other buckets or targets", "give its user one for what it sends"),
    "forbidden": Reason("{who} may not do this", "give the caller a token with the scope that it needs", _TOKENS),
    "loopback-only": Reason(
        "without tokens, only this machine may call", "create a token for the sender", ("token", "create")
    ),
    "signed-for-aws": Reason(
        "the request is signed for AWS, and no such signature is verified here", "give the sender a token"
    ),
}
_OF_BODIES: Mapping[str, Reason] = {
    "bad-events": Reason("the body has no valid events{fact}", "look at what the sender posts, and by what proxies"),
    "bad-request": Reason("the body cannot be read{fact}", "look whether a proxy cuts or changes bodies"),
    "bad-value": Reason("the URL has a parameter without a valid value", "correct the URL that the sender posts to"),
    "bad-signature": Reason(
        "events of Backblaze B2 are not signed, or by another secret",
        "compare the secret of the rule there with BUCKETWIRE_B2_SIGNING_SECRETS",
    ),
    "unknown-encoding": Reason("the encoding of the body is unknown", "let the sender use gzip or none"),
    "too-large": Reason(
        "the body, its events or their number is too large{fact}",
        "let the sender post fewer events at once, or raise BUCKETWIRE_BODY_LIMIT or BUCKETWIRE_RECORD_LIMIT",
    ),
    WRONG_PATH: Reason("no events are taken at the path", "let the sender post to /v1/events"),
    "client-gone": Reason(
        "the sender has closed the connection within the body, or has stopped sending",
        "look at the time limits of the sender and of proxies",
    ),
}
_OF_THE_SERVICE: Mapping[str, Reason] = {
    "database-unavailable": Reason(
        "the outbox database was unavailable",
        "senders that repeat them lose nothing; a spool folder takes them meanwhile",
        loses=True,
        over=UNTIL_RECORDED,
    ),
    "database-full": Reason(
        "the outbox database is full", "give it more room, or lower BUCKETWIRE_RETENTION",
        loses=True, over=UNTIL_RECORDED,
    ),
    "spool-unavailable": Reason(
        "the spool folder is not writable", "look at its disk and its permissions", loses=True, over=UNTIL_RECORDED
    ),
    "spool-full": Reason(
        "the disk of the spool folder is full", "give it more room; the outbox database is away, too",
        loses=True, over=UNTIL_RECORDED,
    ),
    "queue-full": Reason(
        "the queue of a target is full{fact}", "speed up the target, or raise its queue_limit", ("status",), loses=True
    ),
    "overloaded": Reason(
        "an API process had as many large requests at once as it has memory for",
        "let senders post smaller bodies, or run more API processes",
        loses=True,
    ),
    "matching-busy": Reason(
        "the regular expressions of the rules take too long", "use simpler ones", ("rule", "ls"), loses=True
    ),
    "internal": Reason(
        "an unexpected error, which is in the log of the API", "please report it as a defect", loses=True
    ),
    "too-many-streams": Reason("there are too many streams", "end some, or run more API processes"),
    "too-many-tests": Reason("too many tests of settings run at once", "try again"),
}  # fmt: skip
_OF_SIGNATURES: Mapping[str, Reason] = {
    "key-unknown": Reason("the access key is unknown", "compare it with BUCKETWIRE_ACCESS_KEY and BUCKETWIRE_S3_KEYS"),
    "wrong-signature": Reason(
        "the signature is not by the secret of {who}",
        "compare the secret key, and look whether a proxy changes headers",
    ),
    "wrong-time": Reason("the clock of the client is wrong", "set the clocks of the client and of this host"),
    "wrong-region": Reason("the request is signed for another region", "compare it with BUCKETWIRE_REGION"),
    "not-signed": Reason(
        "the request is not signed, or not validly any more", "let the client use an access key of this service"
    ),
}
_OF_SIGN_INS: Mapping[str, Reason] = {
    "bad-form": Reason("the form is out of date or of another site", "reload the page"),
    "openid-claim": Reason(
        "{who} has no value of the claim that gives access", "compare it with BUCKETWIRE_OIDC_ADMIN and _READ"
    ),
    "openid-refused": Reason(
        "the browser came back without a sign-in, with these words in its request{fact}", "look at the provider's log"
    ),
    "openid-state": Reason("the sign-in was not begun in this browser, or too long ago", "begin it again"),
    "openid-clock": Reason("a clock is wrong{fact}", "set it by NTP"),
    "openid-failed": Reason(
        "the sign-in at the provider could not be ended{fact}", "look at the settings BUCKETWIRE_OIDC_…"
    ),
    "openid-unavailable": Reason("the OpenID Connect provider was not reached{fact}", "look at BUCKETWIRE_OIDC_ISSUER"),
}
_OF_HTTP: Mapping[str, Reason] = {NOT_HTTP: Reason("the server could not read the request", "look at the client")}

REASONS: Mapping[str, Reason] = MappingProxyType(
    {**_OF_CREDENTIALS, **_OF_BODIES, **_OF_THE_SERVICE, **_OF_SIGNATURES, **_OF_SIGN_INS, **_OF_HTTP}
)
# Why a post, or a sign-in, may be refused: these are counted from 0 on, so that the first one is an increase.
COUNTED_REASONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        INTAKE: tuple(
            reason
            for reason in (*_OF_CREDENTIALS, *_OF_BODIES, *_OF_THE_SERVICE)
            if reason not in ("too-many-streams", "too-many-tests")
        ),
        SIGN_IN: (
            "token-revoked", "token-expired", "token-unknown", "scope", "database-unavailable", "internal",
            *_OF_SIGN_INS,
        ),
    }
)  # fmt: skip


def surface_of(route: str, reason: str) -> str:
    """Return the surface of a refused request; its route is a method and the template of a path, "" for none."""
    path = route.partition(" ")[2]
    of_path = (surface for beginning, surface in _BY_PATH if path.startswith(beginning))
    return _BY_REASON.get(reason) or _BY_ROUTE.get(route) or next(of_path, API)


def describe_refusal(reason: str, actor: str, fact: str) -> str:
    """Say why a request was refused; `actor` is whose it was as the audit log has it, "" for nobody known."""
    known = REASONS.get(reason)
    return reason if known is None else clause(known.text.format(who=_describe_actor(actor), fact=fact))


def _describe_actor(actor: str) -> str:
    if actor == OTHERS:
        return "one of many tokens and keys"
    kind, _, name = actor.partition(":")
    if kind == "token":
        return f"token {name}"
    if kind == "key":
        return f"key {name}"
    return actor or "the client"
