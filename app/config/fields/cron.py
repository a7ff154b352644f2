"""Cron expressions. They are in UTC, so that they mean the same on every machine."""

from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from app.config.errors import BadValue
from app.config.fields.field_types import FieldType

_FIELDS = 5


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
