"""The service as a whole: its state, checks, workers and settings."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType

from app.resources.declaration import Arn, Columns, Resource, Time, about
from app.resources.target import Counters, Seconds

FINDING_GRADES = ("ok", "note", "warning", "problem")


class Check(Resource):
    """A check of the service."""

    ok: bool
    reason: Annotated[str | UnsetType, about("why it is not ok")] = UNSET
    revision: Annotated[str | UnsetType | None, about("of the database's schema")] = UNSET
    needed: Annotated[str | UnsetType, about("the revision that this version needs")] = UNSET
    age: Annotated[Seconds | UnsetType, about("seconds since the drain ran; null: it never ran")] = UNSET
    files: Annotated[int | UnsetType, about("that wait in the spool folder")] = UNSET
    quarantined: Annotated[int | UnsetType, about("damaged files of the spool folder")] = UNSET


class Readiness(Resource):
    """Whether the service is ready, by its checks."""

    ready: bool
    checks: Mapping[str, Check]


class Welcome(Resource):
    """What the address answers a sender that probes it."""

    name: str
    events: Annotated[str, about("the path to which events are posted")]
    description: Annotated[str, about("the path of the OpenAPI document")]


class Alive(Resource):
    """The process responds."""

    status: str


class Status(Resource):
    """The state of the service."""

    version: str
    region: str
    ready: bool
    checks: Mapping[str, Check]
    targets: Annotated[Mapping[str, int], about("their number by state")]
    events: Counters
    oldest_age: Annotated[Seconds, about("seconds, of the oldest undelivered event; null: none")]


class DoctorFinding(Resource):
    """What a check of the doctor says."""

    columns: ClassVar[Columns] = {"subject": "subject", "grade": "grade", "text": "text"}

    subject: Annotated[str, about("what was checked, or a target as type:name")]
    grade: Annotated[str, about("whether something has to be done", enum=list(FINDING_GRADES))]
    text: str
    command: Annotated[list[str], about("words of the `bucketwire` command that mends it or shows more; or none")]


class Diagnosis(Resource):
    """What the doctor says."""

    checked_at: Time
    problems: int
    warnings: int
    findings: list[DoctorFinding]


class Drain(Resource):
    """Whether the drain runs."""

    running: bool
    age: Annotated[Seconds, about("seconds; null: it never ran")]


class WorkerQueue(Resource):
    """The queue of a target, and whether workers serve it."""

    target: Arn
    answered_at: Time
    age: Annotated[float, about("seconds since a worker answered, or the target was created")]
    served: bool
    leased_partitions: int


class DeliveringProcess(Resource):
    """A worker process that has partitions leased, which it delivers."""

    host: str
    pid: int
    leased_partitions: int
    targets: Annotated[list[Arn], about("whose partitions it has leased")]


class Workers(Resource):
    """The heartbeats of the drain and of the workers, and what the processes deliver now."""

    flower: Annotated[str | None, about("the address of Flower, of `BUCKETWIRE_FLOWER_URL`")]
    drain: Drain
    queues: list[WorkerQueue]
    delivering: Annotated[list[DeliveringProcess], about("the worker processes that deliver events at this moment")]


class EffectiveSetting(Resource):
    """A setting, and what decides it."""

    value: Annotated[str, about("in effect", enum=["on", "off"])]
    origin: Annotated[str, about("where it is from", enum=["environment", "stored", "default"])]


class EffectiveApiSettings(Resource):
    """The settings of the section `api`."""

    sync_events: EffectiveSetting
