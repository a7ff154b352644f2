"""The settings of every source type."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from app.config.errors import BadValue, did_you_mean
from app.config.fields.field_types import Duration, FieldType, Number, Size, Text, Toggle
from app.config.fields.fields import Declared, Field, declared, fields_of, setting
from app.config.targets.base import TlsFiles
from app.events.buckets import TENANT_HINT, is_tenant
from app.events.frontends import S3_FRONTENDS

REGISTERED_SOURCES: dict[str, type["SourceSettings"]] = {}


class Tenant(FieldType[str]):
    """A tenant, or `arn`."""

    label = "name of a tenant, or arn"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the tenant."""
        if not is_tenant(text):
            raise BadValue("is not the name of a tenant", TENANT_HINT)
        return text


class FrontendName(FieldType[str]):
    """A frontend whose records have S3's form."""

    label = "name of a frontend"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the name of a known frontend."""
        if text not in S3_FRONTENDS:
            raise BadValue("is not the name of a frontend", did_you_mean(text[:64], sorted(S3_FRONTENDS)))
        return text


@declared
class SourceSettings(Declared):
    """The settings of every source. Durations are seconds."""

    type_name: ClassVar[str]
    system: ClassVar[str]  # that the queue is of, by the name that its target type has
    env: ClassVar[str]  # in BUCKETWIRE_SOURCE_<…>_: KAFKA
    title: ClassVar[str]
    example: ClassVar[Mapping[str, str]]  # settings that are enough to set a source
    names_queue: ClassVar[tuple[str, ...]] = ()  # settings whose change makes it another queue, without the positions
    lists: ClassVar[bool] = False  # whether it is a bucket, which is listed, and no queue

    def __init_subclass__(
        cls,
        *,
        type_name: str = "",
        system: str = "",
        title: str = "",
        example: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init_subclass__()
        if type_name:
            cls.type_name, cls.title, cls.example = type_name, title, example
            cls.system = system or type_name
            cls.env = type_name.upper()
            REGISTERED_SOURCES[type_name] = cls

    enable: bool = setting(Toggle(), default="on", about="whether events are taken from it; on unless set")
    comment: str = setting(Text(), default="", about="a note of your own")
    timeout: float = setting(Duration(1, 60), default="5s", about="time limit for connecting and for an answer")


@declared
class QueueSettings(SourceSettings):
    """The settings of every source that is a queue."""

    frontend: str = setting(
        FrontendName(), default="", about="which frontend sends here; empty: each record shows its sender"
    )
    tenant: str = setting(
        Tenant(),
        default="",
        about="whose buckets they are, recorded as TENANT:BUCKET; arn: by each bucket's ARN (Ceph)",
    )
    batch_size: int = setting(Number(1, 10_000), default="1000", about="most messages that are recorded in one commit")
    rejected_limit: int = setting(
        Number(1, 100_000), default="1000", about="rejected messages that are kept; the next one pauses the source"
    )
    rejected_size: int = setting(
        Size(1024, 2**34), default="64MiB", about="bytes of rejected messages that are kept; more pause the source"
    )


def ordered_source_fields(cls: type[SourceSettings]) -> dict[str, Field]:
    """Return a type's settings in the order in which people read them: `enable`, its own, every source's, `comment`."""
    ranks = dict.fromkeys(fields_of(TlsFiles), 1) | dict.fromkeys(fields_of(QueueSettings), 2)
    ranks |= {"enable": -1, "comment": 3}
    return dict(sorted(fields_of(cls).items(), key=lambda item: ranks.get(item[0], 0)))
