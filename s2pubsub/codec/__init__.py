"""Events to records and back: the envelope that TypeScript programs share, as strict JSON.

``strict`` says what JSON carries unchanged, ``writing`` makes events and records, ``reading`` and ``fast`` read them,
``shape`` checks mappings. Not for names, tokens or threads. The one part of the core that knows ``json``, ``msgspec``
and ``cattrs``. Safe for any number of threads: what changes after import are caches of classes and times, and ids that
were made in advance.
"""

from s2pubsub.codec.reading import MAX_READ_DEPTH, decode, decode_batch
from s2pubsub.codec.shape import EventInput, event_inputs, structure
from s2pubsub.codec.strict import MAX_DEPTH, MAX_INTEGER, MAX_VALUES, Default
from s2pubsub.codec.writing import MAX_RECORD_BYTES, RECORD_OVERHEAD, Draft, compose, encode, encode_many

__all__ = [
    "MAX_DEPTH",
    "MAX_INTEGER",
    "MAX_READ_DEPTH",
    "MAX_RECORD_BYTES",
    "MAX_VALUES",
    "RECORD_OVERHEAD",
    "Default",
    "Draft",
    "EventInput",
    "compose",
    "decode",
    "decode_batch",
    "encode",
    "encode_many",
    "event_inputs",
    "structure",
]
