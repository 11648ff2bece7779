"""The reasons for which an object is not read or not written.

One exception for both directions: what a receiver would refuse, a sender refuses to write.
"""

import enum


class Reason(enum.StrEnum):
    """The machine-readable cause carried by `Refused`; each is also a plain string for records."""

    MAGIC = "magic"  # not one of our objects at all
    FORMAT = "format"  # our object, in a format version this code does not read
    KIND = "kind"  # an unknown kind, or not the kind asked for
    VALUE_TYPE = "value-type"
    RESERVED = "reserved"  # bytes that must be zero are not
    LENGTH = "length"  # the object is not exactly as long as its header says
    LIMIT = "limit"  # the header announces more than the receiver is willing to hold
    CHECKSUM = "checksum"
    NON_FINITE = "non-finite"  # NaN, infinity, or a value that the value type would turn into one
    LEVEL = "level"  # a range of levels that makes no sense, or was not dispatched
    STALE = "stale"  # a version older than the one dispatched: late or replayed
    VERSION = "version"  # a version that was never dispatched
    MAP_VERSION = "map-version"
    RUN = "run"
    CLIENT = "client"
    COUNT = "count"  # as many values or coordinates as nobody expects
    BUFFERS = "buffers"
    MAP_CODE = "map-code"  # a part of the map that does not decode to the declared count
    REPORT = "report"


class Refused(ValueError):  # noqa: N818 - a verdict on the bytes, not a fault of the program
    """An object that must not be used; `reason` is the cause, to count or branch on, and the message is for people."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
