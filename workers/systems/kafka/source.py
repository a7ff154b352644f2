"""Kafka: every partition of a topic, read by one consumer that is a member of no group.

A share is a partition, and its position the offset of the next message, with the leader epoch of the last one. The
outbox has the positions; their offsets are also committed to the group of the settings, so that Kafka's own tools show
the lag, but they are never read from there. So there is no rebalance, and a group that cannot be written to does not
matter.

A partition that is added to the topic is read from its beginning. Where the messages after a position have been removed
by the topic's retention, it begins with the oldest one that there is, and says how many were lost.

A partition may lose its last messages, if a replica without them becomes its leader, or with its broker's disk. Others
get their offsets then. The leader says at which offset the messages of an epoch end (KIP-320): where that is before the
position, the source goes on from there, and says so. Where the epoch is unknown, as of Kafka before 2.1 and of messages
in the formats before that of 0.11, the loss is noticed only while the partition is shorter than the position, and then
it is read from its beginning.

A topic that is deleted and made again has another id, which is stored beside the positions. It is read from its
beginning, however long it is. Kafka before 2.8 has no ids.

A compressed batch of 1 MB may unpack to gigabytes, a record may claim millions of headers, and a set of messages may
have sizes that lie. kafka-python would fill the memory, or find the same error at the same offset forever. So to import
this module has it read batches within limits: one that cannot be read, or the rest of it, is a single record whose
value is `Unreadable`.
"""

import struct
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from kafka import KafkaConsumer, TopicPartition, codec
from kafka.errors import (
    CorruptRecordError,
    IncompatibleBrokerVersion,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    UnknownTopicOrPartitionError,
    for_code,
)
from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.consumer import OffsetForLeaderEpochRequest
from kafka.record import default_records, legacy_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.legacy_records import LegacyRecord, LegacyRecordBatch
from kafka.structs import OffsetAndMetadata

from app.config.sources.kafka import KafkaSourceSettings
from app.events.limits import NotUnpacked, unpacked
from app.events.parsing import KEY_HEADER, Message
from workers.sources.base import AnyText, Opened, SourceChanged, SourceUnavailable, parses_position
from workers.systems.kafka.client import Client, connection_config, describe_error
from workers.targets.base import TargetUnavailable
from workers.targets.sockets import MAX_MESSAGE_BYTES

_FETCH_BYTES, _PARTITION_BYTES = 1 << 24, 1 << 22  # of one answer, and of each partition in it; a message may have more
_METADATA_SECONDS = 10.0  # after which a new partition is noticed
_COMMIT_SECONDS = 1.0  # between two commits to the group, which only show the position
_TOPIC_ID = "topic id"  # the share whose position is no offset, but says of which topic the others are
_BEGINNING = "0"
_TOPIC, _POLICY = 2, "cleanup.policy"  # as DescribeConfigs names the kind of resource, and the setting


class Position(NamedTuple):
    """The offset of the next message, and the leader epoch of the last one; -1 if unknown."""

    next: int
    epoch: int = -1

    def __str__(self) -> str:
        return str(self.next) if self.epoch < 0 else f"{self.next}:{self.epoch}"


@parses_position
def read_position(text: str) -> Position:
    """Parse a position."""
    return Position(*map(int, text.split(":")))


