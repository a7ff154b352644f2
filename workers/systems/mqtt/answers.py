"""Decide the outcome of a message by the code that ends it (MQTT 5, §2.4)."""

from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable

_TOO_LARGE, _BAD_PAYLOAD, SILENT = 0x95, 0x99, 0x8D
ABOUT_ONE_MESSAGE = (_TOO_LARGE, _BAD_PAYLOAD)
_ABOUT_THE_TOPIC = (0x87, 0x90)
_REFUSALS = {0x87: "not authorised", 0x90: "topic name invalid", 0x97: "quota exceeded"}
_DESCRIPTIONS = _REFUSALS | {
    0x80: "unspecified error",
    0x83: "implementation specific error",
    0x91: "packet identifier in use",
    0x92: "packet identifier not found",
    _TOO_LARGE: "packet too large",
    _BAD_PAYLOAD: "payload format invalid",
}


def outcome_of_code(code: int, details: str = "", *, of_template: bool = False) -> Outcome:
    """Return the outcome for the code that ends a message (MQTT 5, §2.4); `details` are the broker's reason.

    With `of_template` the topic is this event's: that it is refused says nothing of the others.
    """
    if code < 0x80:
        return DELIVERED
    described = f"{_DESCRIPTIONS.get(code, 'unknown reason')} (0x{code:02X})"
    reason = f"the broker refused it: {described}: {details}" if details else f"the broker refused it: {described}"
    if code in ABOUT_ONE_MESSAGE:
        return Rejected(reason)
    if code in _REFUSALS and not (of_template and code in _ABOUT_THE_TOPIC):
        return Unavailable(reason)
    return Failed(reason)
