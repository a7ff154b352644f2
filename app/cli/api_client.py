"""The client of a remote service's HTTP API: the registry's operations, with a URL and a token."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

from app.cli_common.api_session import ApiSession, ApiUnavailable, InvalidToken, InvalidUrl, is_success
from app.cli_common.errors import CommandError
from app.config.api_settings import SyncEvents
from app.config.arn import TargetId, parse_arn
from app.config.target_settings import redacted
from app.manifest.document import Manifest
from app.outbox.rules import StoredRule
from app.outbox.targets import StoredTarget, UnknownTarget
from app.rules.filters import parse_filters
from app.rules.model import Rule


class ApiClient:
    """Targets and rules of the service at a URL. Secrets cannot be read: they are `*redacted*`.

    Every method raises `CommandError` with the service's message, or `UnknownTarget`.
    """

    def __init__(self, url: str, token: str = "") -> None:
        try:
            self._session = ApiSession(url, token)
        except (InvalidToken, InvalidUrl) as error:
            raise CommandError(str(error)) from None
        self._url = url

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    @cached_property
    def described(self) -> list[dict[str, Any]]:
        """Every target as in `GET /v1/targets`, with its counters; requested once."""
        targets: list[dict[str, Any]] = self.request("GET", "/v1/targets")["targets"]
        return targets

    @property
    def region(self) -> str:
        """The region in the service's ARNs."""
        return parse_arn(self.described[0]["arn"])[0] if self.described else ""

    @property
    def sync_events(self) -> SyncEvents:
        """Whether targets that do not set `sync` are in sync mode, and what decides it."""
        return SyncEvents(**self.request("GET", "/v1/settings/api")["sync_events"])

    def targets(self) -> list[StoredTarget]:
        """Return every target, in order of type and name."""
        return [_stored(target) for target in self.described]

    def target(self, target: TargetId) -> StoredTarget:
        """Return one target."""
        return _stored(self.request("GET", _path(target), target=target))

    def texts(self, stored: StoredTarget) -> dict[str, str]:
        """Return a target's settings as texts, secrets redacted."""
        return redacted(stored.target.type, stored.values)

    def remove(self, target: TargetId, *, force: bool = False) -> list[str]:
        """Delete a target; return descriptions of what was deleted with it."""
        params = {"force": "true"} if force else None
        lost: list[str] = self.request("DELETE", _path(target), target=target, params=params)["lost"]
        return lost

    def pause(self, target: TargetId, reason: str) -> None:
        """Pause deliveries to a target until it is resumed."""
        self.request("POST", f"{_path(target)}/pause", target=target, json={"reason": reason})

    def resume(self, target: TargetId) -> None:
        """End a pause."""
        self.request("POST", f"{_path(target)}/resume", target=target, json={})

    def rules(self, bucket: str | None = None) -> list[StoredRule]:
        """Return every rule, or those of one bucket."""
        params = {} if bucket is None else {"bucket": bucket}
        return [_rule(rule) for rule in self.request("GET", "/v1/rules", params=params)["rules"]]

    def add_rule(self, rule: Rule) -> int:
        """Store a rule and return its number."""
        return int(self.request("POST", "/v1/rules", json=_rule_json(rule))["number"])

    def remove_rules(self, row_ids: Sequence[int]) -> int:
        """Remove rules by number, one after the other."""
        for number in row_ids:
            self.request("DELETE", f"/v1/rules/{number}")
        return len(row_ids)

    def apply(self, document: Manifest, *, dry_run: bool, prune: bool, force: bool, lenient: bool) -> dict[str, Any]:
        """Apply a document, or only plan it; return the plan."""
        flags = {"dry_run": dry_run, "prune": prune, "force": force, "lenient": lenient}
        body = {
            "targets": {str(target): dict(values) for target, values in document.targets.items()},
            "rules": [{"id" if name == "rule_id" else name: value for name, value in _rule_json(rule).items()}
                      for rule in document.rules],
            "api": dict(document.api),
        }  # fmt: skip
        params = {name: "true" for name, flag in flags.items() if flag}
        plan: dict[str, Any] = self.request("POST", "/v1/declaration", params=params, json=body)
        return plan

    def request(self, method: str, path: str, *, target: TargetId | None = None, **options: Any) -> Any:
        """Send a request and return its response's JSON. `target` is the one that an unknown-target error names."""
        try:
            answer = self._session.request(method, path, **options)
        except ApiUnavailable as error:
            raise CommandError(str(error)) from None
        if is_success(answer):
            return answer.json() if answer.content else None
        try:
            problem = answer.json()
            kind, detail = str(problem["type"]).rpartition(":")[2], str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"{self._url} answered {answer.status_code} and is not a Bucketwire API") from None
        if kind == "unknown-target" and target is not None:
            raise UnknownTarget(target, (stored.target for stored in self.targets()))
        hint = "; set a valid token with BUCKETWIRE_TOKEN or --token" if answer.status_code in (401, 403) else ""
        raise CommandError(detail + hint)


def _path(target: TargetId) -> str:
    return f"/v1/targets/{quote(target.type, safe='')}/{quote(target.name, safe='')}"


def _stored(body: dict[str, Any]) -> StoredTarget:
    state = body["state"]
    return StoredTarget(
        row_id=0,
        target=TargetId(body["type"], body["name"]),
        values=body["settings"],
        origin=body["origin"],
        problem=body["reason"] if state == "broken" else "",
        enabled=state != "disabled",
        paused=state == "paused",
        breaker="open" if state == "unavailable" else "closed",
        failures=0,
        resume_at=0,
        reason=body["reason"],
        opening=body["opening"]["state"],
        opening_reason=body["opening"]["reason"],
    )


def _rule(body: dict[str, Any]) -> StoredRule:
    rule = Rule(
        bucket=body["bucket"],
        events=tuple(body["events"]),
        target=parse_arn(body["target"])[1],
        prefix=body["prefix"],
        suffix=body["suffix"],
        rule_id=body["rule_id"],
        filters=parse_filters(body),
    )
    return StoredRule(body["number"], rule)


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "bucket": rule.bucket, "events": list(rule.events), "target": str(rule.target), "prefix": rule.prefix,
        "suffix": rule.suffix, "rule_id": rule.rule_id, **rule.filters.members,
    }  # fmt: skip
