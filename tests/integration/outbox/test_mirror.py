"""The mirror policy on what a real MinIO sent: after each event the rows are what the bucket holds."""

from pathlib import Path
from random import Random

import orjson
import pytest

from app.events.model import Effect, Event
from app.events.parsing import Limits, parse
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.support import databases
from tests.support.builders import DELETE, PUT, add_target, event
from tests.support.properties import times
from tests.support.rows_read import rows_read
from tests.support.scripted_target import Courier, assert_counters_balance
from workers.delivery.namespace_policy import Policy

pytestmark = databases.TWO

FIXTURES = Path(__file__).parents[2] / "fixtures" / "minio_webhook_events.jsonl"
MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
HEX = "18E9E833E5D3{:04X}"


def captured(bucket: str) -> list[Event]:
    lines = [line for line in FIXTURES.read_bytes().splitlines() if orjson.loads(line)["Key"].startswith(f"{bucket}/")]
    return [parse(line, {}, now_ms=0, limits=Limits()).events[0] for line in lines]


def apply(rows: dict[str, str], got: list[Event]) -> None:
    """What a namespace target does with the effects."""
    for one in got:
        thing = orjson.loads(one.record)["s3"]["object"]
        held = rows.get(one.path)
        if one.effect is Effect.UPSERT:
            rows[one.path] = thing.get("versionId", "") or thing["sequencer"]
        elif one.effect is Effect.REMOVE or (one.effect is Effect.REMOVE_VERSION and held == one.version):
            rows.pop(one.path, None)


def test_the_captured_life_of_a_versioned_bucket_is_mirrored_step_by_step(database: Database) -> None:
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    rows: dict[str, str] = {}
    held_by_r = []
    for one in captured("ver"):
        Log(database).append([[one]])
        courier.run()
        apply(rows, courier.scripted.got)
        courier.scripted.got.clear()
        if one.key == "doc/r.txt":
            held_by_r.append(rows.get("ver/doc/r.txt", "")[:4])
    # v1, v2, marker, the marker again, a GET of v1, the marker removed, v1 deleted, v2 tagged, v2 deleted
    assert held_by_r == ["a31d", "af9f", "", "", "", "af9f", "af9f", "af9f", ""]
    assert {path: version[:4] for path, version in rows.items()} == {"ver/rep.txt": "ea37"}
    assert_counters_balance(database)


def test_batches_grow_also_where_most_is_superseded(database: Database) -> None:
    courier = Courier(database, add_target(database), policy=Policy.MIRROR, batch=64)
    keys = [f"k{number}" for number in range(40)]
    Log(database).append([[event(key) for _ in range(20) for key in keys]])
    partitions = courier.partitions()
    assert partitions is not None
    partitions._target.sizer.size = 16
    turns = iter(range(3))
    partitions.work_off(lambda: next(turns, None) is None)
    assert partitions._target.sizer.size == 64
    assert courier.scripted.got == [], "each has a newer one"


@databases.THREE
def test_access_and_tagging_leave_a_row_alone(database: Database) -> None:
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    Log(database).append([captured("plain")[:20]])
    courier.run()
    assert {one.name for one in courier.scripted.got} == {"s3:ObjectCreated:Put", "s3:ObjectCreated:Copy"}


@pytest.mark.parametrize("seed", range(times(2, 4)))
def test_a_versioned_key_ends_the_same_in_whatever_order_its_events_arrive(database: Database, seed: int) -> None:
    life = [
        event("k", version="v1", sequencer=HEX.format(1)),
        event("k", version="v2", sequencer=HEX.format(2)),
        event("k", version="m1", name=MARKER, sequencer=HEX.format(3)),
        event("k", version="m1", name=MARKER, sequencer=HEX.format(4)),
        event("k", version="v1", name=DELETE, sequencer=HEX.format(5)),
        event("k", version="v3", sequencer=HEX.format(6)),
        event("k", version="v3", name=DELETE, sequencer=HEX.format(7)),
    ]
    Random(seed).shuffle(life)
    courier = Courier(database, add_target(database), policy=Policy.MIRROR)
    rows: dict[str, str] = {}
    for one in life:
        Log(database).append([[one]])
        courier.run()
        apply(rows, courier.scripted.got)
        courier.scripted.got.clear()
    assert rows == {"images/k": "v2"}
    assert_counters_balance(database)


@pytest.mark.parametrize("seed", range(times(1, 3)))
def test_a_hot_key_of_which_a_target_gets_few_events_never_goes_back(database: Database, seed: int) -> None:
    few = Courier(database, add_target(database, "few", events=["s3:ObjectRemoved:*"]), policy=Policy.MIRROR)
    add_target(database, "all")
    chance = Random(seed)
    order = chance.sample(range(300), 300)
    removals = set(chance.sample(order, 40))
    life = [
        event("hot", name=DELETE if number in removals else PUT, sequencer=HEX.format(16 * number + 1))
        for number in order
    ]
    while life:
        some, life = life[:50], life[50:]
        Log(database).append([some])
        few.batch = chance.choice([4, 16, 64])
        few.run()
    got = [one.sequencer for one in few.scripted.got]
    assert got == sorted(got)
    assert got[-1] == HEX.format(16 * max(removals) + 1)
    assert_counters_balance(database)


def test_of_two_events_in_one_batch_the_older_is_superseded_also_where_others_are_newer(database: Database) -> None:
    few = Courier(database, add_target(database, "few", events=["s3:ObjectRemoved:*"]), policy=Policy.MIRROR, batch=100)
    add_target(database, "all")
    newer, older = (event("hot", name=DELETE, sequencer=HEX.format(number)) for number in (2, 1))
    Log(database).append([[newer, older, *(event("hot", sequencer=HEX.format(100 + n)) for n in range(50))]])
    few.run()
    assert [one.id for one in few.scripted.got] == [newer.id]


@databases.THREE
@pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)
def test_what_a_batch_reads_does_not_grow_with_the_events_of_its_key(database: Database) -> None:
    log, read = Log(database), []
    mirror = Courier(database, add_target(database, bucket="images"), policy=Policy.MIRROR, batch=400)
    few = Courier(database, add_target(database, "few", events=["s3:ObjectRemoved:*"]), policy=Policy.MIRROR, batch=400)
    for round_ in range(3):
        for start in range(0, 1000, 500) if round_ else [0]:
            log.append([[event("versioned", version=f"v{round_}-{start}-{n}") for n in range(500)]])
            log.append([[event("hot") for _ in range(500)]])
        for courier in (mirror, few):
            courier.run(turns=1000)
        late = [event("hot", name=DELETE, sequencer=HEX.format(100 * round_ + n)) for n in range(50)]
        log.append([[event("versioned", version=f"w{round_}-{n}") for n in range(50)], late])
        for courier in (mirror, few):
            partitions = courier.partitions()
            assert partitions is not None
            with courier.store.reading(partitions._lease, newest=True) as reader:
                connection = reader._connection
                before = rows_read(connection)
                batch = reader.load(400)
                reader.holdings([logged for logged in batch.events if logged.event.version])
                read.append(rows_read(connection) - before)
            courier.leases.release(partitions._lease)
    # The first time a hot key is looked through once for each target.
    assert read[4] < 1.2 * read[2], "the mirror's"
    assert read[5] < 1.2 * read[3], "of the target that gets few"
