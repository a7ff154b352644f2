"""Tokens: what programs and people present to the API."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from app.config.arn import TargetId
from app.config.settings import SCOPES
from app.events.frontends import S3_FRONTENDS
from app.resources.declaration import EXPIRY, TARGET, TEXT, Columns, Query, Resource, Time, about, list_of

MAX_LIMITS = 100  # buckets, and targets
Scope = Annotated[str, Meta(extra_json_schema={"enum": list(SCOPES)})]
Bucket = Annotated[str, Meta(min_length=1, max_length=255)]
TargetName = Annotated[str, about("type:name", pattern=TARGET.schema["pattern"])]
_FRONTENDS = ["", *sorted(S3_FRONTENDS)]


class TokenFacts(Resource):
    """What a token allows."""

    name: str
    scopes: Annotated[list[Scope], about("what it allows", minItems=1)]
    buckets: Annotated[list[Bucket], about("it is limited to events of these buckets", maxItems=MAX_LIMITS)]
    targets: Annotated[list[TargetName], about("it is limited to these targets", maxItems=MAX_LIMITS)]
    frontend: Annotated[str, about("who sends what is posted with it; empty: each record shows it")]
    tenant: Annotated[str, about("whose buckets that concerns, recorded as TENANT:BUCKET; arn: by the bucket's ARN")]
    expires_at: Annotated[Time, about("from when it is invalid; null: never")]


class Token(TokenFacts):
    """A valid token; the token itself is not stored."""

    columns: ClassVar[Columns] = {
        "name": "name", "scopes": "scopes", "buckets": "buckets", "targets": "targets", "frontend": "frontend",
        "tenant": "tenant", "from": "origin", "created": "created_at", "last used": "used_at", "expires": "expires_at",
    }  # fmt: skip

    origin: Annotated[str, about("where it is defined", enum=["environment", "stored"])]
    created_at: Time
    used_at: Annotated[Time, about("when it was used last, to a minute; null: never, or it is one of the environment")]


class Tokens(Resource):
    """The valid tokens by name."""

    tokens: list[Token]
    required: Annotated[bool, about("whether requests need a token")]


class CreatedToken(TokenFacts):
    """A new token, shown once."""

    token: Annotated[str, about("it is not stored")]


class NewToken(Query):
    """A token to create."""

    name: Annotated[str, TEXT("what the audit log calls it", pattern="^[A-Za-z0-9_.-]{1,64}$")]
    scopes: Annotated[
        Sequence[str],
        list_of(TEXT, 'write ["read"]')("what it allows", items={"type": "string", "enum": list(SCOPES)}, minItems=1),
    ]
    buckets: Annotated[
        Sequence[str],
        list_of(TEXT("", minLength=1, maxLength=255), 'write ["images"]')(
            "limit it to events of these buckets", maxItems=MAX_LIMITS
        ),
    ] = ()
    targets: Annotated[
        Sequence[TargetId],
        list_of(TARGET, 'write ["webhook:audit"]')("limit it to these targets", maxItems=MAX_LIMITS),
    ] = ()
    frontend: Annotated[str, TEXT("who sends what is posted with it", enum=_FRONTENDS)] = ""
    tenant: Annotated[
        str, TEXT("whose buckets that concerns, recorded as TENANT:BUCKET; arn: by the bucket's ARN", maxLength=64)
    ] = ""
    expires: Annotated[int, EXPIRY("from when it is invalid; never unless given")] = 0
