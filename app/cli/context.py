"""What commands have in common: access to the configured service, and output for people or for programs."""

from collections.abc import Callable
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

import click

from app.cli_common.context import ServiceContext, attribute_changes, pass_context
from app.config.api_settings import SyncEvents, sync_events
from app.manifest.document import Manifest
from app.manifest.plan import apply, make_plan, plan_json
from app.outbox import audit
from app.outbox.audit import AuditFilter, Entry
from app.outbox.delivery.dead_letters import DeadLetters
from app.outbox.delivery.event_states import RecordedEvent
from app.outbox.delivery.object_history import ObjectHistory, find_event, object_history
from app.outbox.delivery.replays import Replays
from app.outbox.delivery.retries import Retries
from app.outbox.reconcile.requests import RunRequests
from app.outbox.registry import Registry

if TYPE_CHECKING:
    from app.cli.api_client import ApiClient
    from app.cli.api_client_log import RemoteDeadLetters, RemoteReplays, RemoteRetries
    from app.cli.api_client_runs import RemoteReconciliations

R = TypeVar("R")


class CommandContext(ServiceContext):
    """The service that a command works on: this one, or the one at `--url`."""

    def __init__(self, *, as_json: bool = False, url: str = "", token: str = "") -> None:
        super().__init__(as_json=as_json)
        self._url, self._token = url, token

    @cached_property
    def remote(self) -> "ApiClient | None":
        """The service at `--url`, None without one. Raises `CommandError`."""
        if not self._url:
            return None
        from app.cli.api_client import ApiClient  # noqa: PLC0415 - loads requests, which commands on the database do not need

        return ApiClient(self._url, self._token)

    @property
    def chosen(self) -> "Registry | ApiClient":
        """The targets and rules, at `--url` or in the outbox."""
        return self.remote or self.registry

    @property
    def dead_letters(self) -> "DeadLetters | RemoteDeadLetters":
        """The dead letters, at `--url` or in the outbox."""
        if self.remote is None:
            return DeadLetters(self.database)
        from app.cli.api_client_log import RemoteDeadLetters  # noqa: PLC0415 - as `remote`

        return RemoteDeadLetters(self.remote)

    @property
    def replays(self) -> "Replays | RemoteReplays":
        """The replays, at `--url` or in the outbox."""
        if self.remote is None:
            return Replays(self.database)
        from app.cli.api_client_log import RemoteReplays  # noqa: PLC0415 - as `remote`

        return RemoteReplays(self.remote)

    @property
    def retries(self) -> "Retries | RemoteRetries":
        """The retried events, at `--url` or in the outbox."""
        if self.remote is None:
            return Retries(self.database)
        from app.cli.api_client_log import RemoteRetries  # noqa: PLC0415 - as `remote`

        return RemoteRetries(self.remote)

    @property
    def reconciliations(self) -> "RunRequests | RemoteReconciliations":
        """The reconciliations, at `--url` or in the outbox."""
        if self.remote is None:
            return RunRequests(self.database, self.registry)
        from app.cli.api_client_runs import RemoteReconciliations  # noqa: PLC0415 - as `remote`

        return RemoteReconciliations(self.remote)

    def history(self, bucket: str, key: str, limit: int) -> list[RecordedEvent]:
        """Return an object's last events, oldest first, at `--url` or in the outbox; reads page by page."""
        events: list[RecordedEvent] = []
        after: int | None = 0
        while after is not None and len(events) < limit:
            page = self._history(bucket, key, limit - len(events), after)
            events, after = [*page.events, *events], page.next
        return events

    def _history(self, bucket: str, key: str, limit: int, after: int) -> ObjectHistory:
        if self.remote is None:
            return object_history(self.database, bucket, key, limit=limit, after=after)
        from app.cli import api_client_log  # noqa: PLC0415 - as `remote`

        return api_client_log.object_history(self.remote, bucket, key, limit=limit, after=after)

    def event(self, event_id: str) -> RecordedEvent | None:
        """Return an event with the attempts at it, at `--url` or in the outbox; None if the log does not have it."""
        if self.remote is None:
            return find_event(self.database, event_id)
        from app.cli import api_client_log  # noqa: PLC0415 - as `remote`

        return api_client_log.find_event(self.remote, event_id)

    def audit(self, which: AuditFilter, action: str, limit: int) -> list[Entry]:
        """Return the last `limit` entries of the audit log, newest first, at `--url` or in the outbox.

        `action` is the word that the filter's actions are the meaning of.
        """
        if self.remote is None:
            return audit.entries(self.database, which, limit=limit)
        from app.cli import api_client_log  # noqa: PLC0415 - as `remote`

        return api_client_log.audit_entries(self.remote, which, action, limit=limit)

    @property
    def sync_events(self) -> SyncEvents:
        """Whether targets that do not set `sync` are in sync mode, and what decides it, at `--url` or here."""
        if self.remote:
            return self.remote.sync_events
        return sync_events(self.settings.sync_events, self.registry.api_settings())

    @property
    def region(self) -> str:
        """The region in ARNs."""
        return self.remote.region if self.remote else self.settings.region

    def apply(
        self,
        document: Manifest,
        *,
        dry_run: bool = False,
        prune: bool = False,
        force: bool = False,
        lenient: bool = False,
    ) -> dict[str, Any]:
        """Apply a document, or only plan it; return the plan. Raises `BadSettings` or `TargetInUse`."""
        if self.remote:
            return self.remote.apply(document, dry_run=dry_run, prune=prune, force=force, lenient=lenient)
        if dry_run:
            return plan_json(make_plan(self.registry, document, prune=prune, lenient=lenient))
        return plan_json(apply(self.registry, document, prune=prune, force=force, lenient=lenient))

    def close(self) -> None:
        """Close the database and the connection, if open."""
        if self.__dict__.get("remote"):
            self.__dict__["remote"].close()
        super().close()


with_context = pass_context(CommandContext)


def with_context_or_url(function: Callable[..., R]) -> Callable[..., R]:
    """Decorate as `with_context` does, and add `--url` and `--token` to use a remote service."""

    @click.option("--url", envvar="BUCKETWIRE_URL", default="", help="Use the API at this URL instead of the database.")
    @click.option(
        "--token", envvar="BUCKETWIRE_TOKEN", default="", help="Bearer token for --url; prefer BUCKETWIRE_TOKEN."
    )
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.pass_context
    def command(
        click_context: click.Context, /, *arguments: Any, as_json: bool, url: str, token: str, **options: Any
    ) -> R:
        context = CommandContext(as_json=as_json, url=url, token=token)
        click_context.call_on_close(context.close)
        attribute_changes(click_context)
        return function(context, *arguments, **options)

    return update_wrapper(command, function)