class KafkaSource:
    """One topic, one consumer."""

    def __init__(self, settings: KafkaSourceSettings) -> None:
        self._settings = settings
        self._where = f"Kafka topic {settings.topic} at {settings.brokers}"
        self._consumer: Any = None
        self._client: Client | None = None
        self._partitions: list[TopicPartition] = []
        self._topic_id = ""  # as it was when the source was opened
        self._next: dict[TopicPartition, Position] = {}  # of the next message to pull
        self._taken: dict[TopicPartition, int] = {}  # that are to be committed to the group
        self._committed_at = 0.0

    def open(self, positions: Mapping[str, str]) -> Opened:
        """Connect, and read every partition from its position on."""
        self.close()
        try:
            self._consumer = KafkaConsumer(kafka_client=self._begun, **self._config())
            # The library would fetch nothing while the group has no coordinator; partitions are assigned without one.
            self._consumer._coordinator.poll = _coordinate_nothing
            self._partitions = self._find_partitions()
            self._topic_id = self._read_topic_id()
            oldest, ends = self._bounds()
            opened = replace(self._begin(positions, oldest, ends), risks=self._find_risks())
            self._consumer.assign(self._partitions)
            for partition, position in self._next.items():  # the consumer's own `seek` takes no epoch
                self._consumer._subscription.seek(partition, OffsetAndMetadata(position.next, "", position.epoch))
        except (KafkaError, OSError, ValueError, TargetUnavailable) as error:
            reason = self._reason(error)
            self.close()
            raise SourceUnavailable(reason) from error
        except BaseException:
            self.close()
            raise
        return opened

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        """Return the next messages of the partitions that have some."""
        try:
            if len(self._consumer.partitions_for_topic(self._settings.topic)) > len(self._partitions):
                raise SourceChanged
            if self._read_topic_id() not in (self._topic_id, ""):
                raise SourceChanged
            records = self._consumer.poll(timeout_ms=round(seconds * 1000), max_records=most)
        except LogTruncationError as error:
            raise SourceChanged from error
        except (KafkaError, OSError, ValueError) as error:
            raise SourceUnavailable(self._reason(error)) from error
        if not records and self._client is not None and self._client.last_error is not None:
            self.lag()  # the consumer goes on trying without a word
            self._client.last_error = None
        messages = [_message(partition, record) for partition, some in records.items() for record in some]
        for partition, some in records.items():
            self._next[partition] = Position(some[-1].offset + 1, some[-1].leader_epoch)
        try:
            return messages + self._gaps()
        except LogTruncationError as error:
            raise SourceChanged from error
        except (KafkaError, OSError, ValueError) as error:
            raise SourceUnavailable(self._reason(error)) from error

    def _gaps(self) -> list[Message]:
        """Move past what is no message: markers of transactions, and what compaction has removed.

        Otherwise Kafka's retention of these would look like that of messages which nobody has pulled.
        """
        gaps = []
        for partition in self._partitions:
            offset = self._consumer.position(partition, timeout_ms=0)
            if offset is not None and offset > self._next[partition].next:
                epoch = self._consumer._subscription.assignment[partition].position.leader_epoch
                position = self._next[partition] = Position(offset, epoch)
                gaps.append(Message(b"", str(partition.partition), str(position), is_gap=True))
        return gaps

    def commit(self, messages: Sequence[Message]) -> None:
        """Show the position to Kafka's tools, once a second at most; whether that is possible does not matter.

        What is not shown yet is with a later call, also one without messages.
        """
        for message in messages:
            self._taken[TopicPartition(self._settings.topic, int(message.share))] = read_position(message.position).next
        if self._taken and time.monotonic() >= self._committed_at + _COMMIT_SECONDS:
            self._committed_at = time.monotonic()
            offsets = {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in self._taken.items()}
            self._taken = {}
            try:
                self._consumer.commit_async(offsets)
            except (KafkaError, OSError, ValueError):
                return

    def lag(self) -> int:
        """Return how many messages the partitions have after their positions."""
        try:
            _, ends = self._bounds()
        except (KafkaError, OSError, ValueError) as error:
            raise SourceUnavailable(self._reason(error)) from error
        return sum(max(0, end - self._next[partition].next) for partition, end in ends.items())

    def close(self) -> None:
        """Close the consumer and its thread."""
        consumer, self._consumer = self._consumer, None
        client, self._client = self._client, None
        self._taken, self._committed_at = {}, 0.0
        with suppress(KafkaError, OSError, ValueError):
            if consumer is not None:
                consumer.close(autocommit=False, timeout_ms=1000)
            elif client is not None:
                client.close()

    def _config(self) -> dict[str, Any]:
        return {
            **connection_config(self._settings),
            "group_id": self._settings.group,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "allow_auto_create_topics": False,
            "isolation_level": "read_committed",  # what a producer has taken back is not recorded
            "fetch_max_wait_ms": 250,
            "fetch_max_bytes": _FETCH_BYTES,
            "max_partition_fetch_bytes": _PARTITION_BYTES,
            "metadata_max_age_ms": round(_METADATA_SECONDS * 1000),
        }

    def _begun(self, **given: Any) -> Client:
        self._client = Client(level=0, patience=self._settings.timeout, **given)
        self._client.begin()
        return self._client

    def _find_partitions(self) -> list[TopicPartition]:
        topic = self._settings.topic
        numbers = sorted(self._consumer.partitions_for_topic(topic))
        if not numbers:
            raise SourceUnavailable(f"{self._where}: the topic is not there; create it, or let the user describe it")
        return [TopicPartition(topic, number) for number in numbers]

    def _read_topic_id(self) -> str:
        """Return the id that the cluster said last; empty if it has none, or no such topic."""
        found = self._client.cluster.topic_id(self._settings.topic) if self._client else None
        return str(found) if found and found.int else ""

    def _bounds(self) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        milliseconds = round(self._settings.timeout * 1000)
        try:
            ends = self._consumer.end_offsets(self._partitions, timeout_ms=milliseconds)
            return self._consumer.beginning_offsets(self._partitions, timeout_ms=milliseconds), ends
        except KeyError as error:  # the library expects that each has one
            raise UnknownTopicOrPartitionError(f"{error} is not there") from error

    def _find_risks(self) -> Sequence[str]:
        """Return whether messages between others are removed; nothing if the login may not see the topic's settings."""
        if self._client is None:
            return ()
        asked = (_TOPIC, self._settings.topic, [_POLICY])
        request = DescribeConfigsRequest(resources=[asked], include_synonyms=False, min_version=0)
        with suppress(KafkaError, OSError, ValueError):
            answer = self._client.ask(request, self._settings.timeout)
            policies = [one.value or "" for topic in answer.results for one in topic.configs if one.name == _POLICY]
            if "compact" in ",".join(policies).split(","):
                kept = "of each message key Kafka keeps only the last message, and the removal of others is not noticed"
                return [f"the topic has {_POLICY}=compact: {kept}; set {_POLICY}=delete"]
        return ()

    def _begin(
        self, positions: Mapping[str, str], oldest: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> Opened:
        """Decide where each partition begins."""
        lost = []
        known = dict(positions)
        at_end = self._settings.start == "latest" and not positions
        if self._topic_id and known.setdefault(_TOPIC_ID, self._topic_id) != self._topic_id:
            lost.append("the topic was made again; it is pulled from its beginning")
            known = dict.fromkeys(known, _BEGINNING) | {_TOPIC_ID: self._topic_id}  # also of partitions that are gone
        stored = {
            each: read_position(known[share]) for each in self._partitions if (share := str(each.partition)) in known
        }
        cut = self._find_cut(stored)
        self._next = {}
        for partition in self._partitions:
            share, first, end = str(partition.partition), oldest[partition], ends[partition]
            begin = stored.get(partition, Position(end if at_end else first))
            if partition in cut:
                pulled, begin = begin, max(cut[partition], Position(first))
                lost.append(
                    f"partition {share} has lost its messages from offset {begin.next} on, up to {pulled.next} it was"
                    f" pulled: a replica without them became its leader, or it was restored; it is pulled from there"
                )
            elif begin.next < first:
                lost.append(f"{first - begin.next} messages of partition {share} were removed before they were pulled")
                begin = Position(first)
            elif begin.next > end:
                lost.append(
                    f"partition {share} ends at {end}, before {begin.next}, up to which it was pulled: the topic was"
                    f" made again or has lost messages; it is pulled from its beginning"
                )
                begin = Position(first)
            self._next[partition] = begin
            known[share] = str(begin)
        return Opened({share: place for share, place in known.items() if place != positions.get(share)}, lost)

    def _find_cut(self, stored: Mapping[TopicPartition, Position]) -> Mapping[TopicPartition, Position]:
        """Return where the leaders' messages part from those that were pulled, of partitions that have lost some."""
        asked, cut = defaultdict[int, list[tuple[int, int, int]]](list), dict[TopicPartition, Position]()
        if self._client is None:
            return cut
        for partition, position in stored.items():
            if position.epoch >= 0:
                leader = self._client.cluster.leader_for_partition(partition)
                asked[leader].append((partition.partition, -1, position.epoch))
        for leader, epochs in asked.items():
            # Before version 2, of Kafka 2.1, it was for brokers alone, and the library's tuple would ask for epoch -1.
            request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[(self._settings.topic, epochs)], min_version=2)
            with suppress(IncompatibleBrokerVersion):
                found: dict[TopicPartition, Any] = {}
                for topic in self._client.ask(request, self._settings.timeout, leader).topics:
                    found |= {TopicPartition(topic.topic, answer.partition): answer for answer in topic.partitions}
                for number, _, _ in epochs:
                    partition = TopicPartition(self._settings.topic, number)
                    if partition not in found:
                        raise KafkaError(f"the broker does not say where the epochs of partition {number} end")
                    answer = found[partition]
                    if answer.error_code:
                        raise for_code(answer.error_code)
                    if answer.end_offset < stored[partition].next:  # -1: no such epoch
                        cut[partition] = Position(answer.end_offset, answer.leader_epoch)
        return cut

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, TargetUnavailable):
            return error.reason
        last_error = None if self._client is None else self._client.last_error
        if isinstance(error, KafkaTimeoutError) and last_error is None:
            return f"{self._where}: no answer within {self._settings.timeout:g} s"
        return f"{self._where}: {describe_error(error, last_error, sasl=self._settings.sasl)}"


