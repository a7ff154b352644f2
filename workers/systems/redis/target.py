"""Redis: a hash that mirrors the buckets, or a list or a stream that records every event (reference §4.9).

Delivered means: Redis answered the command that carried the event, or the transaction around it; with `wait_replicas`,
that many replicas have it too. All commands are about one key, which a Cluster has on one node.

A call is one round trip for up to `BATCH_EVENTS` events: one HSET with many fields, one HDEL, one script call that
removes fields only if they hold a given version; one RPUSH; or an XADD for each event. With `window == 1` several
commands are sent as one MULTI/EXEC, and those of a stream always are, so that no entry is missing before a later one. A
field that is written more than once in a portion is written once, with its last document; no client could have read the
others.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from app.config.targets.redis import RedisSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Unavailable
from workers.systems.redis.connection import (
    Commands,
    RedisServers,
    answers_to,
    check_answer,
    describe_error,
    describe_servers,
    is_about_the_key,
    is_about_the_server,
)
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch, grouped, places
from workers.targets.messages import Write, entry_format, shaped
from workers.targets.payloads import change, collapse, log, redis_access, runs
from workers.targets.sockets import Deadline
from workers.targets.tcp import Endpoint

# A command must not keep Redis busy for long, nor come near its limit of 1 GB for a client's query buffer.
BATCH_EVENTS = 5_000
BATCH_CHARACTERS = 8_000_000
_KINDS = {"namespace": "hash", "access": "list", "stream": "stream"}  # of key, by format


class _TooFewReplicas(RedisError):
    """The server has the events, but not as many replicas as were asked for."""


class RedisTarget:
    """One key of one Redis server, Sentinel's master or Cluster; one connection."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._servers = RedisServers(settings)
        minio = log if settings.format == "stream" else shaped(redis_access, settings.access_shape)
        self._write_entry = entry_format(settings, minio)
        self._where = describe_servers(settings)
        self._client: redis.Redis | None = None

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the server, each Sentinel or each node."""
        context = tls.context_maker(self._settings)
        return [Endpoint(place, context) for place in self._settings.places]

    def open(self) -> None:
        """Connect, log in, name the connection, and check that the key is unused or of the right type."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver in portions; after a portion that finds Redis unavailable, send nothing more."""
        client = self._client or self._connect()
        batch = Batch(events, lease)
        keys = places(self._settings.key, batch)
        for request in self._requests(batch, keys, window):
            chosen = batch.begin(request)
            some = [events[index] for index in chosen]
            outcomes = self._deliver(client, some, [keys[index] for index in chosen], transaction=window == 1)
            for index, outcome in zip(chosen, outcomes, strict=True):
                batch.settle(index, outcome)
        return batch.outcomes()

    def _requests(self, batch: Batch, keys: Sequence[str], window: int) -> Iterator[Sequence[int]]:
        """Yield the indexes of the events of each round trip, of which with a template each has its key in `keys`."""
        events, template = batch.events, self._settings.key
        if template.fixed is not None:
            yield from _portions(events, range(len(events)))
            return
        for run in runs(events, keys) if template.varies else [batch.unsettled()]:
            if window > 1:
                yield from _portions(events, run)
            else:  # a request may carry several events only if they are confirmed as one
                for one in grouped(run, keys).values():
                    yield from _portions(events, one)

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(RedisError, OSError):
                client.connection_pool.disconnect()

    def _connect(self) -> redis.Redis:
        self.close()
        client = None
        with Deadline(self._settings.timeout) as limit:
            try:
                client = self._servers.connect()
                kind = self._held_by_key(client)
            except (RedisError, OSError) as error:
                if client is not None:
                    client.connection_pool.disconnect()
                raise TargetUnavailable(self._reason(self._no_answer() if limit.expired else error)) from error
        needed = _KINDS[self._settings.format]
        if kind not in ("none", needed):
            client.connection_pool.disconnect()
            raise TargetUnavailable(
                f"{self._where}: key {self._settings.key!r} holds a {kind}, but format {self._settings.format} "
                f"needs a {needed}; choose another key or remove this one"
            )
        self._client = client
        return client

    def _held_by_key(self, client: redis.Redis) -> str:
        """Return the kind of what the key holds; `none` for a template, whose keys are checked when written to."""
        if self._settings.key.fixed is None:
            _command(client, "PING")
            return "none"
        kind = client.type(self._settings.key.fixed)
        return kind.decode() if isinstance(kind, bytes) else str(kind)

    def _deliver(
        self, client: redis.Redis, events: Sequence[Event], keys: Sequence[str], *, transaction: bool
    ) -> list[Outcome]:
        if not events:
            return []
        with Deadline(self._settings.timeout) as limit:
            try:
                outcomes = self._write(client, events, keys, transaction=transaction)
            except (RedisError, OSError) as error:
                outcomes = [self._outcome(self._no_answer() if limit.expired else error)] * len(events)
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            self.close()  # the key may be on another server by now
        return outcomes

    def _write(
        self, client: redis.Redis, events: Sequence[Event], keys: Sequence[str], *, transaction: bool
    ) -> list[Outcome]:
        """Write a portion. Raises `RedisError` and `OSError` if its events share one outcome."""
        chosen = self._settings
        outcomes: list[Outcome] = [DELIVERED] * len(events)
        if chosen.key.fixed is None:
            outcomes = self._append_to_each(client, events, keys)
        elif chosen.format == "namespace":
            outcomes = self._mirror(client, events, transaction=transaction)
        else:
            answers = self._run(client, self._appending(chosen.key.fixed, events), transaction=True)
            outcomes = answers if len(answers) == len(events) else answers * len(events)
        if self._settings.wait_replicas:
            self._wait_for_replicas(client, self._settings.wait_replicas)
        return outcomes

    def _wait_for_replicas(self, client: redis.Redis, needed: int) -> None:
        """Return when so many replicas have everything that was written. Raises `RedisError`."""
        # The server answers a little before we stop waiting for it, with the number that it has reached.
        patience = max(1, round(self._settings.timeout * 800))
        try:
            reached = _command(client, "WAIT", needed, patience)
        except ResponseError as error:
            if is_about_the_server(error):
                raise
            raise _TooFewReplicas(str(error)) from error  # it is a replica by now, which is no event's fault
        check_answer(["WAIT"], reached)
        if reached < needed:
            raise _TooFewReplicas(f"{reached} replicas have the events, {needed} are asked for (wait_replicas)")

    def _mirror(self, client: redis.Redis, events: Sequence[Event], *, transaction: bool) -> list[Outcome]:
        """Write the namespace; a path's outcome is that of its command (collapsed, a path is in one command only)."""
        commands = namespace_commands(self._settings.key, events)
        answers = self._run(client, [command.words for command in commands], transaction=transaction)
        if all(answer is DELIVERED for answer in answers):
            return [DELIVERED] * len(events)
        settled = {path: answer for command, answer in zip(commands, answers, strict=True) for path in command.paths}
        return [settled.get(event.path, DELIVERED) for event in events]

    def _append_to_each(self, client: redis.Redis, events: Sequence[Event], keys: Sequence[str]) -> list[Outcome]:
        """Append each event to its key, in one round trip; the entries of a key are written all or not at all."""
        groups = grouped(range(len(events)), keys)
        outcomes: list[Outcome] = [DELIVERED] * len(events)
        commands = [self._appending(key, [events[index] for index in indexes]) for key, indexes in groups.items()]
        answers = _round_trip(client, commands, transaction=True)
        for (key, indexes), some in zip(groups.items(), answers, strict=True):
            if error := next((each for each in some if isinstance(each, Exception)), None):
                outcome = self._outcome_of_key(key, error)
                for index in indexes:
                    outcomes[index] = outcome
        return outcomes

    def _appending(self, key: str, events: Sequence[Event]) -> Commands:
        """Return the commands that append the events to this list or stream."""
        chosen = self._settings
        if chosen.format == "stream":
            made = stream_commands(key, events, self._write_entry, chosen.max_entries)
            return [command.words for command in made]
        return [["RPUSH", key, *map(self._write_entry, events)]]

    def _outcome_of_key(self, key: str, error: Exception) -> Outcome:
        """Return the outcome of the events of one key of a template: what the key alone is refused for is theirs."""
        if is_about_the_key(error):
            return Failed(f"{self._reason(error)}: key {key!r}")
        return self._outcome(error)

    def _run(self, client: redis.Redis, commands: Commands, *, transaction: bool) -> list[Outcome]:
        """Make one round trip; return an outcome per command. Raises `RedisError` if they share one answer."""
        if not commands:
            return []
        (answers,) = _round_trip(client, [commands], transaction=transaction)
        return [self._outcome(answer) if isinstance(answer, Exception) else DELIVERED for answer in answers]

    def _outcome(self, error: Exception) -> Outcome:
        if not is_about_the_server(error):
            return Failed(self._reason(error))
        lost = isinstance(error, RedisConnectionError | RedisTimeoutError | OSError)
        return Unavailable(self._reason(error), may_arrive=lost)

    def _no_answer(self) -> RedisTimeoutError:
        return RedisTimeoutError(f"no answer within {self._settings.timeout:g} s")

    def _reason(self, error: Exception) -> str:
        return f"{self._where}: {describe_error(error)}"


