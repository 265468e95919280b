"""Faults on the wire: a TCP proxy between the real client and the real server. Start reading at `proxy`."""

from tests.faults.proxy import FaultProxy
from tests.faults.rules import (
    ANY,
    APPEND,
    APPEND_SESSION,
    READ_SESSION,
    TAIL,
    After,
    Effect,
    Request,
    Rule,
    SeenRequest,
)

__all__ = [
    "ANY",
    "APPEND",
    "APPEND_SESSION",
    "READ_SESSION",
    "TAIL",
    "After",
    "Effect",
    "FaultProxy",
    "Request",
    "Rule",
    "SeenRequest",
]
