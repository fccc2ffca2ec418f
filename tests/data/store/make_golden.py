#!/usr/bin/env python3
"""Writes the golden files beside it from store/README.md alone. Needs `pip install xxhash`."""
import os
import struct

import xxhash

HERE = os.path.dirname(os.path.abspath(__file__))
TENANT, SESSION = b"acme", b"\xff\x01/ \x7f"
NUMBER, PAYLOAD, FINGERPRINT = 0x0102030405060708, b"payload", b"fingerprint text"


def xxh3(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed)


def record(role, kind, record_id):
    names = TENANT + SESSION
    payload_at = 4080 if role == 3 else 64 + len(names)
    head = b"EPMR" + struct.pack("<HBBBBHIQQQQQ", 1, role, kind, len(TENANT), len(SESSION), 0, payload_at, NUMBER, record_id,
                                 len(PAYLOAD), xxh3(PAYLOAD), xxh3(FINGERPRINT))
    rest = names + bytes(payload_at - 64 - len(names))
    return head + struct.pack("<Q", xxh3(rest, xxh3(head))) + rest + (b"" if role == 2 else PAYLOAD)


files = {
    "inline.bin": record(1, 4, 0),
    "pointer.bin": record(2, 5, 0x1122),
    "payload.bin": record(3, 5, 0x1122),
    "format": b"epimem store 1\nfingerprint %016x %04d\n" % (xxh3(FINGERPRINT), len(FINGERPRINT)) + FINGERPRINT,
}
for name, data in files.items():
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(data)