def _coordinate_nothing(**_: Any) -> bool:
    return True


def _message(partition: TopicPartition, record: Any) -> Message:
    headers = {
        name.lower(): value.decode(errors="replace") for name, value in record.headers or () if value is not None
    }
    if record.key and record.key.startswith(b"/"):
        headers[KEY_HEADER] = record.key.decode(errors="replace")
    problem = ""
    if isinstance(record.value, Unreadable):
        problem = f"topic {partition.topic}, partition {partition.partition}: {record.value.problem}"
    return Message(
        body=record.value or b"",
        share=str(partition.partition),
        position=str(Position(record.offset + 1, record.leader_epoch)),
        headers=headers,
        sent_at=max(0, record.timestamp or 0),
        problem=problem,
    )


_XERIAL_HEADER_BYTES = 16
_MAX_NUMBERS = 20_000  # of variable length in one record: two for each header
_SMALL_BYTES = 1 << 20  # a batch that cannot have so many numbers that they matter
_MIN_MESSAGE_BYTES = 14  # of versions 0 and 1: checksum, version, attributes, and the sizes of key and value
_ERRORS = (CorruptRecordError, struct.error, AssertionError, EOFError, LookupError, OSError, RuntimeError,
           ValueError)  # fmt: skip


class Unreadable(bytes):
    """The value of a record that stands for a batch, or for the rest of one; `problem` says why it cannot be read."""

    problem: str

    def __new__(cls, problem: str) -> "Unreadable":
        """Return an empty value."""
        made = super().__new__(cls)
        made.problem = problem
        return made


