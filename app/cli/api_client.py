"""A service somewhere else, over its HTTP API: what the registry does here, with an address and a token."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any
from urllib.parse import quote

import httpx

from app.cli_common.errors import CommandError
from app.config.arn import TargetId, parse_arn
from app.config.target_settings import redacted
from app.manifest.document import Manifest
from app.outbox.registry import StoredRule, StoredTarget, UnknownTarget
from app.rules.model import Rule

_TIMEOUT = 60  # seconds: a database that is away is told after ten


class ApiClient:
    """Targets and rules of the service at a URL. Secrets are not to be had: they are read as `*redacted*`.

    Every method raises `CommandError` in the service's own words, `UnknownTarget` where there is no such target.
    """

    def __init__(self, url: str, token: str = "") -> None:
        if not token.isascii() or any(not char.isprintable() or char == " " for char in token):
            raise CommandError("the token cannot be used: it has characters that no token has")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            self._client = httpx.Client(base_url=url, headers=headers, timeout=_TIMEOUT)
        except (httpx.InvalidURL, ValueError):
            raise CommandError(f"{url!r} cannot be used; write --url http://host:8730") from None
        self._url = url

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    @cached_property
    def described(self) -> list[dict[str, Any]]:
        """Every target as `GET /v1/targets` shows it, its counters included; asked for once."""
        found: list[dict[str, Any]] = self.ask("GET", "/v1/targets")["targets"]
        return found

    @property
    def region(self) -> str:
        """The region in the service's ARNs."""
        return parse_arn(self.described[0]["arn"])[0] if self.described else ""

    def targets(self) -> list[StoredTarget]:
        """Every target, in order of type and name."""
        return [_stored(each) for each in self.described]

    def target(self, target: TargetId) -> StoredTarget:
        """One target."""
        return _stored(self.ask("GET", _path(target), target=target))

    def texts(self, stored: StoredTarget) -> dict[str, str]:
        """A target's settings as texts, secrets left out."""
        return redacted(stored.target.type, stored.values)

    def remove(self, target: TargetId, *, force: bool = False) -> list[str]:
        """Delete a target; says what was lost with it."""
        params = {"force": "true"} if force else None
        lost: list[str] = self.ask("DELETE", _path(target), target=target, params=params)["lost"]
        return lost

    def pause(self, target: TargetId, reason: str) -> None:
        """Deliver nothing to it until it is resumed."""
        self.ask("POST", f"{_path(target)}/pause", target=target, json={"reason": reason})

    def resume(self, target: TargetId) -> None:
        """End a pause."""
        self.ask("POST", f"{_path(target)}/resume", target=target, json={})

    def rules(self, bucket: str | None = None) -> list[StoredRule]:
        """Every rule, or those of one bucket."""
        params = {} if bucket is None else {"bucket": bucket}
        return [_rule(each) for each in self.ask("GET", "/v1/rules", params=params)["rules"]]

    def add_rule(self, rule: Rule) -> int:
        """Store a rule and say its number."""
        return int(self.ask("POST", "/v1/rules", json=_rule_json(rule))["number"])

    def remove_rules(self, row_ids: Sequence[int]) -> int:
        """Remove rules by number, one after the other."""
        for number in row_ids:
            self.ask("DELETE", f"/v1/rules/{number}")
        return len(row_ids)

    def apply(self, document: Manifest, *, dry_run: bool, prune: bool, force: bool) -> dict[str, Any]:
        """Make targets and rules as declared, or only plan it."""
        flags = {"dry_run": dry_run, "prune": prune, "force": force}
        body = {
            "targets": {str(target): dict(values) for target, values in document.targets.items()},
            "rules": [{"id" if name == "rule_id" else name: value for name, value in _rule_json(rule).items()}
                      for rule in document.rules],
        }  # fmt: skip
        params = {name: "true" for name, given in flags.items() if given}
        found: dict[str, Any] = self.ask("POST", "/v1/declaration", params=params, json=body)
        return found

    def ask(self, method: str, path: str, *, target: TargetId | None = None, **options: Any) -> Any:
        """One request; the JSON of its answer. A target that is said to be unknown is `target`, where it is given."""
        try:
            answer = self._client.request(method, path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(f"{self._url} does not answer: {error or type(error).__name__}") from None
        if answer.is_success:
            return answer.json() if answer.content else None
        try:
            problem = answer.json()
            kind, detail = str(problem["type"]).rpartition(":")[2], str(problem["detail"])
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"{self._url} answers {answer.status_code} and is no Bucketwire") from None
        if kind == "unknown-target" and target is not None:
            raise UnknownTarget(target)
        hint = "; give one that holds by BUCKETWIRE_TOKEN or --token" if answer.status_code in (401, 403) else ""
        raise CommandError(detail + hint)


def _path(target: TargetId) -> str:
    return f"/v1/targets/{quote(target.type, safe='')}/{quote(target.name, safe='')}"


def _stored(shown: dict[str, Any]) -> StoredTarget:
    state = shown["state"]
    return StoredTarget(
        row_id=0,
        target=TargetId(shown["type"], shown["name"]),
        values=shown["settings"],
        origin=shown["origin"],
        problem=shown["reason"] if state == "broken" else "",
        enabled=state != "disabled",
        paused=state == "paused",
        breaker="open" if state == "unavailable" else "closed",
        failures=0,
        resume_at=0,
        reason=shown["reason"],
    )


def _rule(shown: dict[str, Any]) -> StoredRule:
    rule = Rule(
        bucket=shown["bucket"],
        events=tuple(shown["events"]),
        target=parse_arn(shown["target"])[1],
        prefix=shown["prefix"],
        suffix=shown["suffix"],
        rule_id=shown["rule_id"],
    )
    return StoredRule(shown["number"], rule)


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "bucket": rule.bucket, "events": list(rule.events), "target": str(rule.target), "prefix": rule.prefix,
        "suffix": rule.suffix, "rule_id": rule.rule_id,
    }  # fmt: skip
