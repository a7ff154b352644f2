"""A bucket that exists only as the events it would emit: what happened in it, and what it holds in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any
from urllib.parse import quote_plus

from tests.support.target_readers import Record

_FIRST = 0x18E9E833E5D35C00  # a sequencer: nanoseconds since 1970


@dataclass
class _Layer:
    """One version of a key, or a delete marker."""

    version: str
    record: Record | None


@dataclass
class Bucket:
    """Some keys, each with a life of its own; `versioned` as S3 has it. `number` sets its events apart from others'."""

    name: str
    number: int
    keys: int
    versioned: bool
    rng: Random
    _stacks: dict[str, list[_Layer]] = field(default_factory=dict)
    _made: int = 0

    def next(self) -> Record:
        """Something happens to some key."""
        key = f"some folder/{self.number}+{self.rng.randrange(self.keys)}.txt"
        stack = self._stacks.setdefault(key, [])
        return self._change_versions(key, stack) if self.versioned else self._change(key, stack)

    def rows(self) -> dict[str, Record]:
        """What the bucket holds: path to the record of the event that made the object."""
        tops = {f"{self.name}/{key}": stack[-1].record for key, stack in self._stacks.items() if stack}
        return {path: record for path, record in tops.items() if record is not None}

    def _change(self, key: str, stack: list[_Layer]) -> Record:
        choice = self.rng.random()
        if not stack or choice < 0.6:
            record = self._record("s3:ObjectCreated:Put", key)
            stack[:] = [_Layer("", record)]
            return record
        if choice < 0.8:
            stack.clear()
            return self._record("s3:ObjectRemoved:Delete", key)
        made = stack[-1].record
        assert made is not None
        name = self.rng.choice(["s3:ObjectAccessed:Head", "s3:ObjectCreated:PutTagging"])
        return self._record(name, key, sequencer=made["s3"]["object"]["sequencer"])  # as MinIO: §1.7

    def _change_versions(self, key: str, stack: list[_Layer]) -> Record:
        choice = self.rng.random()
        if not stack or choice < 0.5:
            version = f"version-{self.number}-{self._made}"
            record = self._record("s3:ObjectCreated:Put", key, version=version)
            stack.append(_Layer(version, record))
            return record
        top = stack[-1]
        if top.record is None and choice < 0.8:  # a marker's removal has the name of its coming (as MinIO: §1.3)
            stack.pop()
            return self._record("s3:ObjectRemoved:DeleteMarkerCreated", key, version=top.version)
        if top.record is not None and choice < 0.75:
            version = f"marker-{self.number}-{self._made}"
            stack.append(_Layer(version, None))
            return self._record("s3:ObjectRemoved:DeleteMarkerCreated", key, version=version)
        objects = [layer for layer in stack if layer.record is not None]
        if not objects:
            return self._record("s3:ObjectRemoved:NoOP", key, version="never-there")
        gone = self.rng.choice(objects)
        stack.remove(gone)
        return self._record("s3:ObjectRemoved:Delete", key, version=gone.version)

    def _record(self, name: str, key: str, *, version: str = "", sequencer: str = "") -> Record:
        self._made += 1
        thing: dict[str, Any] = {"key": quote_plus(key, safe="")}
        if version:
            thing["versionId"] = version
        thing["sequencer"] = sequencer or f"{_FIRST + self._made:X}"
        return {
            "eventVersion": "2.0",
            "eventSource": "minio:s3",
            "awsRegion": "",
            "eventTime": "2026-11-21T00:33:56.082Z",
            "eventName": name,
            "responseElements": {"x-amz-request-id": f"{self.number}-{self._made}"},
            "s3": {"s3SchemaVersion": "1.0", "bucket": {"name": self.name}, "object": thing},
            "source": {"host": "127.0.0.1", "port": "", "userAgent": "MinIO (linux; amd64) minio-go/v7.0.88"},
        }
