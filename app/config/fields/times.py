"""Times and cron expressions, as commands, the API and the console take them.

A time is RFC 3339, milliseconds, or how long ago or from now. A cron expression is in UTC, so that it means the same on
every machine.
"""

from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from app.config.errors import BadValue
from app.config.fields.field_types import Duration, FieldType

TIME_HINT = "RFC 3339, ms since 1970, or how long ago, such as 2h or 7d"
EXPIRY_HINT = "RFC 3339, ms since 1970, or how long from now, such as 90d"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_DATE_DIGITS = 8  # of a date such as 20261121: as many milliseconds are a time on the first day of 1970
_AGO = Duration()
_FIELDS = 5


def parse_time(value: object, now: float) -> int:
    """Parse a time to milliseconds since 1970; `now`, in seconds since 1970, is where `2h` ago begins.

    A time without a zone is UTC. It is in the years 1 to 9999, so that it can be written again. Raises `BadValue`.
    """
    at = _milliseconds(value, now)
    if at is None or not _FIRST <= at <= _LAST:
        raise BadValue(
            "is not a time", "write it as 2026-11-21T00:33:56Z, in ms since 1970, or how long ago, such as 2h"
        )
    return at


def parse_expiry(value: object, now: float) -> int:
    """Parse a time in the future as `parse_time` does, but `2h` is from now. Raises `BadValue`."""
    at = _milliseconds(value, now, sign=1)
    if at is None or not now * 1000 < at <= _LAST:
        raise BadValue(
            "is not a time in the future", "write it as 2027-11-21T00:00:00Z, or how long from now, such as 90d"
        )
    return at


def _milliseconds(value: object, now: float, sign: int = -1) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        if value.isascii() and value.isdigit() and len(value) != _DATE_DIGITS:
            return int(value)  # raises ValueError for more digits than Python converts
        time = datetime.fromisoformat(value)
    except ValueError:
        try:
            return int((now + sign * _AGO.parse(value)) * 1000)
        except BadValue:
            return None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // _MILLISECOND


class Cron(FieldType[str]):
    """Minute, hour, day of the month, month and day of the week, as Debian's cron reads them; in UTC."""

    label = "cron expression, UTC"
    empty = ""
    _HINT = "write minute, hour, day, month and weekday in UTC, such as 0 3 * * * for every night at 03:00"

    def parse(self, text: str) -> str:
        """Return the expression, its fields separated by single spaces."""
        fields = text.split()
        if len(fields) != _FIELDS:
            raise BadValue("is not a cron expression of five fields", self._HINT)
        try:
            first = next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)), None)
        except CronSimError as error:
            raise BadValue(f"is not a cron expression: {str(error).lower()}", self._HINT) from None
        if first is None:
            raise BadValue("never matches any date", self._HINT)
        return " ".join(fields)


def last_moment(expression: str, now: int) -> int:
    """Return the last time at or before `now` that an expression matches; both in milliseconds since 1970."""
    # The times before the next whole second are those up to now.
    after = datetime.fromtimestamp(now // 1000, UTC) + timedelta(seconds=1)
    return int(next(CronSim(expression, after, reverse=True)).timestamp()) * 1000


def next_moment(expression: str, after: int) -> int | None:
    """Return the first time after `after` that an expression matches, None for none; ms since 1970."""
    moment = next(CronSim(expression, datetime.fromtimestamp(after // 1000, UTC)), None)
    return None if moment is None else int(moment.timestamp()) * 1000
