"""Producers on the wire: their ids, which partition gives their epochs, digests of what they send.

A producer with a name has the same id in each process that opens it in the same zone; one without
has a fresh id. All of this is a part of the format: other clients must come to the same.
"""

import uuid

import xxhash

from rezone.wire.codec import keyspace

_NAMES = uuid.UUID("6c6f9c0e-6f0b-5d52-9a57-2f4d1f0c7a11")


def producer_id_of(zone_uid: str, name: str) -> str:
    """Return the id of the producer of this name in a zone."""
    return str(uuid.uuid5(_NAMES, f"{zone_uid}/{name}"))


def home_hash(producer_id: str) -> int:
    """Return the key hash whose partition gives a producer's epochs; ValueError for no UUID."""
    return keyspace.hash_key(uuid.UUID(producer_id).bytes)


def digest_of(body: bytes | memoryview, *, delete: bool) -> bytes:
    """Return the 16 bytes that tell the body of a write from another one."""
    return xxhash.xxh3_128_digest(body, seed=int(delete))
