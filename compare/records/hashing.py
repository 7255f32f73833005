"""Hashes of weights and examples, which two processes have to agree on."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from typing import Any

with suppress(ImportError):  # the environment of a script that is watched may lack it
    import xxhash

PORTABLE_HASHES = "FIT_VS_LOOP_PORTABLE_HASHES"
"""The environment variable that asks for hashes made by Python alone, where the processes have other environments."""
_portable = bool(os.environ.get(PORTABLE_HASHES))


def hash_of(data: Any) -> int:
    """The XXH3 hash, of 64 bits, of bytes or a contiguous array; or another one, where it has to be portable."""
    if _portable:
        content = data if isinstance(data, bytes) else data.tobytes()
        return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return xxhash.xxh3_64_intdigest(data)