def _round_trip(client: redis.Redis, groups: Sequence[Commands], *, transaction: bool) -> list[list[Any]]:
    """Send groups of commands, with `transaction` each as one; return the answers to each, some of which may be errors.

    Raises `RedisError` and `OSError` if no answer can be trusted.
    """
    asked = [[["MULTI"], *group, ["EXEC"]] if transaction and len(group) > 1 else group for group in groups]
    with client.pipeline(transaction=False) as pipeline:
        for words in chain.from_iterable(asked):
            _command(pipeline, *words)
        answers = iter(pipeline.execute(raise_on_error=False))
    pairs = zip(groups, asked, strict=True)
    return [answers_to(group, list(islice(answers, len(sent)))) for group, sent in pairs]


def _command(client: redis.Redis, *words: Any) -> Any:
    return client.execute_command(*words)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


def _portions(events: Sequence[Event], indexes: Sequence[int]) -> Iterator[Sequence[int]]:
    start = characters = 0
    for place, index in enumerate(indexes):
        size = len(events[index].record)
        if place > start and (place - start == BATCH_EVENTS or characters + size > BATCH_CHARACTERS):
            yield indexes[start:place]
            start, characters = place, 0
        characters += size
    yield indexes[start:]


# KEYS: the hash; ARGV: path, version, path, version, ... Values that are not JSON were written by others and stay.
_REMOVE_VERSIONS = """
local removed = 0
for i = 1, #ARGV, 2 do
  local value = redis.call('HGET', KEYS[1], ARGV[i])
  local read, document = pcall(cjson.decode, value or '')
  if read then
    local is_record, version = pcall(function() return document.Records[1].s3.object.versionId end)
    if is_record then
      if version == nil or version == cjson.null or version == '' then version = 'null' end
      if version == ARGV[i + 1] then removed = removed + redis.call('HDEL', KEYS[1], ARGV[i]) end
    end
  end
end
return removed
"""


