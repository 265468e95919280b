"""Encrypted streams: the checks of the key that S2 makes, and records that only the key opens.

The ciphers that the API names, AEGIS-256 and AES-256-GCM, are not in Python's standard library. A client cannot see
which cipher protects the stored bytes, so this server uses what the library has: a SHAKE-256 key stream with a random
nonce per record, and a keyed BLAKE2b tag over nonce and ciphertext. Command records stay readable, as in S2.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

from s2pubsub.server.failure import ApiError
from s2pubsub.server.protobuf import varint
from s2pubsub.server.record import AppendInput, Entry

_KEY_BYTES = 32
_NONCE_BYTES = 16
_TAG_BYTES = 16
_SEALED = 0x7A
"""The tag of field 15, which no record of the API has."""


class Seal:
    """A key that closes records on their way in and opens them on their way out."""

    def __init__(self, key: bytes) -> None:
        self._stream_key = hashlib.blake2b(b"stream", key=key, digest_size=32).digest()
        self._tag_key = hashlib.blake2b(b"tag", key=key, digest_size=32).digest()

    def close(self, append: AppendInput) -> AppendInput:
        """``append`` with its records encrypted; their metered sizes stay."""
        entries = [
            entry
            if entry.command is not None
            else Entry(entry.timestamp, self._close(entry.payload), entry.metered, None)
            for entry in append.entries
        ]
        return AppendInput(entries, append.metered, append.match_seq_num, append.fencing_token)

    def open(self, data: bytes) -> bytes:
        """Encoded records decrypted; `ApiError` (decryption_failed) when the key is another."""
        parts: list[bytes] = []
        pos = 0
        while pos < len(data):
            length, start = _varint(data, pos + 1)
            end = start + length
            _, payload = _varint(data, start + 1)
            _, payload = _varint(data, payload + 1)
            if payload < end and data[payload] == _SEALED:
                _, sealed = _varint(data, payload + 1)
                record = data[start:payload] + self._open(data[sealed:end])
                parts += (b"\x0a", varint(len(record)), record)
            else:
                parts.append(data[pos:end])
            pos = end
        return b"".join(parts)

    def _close(self, payload: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        hidden = self._mix(nonce, payload)
        sealed = nonce + self._tag(nonce + hidden) + hidden
        return bytes((_SEALED,)) + varint(len(sealed)) + sealed

    def _open(self, sealed: bytes) -> bytes:
        nonce, tag = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES : _NONCE_BYTES + _TAG_BYTES]
        hidden = sealed[_NONCE_BYTES + _TAG_BYTES :]
        if not hmac.compare_digest(tag, self._tag(nonce + hidden)):
            raise ApiError("decryption_failed", "the encryption key does not open this record")
        return self._mix(nonce, hidden)

    def _mix(self, nonce: bytes, data: bytes) -> bytes:
        stream = hashlib.shake_256(self._stream_key + nonce).digest(len(data))
        return (int.from_bytes(stream, "big") ^ int.from_bytes(data, "big")).to_bytes(len(data), "big")

    def _tag(self, data: bytes) -> bytes:
        return hashlib.blake2b(data, key=self._tag_key, digest_size=_TAG_BYTES).digest()


def make_seal(cipher: str | None, key: str | None) -> Seal | None:
    """The seal for a stream with ``cipher``, None where it has none; `ApiError` (bad_header) without a proper key."""
    if cipher is None:
        return None
    if key is None:
        raise ApiError("bad_header", f"the stream is encrypted with {cipher}: the header s2-encryption-key is missing")
    try:
        raw = base64.b64decode(key.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise ApiError("bad_header", f"the key for {cipher} is not valid base64") from None
    if len(raw) != _KEY_BYTES:
        raise ApiError("bad_header", f"the key for {cipher} has {_KEY_BYTES} bytes")
    return Seal(raw)


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
