"""Bytes: level maps, values and updates, with their exact sizes known before anything is encoded.

A task is one or more objects: a MAP if the client's level map is missing or old, and VALUES for each range of
levels. An UPDATE comes back. Each has `*_bytes`, `encode_*` and `decode_*`; decoding takes bytes from
strangers and either returns what was expected or raises `Refused`. Read `header.py` for the layout,
`parts.py` for the coding of maps.
"""

from fedgmr.wire.envelope import Expected, Limits
from fedgmr.wire.header import ABOVE, EVERYONE, Header, Stamp
from fedgmr.wire.maps import decode_map, encode_map, map_bytes
from fedgmr.wire.precision import ValueType
from fedgmr.wire.refusals import Reason, Refused
from fedgmr.wire.values import (
    Report,
    decode_update,
    decode_values,
    encode_update,
    encode_values,
    update_bytes,
    values_bytes,
)

__all__ = [
    "ABOVE",
    "EVERYONE",
    "Expected",
    "Header",
    "Limits",
    "Reason",
    "Refused",
    "Report",
    "Stamp",
    "ValueType",
    "decode_map",
    "decode_update",
    "decode_values",
    "encode_map",
    "encode_update",
    "encode_values",
    "map_bytes",
    "update_bytes",
    "values_bytes",
]
