"""The consumers on the page of MySQL, as they stand there."""

from __future__ import annotations

from tests import services
from tests.contract.probes.mysql import DATABASE, Namespace
from tests.support import sample_events
from tests.support.doc_consumers import consumers, output
from workers.delivery.outcomes import DELIVERED


def test_the_consumers_of_mysql_read_what_was_delivered(mysql_server: services.MySQL) -> None:
    probe = Namespace(mysql_server)
    event = sample_events.put("cat.jpg", number=77)
    for table, format_ in (("bucketevents", "access"), ("bucketobjects", "namespace")):
        assert probe.delivered([event], table=table, format=format_) == [DELIVERED]
    places = {"3306": str(mysql_server.port), '"localhost"': f'"{services.LOOPBACK}"', '"me"': f'"{services.USER}"'}
    places |= {'"secret"': f'"{services.PASSWORD}"', '"events"': f'"{DATABASE}"'}
    reading_rows, reading_events = consumers("mysql", **places)
    assert output(reading_rows) == ["images/cat.jpg 77"]
    (line,) = output(reading_events)
    assert line.endswith(" s3:ObjectCreated:Put cat.jpg")
    probe.ask("DROP TABLE bucketevents, bucketobjects")