class _Parts:
    """What is unpacked, of which there may be `MAX_MESSAGE_BYTES`."""

    def __init__(self) -> None:
        self.content = bytearray()

    @property
    def left(self) -> int:
        """How many bytes may follow, and one more, by which too much is noticed."""
        return MAX_MESSAGE_BYTES + 1 - len(self.content)

    def add(self, part: bytes, claimed: int = 0) -> None:
        """Add a part; before it is unpacked, it may be added by the size that it claims. Raises `ValueError`."""
        if max(len(part), claimed) >= self.left:
            raise ValueError(f"it unpacks to more than {MAX_MESSAGE_BYTES:,} bytes")
        self.content += part


def _gunzip(payload: Any) -> bytes:
    try:
        return b"".join(unpacked(payload, MAX_MESSAGE_BYTES))
    except NotUnpacked as error:
        raise ValueError(f"it {error}") from None


def _unsnap(payload: Any) -> bytearray:
    parts, data = _Parts(), bytes(payload)
    blocks = [data]
    if codec._detect_xerial_stream(data):
        blocks, at = [], _XERIAL_HEADER_BYTES
        while at < len(data):
            (size,) = struct.unpack_from("!i", data, at)
            if size < 0:
                raise ValueError("a block has a negative size")
            blocks.append(data[at + 4 : at + 4 + size])
            at += 4 + size
    for block in blocks:
        parts.add(b"", _snappy_size(block))  # the library takes the memory that the block claims
        parts.add(codec.snappy.decompress(block))
    return parts.content


