"""Cron expressions: when something is to be done again and again. In UTC, so that every machine means the same."""

from datetime import UTC, datetime, timedelta

from cronsim import CronSim, CronSimError

from app.config.errors import BadValue
from app.config.fields.field_types import FieldType

_FIELDS = 5


class Cron(FieldType[str]):
    """Minute, hour, day of the month, month and day of the week, as Debian's cron reads them; in UTC."""

    label = "cron expression, UTC"
    empty = ""
    _HINT = "write minute, hour, day, month and weekday in UTC, such as 0 3 * * * for each night at three"

    def parse(self, text: str) -> str:
        """The expression, its fields divided by single blanks."""
        fields = text.split()
        if len(fields) != _FIELDS:
            raise BadValue("is no cron expression of five fields", self._HINT)
        try:
            comes = next(CronSim(text, datetime(2000, 1, 1, tzinfo=UTC)), None)
        except CronSimError as error:
            raise BadValue(f"is no cron expression: {str(error).lower()}", self._HINT) from None
        if comes is None:
            raise BadValue("names a moment that never comes", self._HINT)
        return " ".join(fields)


def last_moment(expression: str, now: int) -> int:
    """The last moment of a parsed expression at or before `now`; both in milliseconds since 1970."""
    # The moments before the next whole second are those up to now.
    after = datetime.fromtimestamp(now // 1000, UTC) + timedelta(seconds=1)
    return int(next(CronSim(expression, after, reverse=True)).timestamp()) * 1000