class Command(NamedTuple):
    """The words of a command, and the paths of the objects that it is about."""

    words: list[Any]
    paths: Iterable[str]


def namespace_commands(key: str, events: Sequence[Event]) -> list[Command]:
    """Return the commands that leave the hash as the events, applied one after the other, would."""
    rows = collapse(change(event, "namespace") for event in events)
    commands = []
    if rows.documents:
        commands.append(Command(["HSET", key, *chain.from_iterable(rows.documents.items())], rows.documents))
    if rows.removed:
        commands.append(Command(["HDEL", key, *rows.removed], rows.removed))
    if rows.versions:
        words = ["EVAL", _REMOVE_VERSIONS, 1, key, *chain.from_iterable(rows.versions)]
        commands.append(Command(words, [path for path, _ in rows.versions]))
    return commands


def stream_commands(key: str, events: Sequence[Event], write: Write, max_entries: int) -> list[Command]:
    """Return the commands that append the events to the stream; the last one has it trimmed."""
    trim = ["MAXLEN", "~", max_entries] if max_entries else []
    return [
        Command(
            ["XADD", key, *(trim if place == len(events) else ()), "*", *chain.from_iterable(_fields(event, write))],
            [event.path],
        )
        for place, event in enumerate(events, 1)
    ]


def _fields(event: Event, write: Write) -> Iterable[tuple[str, str]]:
    """Return what an entry of a stream consists of."""
    return (
        ("id", event.id),
        ("event", event.name),
        ("bucket", event.bucket),
        ("key", event.key),
        ("body", write(event)),
    )