def _snappy_size(block: bytes) -> int:
    size = 0
    for place, byte in enumerate(block[:5]):
        size |= (byte & 127) << (7 * place)
        if byte < 128:
            return size
    raise ValueError("a block does not say its size")


def _unlz4(payload: Any) -> bytearray:
    parts, rest = _Parts(), bytes(payload)
    while rest:
        stream = codec.lz4.LZ4FrameDecompressor()
        parts.add(stream.decompress(rest, parts.left))
        if not stream.eof:
            raise ValueError("the lz4 frame ends early")
        rest = stream.unused_data or b""
    return parts.content


def _unzstd(payload: Any) -> bytearray:
    parts = _Parts()
    with codec.zstd.ZstdDecompressor().stream_reader(bytes(payload), read_across_frames=True) as reader:
        while part := reader.read(min(parts.left, _SMALL_BYTES)):
            parts.add(part)
    return parts.content


def _read_record(batch: Any) -> Any:
    """Read the next record; the name of a header may be no UTF-8."""
    options = {} if len(batch._buffer) <= _SMALL_BYTES else {"decode_varint": _counting()}
    try:
        return _read_strictly(batch, **options)
    except UnicodeDecodeError:
        batch._buffer = AnyText(batch._buffer)
        return _read_strictly(batch, **options)


def _counting() -> Callable[..., Any]:
    """Return the function that reads a number of one record, which raises `ValueError` for too many."""
    left = _MAX_NUMBERS

    def decode(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left < 0:
            raise ValueError("a record has too many headers")
        return default_records.decode_varint(*arguments)

    return decode


def _records(batch: Any) -> Iterator[Any]:
    try:
        batch._maybe_uncompress()
        yield from iter(batch.__next__, _NOTHING)
    except _ERRORS as error:
        first, last = batch.base_offset + batch._next_record_index, batch.last_offset
        value = Unreadable(f"offsets {first} to {last} cannot be read: {error}")
        yield DefaultRecord(0, last, batch.max_timestamp, batch.timestamp_type, None, value, [])


def _messages(batch: Any) -> Iterator[Any]:
    try:
        yield from _read_legacy(batch)
    except _ERRORS as error:
        value = Unreadable(f"the messages up to offset {batch.base_offset} cannot be read: {error}")
        yield LegacyRecord(batch.magic, batch.base_offset, batch._timestamp, batch.timestamp_type, None, value, 0, b"")


def _decompress(batch: Any, key_offset: int) -> Any:
    """Unpack a set of messages, and follow its sizes: by a negative one the library would go round in circles."""
    content = _unpack_legacy(batch, key_offset)
    at = 0
    while at < len(content):
        (size,) = struct.unpack_from(">i", content, at + 8)
        if not _MIN_MESSAGE_BYTES <= size <= len(content) - at - batch.LOG_OVERHEAD:
            raise ValueError(f"a message claims {size} bytes")
        at += batch.LOG_OVERHEAD + size
    return content


_NOTHING = object()
_read_strictly = DefaultRecordBatch._read_msg
_read_legacy = LegacyRecordBatch.__iter__
_unpack_legacy = LegacyRecordBatch._decompress
DefaultRecordBatch._read_msg = _read_record
DefaultRecordBatch.__iter__ = _records
LegacyRecordBatch.__iter__ = _messages
LegacyRecordBatch._decompress = _decompress
codec.lz4_decode = _unlz4  # which that of old brokers calls
for _module in (default_records, legacy_records):
    _module.gzip_decode, _module.snappy_decode, _module.lz4_decode = _gunzip, _unsnap, _unlz4
default_records.zstd_decode = _unzstd
