"""Raw requests of the control plane, in the order in which they are sent to fresh servers.

Left out is what is known to differ: a JSON array where an object belongs (the real server reads the fields off in
order), and how soon a deleted basin vanishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.conformance.raw_case import BASIN, JSON, Case, dump


def routes() -> Iterator[Case]:
    """Routes that exist and routes that do not."""
    paths = [
        "/health",
        "/ping",
        "/",
        "/nothing",
        "/v1",
        "/v1/",
        "/v1/basins/",
        "/v1/streams/",
        "/v1/nothing",
        "/health/",
    ]
    paths += ["/v1/streams/a/records/", "/v1/streams//records", "/v1/streams/a/b/c"]
    for path in paths:
        yield Case("GET", path, BASIN)
    for method, path in [
        ("POST", "/health"),
        ("DELETE", "/v1/basins"),
        ("PUT", "/v1/streams"),
        ("POST", "/v1/basins/x"),
        ("PUT", "/v1/streams/s1/records"),
        ("POST", "/v1/streams/s1/records/tail"),
        ("FOO", "/v1/basins"),
        ("HEAD", "/health"),
        ("HEAD", "/v1/basins"),
        ("OPTIONS", "/v1/basins"),
    ]:
        yield Case(method, path, BASIN)


def stream_configs() -> list[Any]:
    """Stream configurations, good and bad."""
    policies = [{"age": 0}, {"age": 5}, {"age": -5}, {"age": 1.5}, {"age": 2**64}, {"age": 2**64 - 1}, {"infinite": {}}]
    policies += [{"infinite": None}, {"infinite": {"a": 1}}, "infinite", {}, {"age": 1, "infinite": {}}, None]
    timestamping = [{}, None, {"mode": "arrival"}, {"mode": "x"}, {"mode": None, "uncapped": None}, {"uncapped": True}]
    timestamping += [{"uncapped": 1}, {"mode": "client-require", "uncapped": False}]
    on_empty = [{}, None, {"min_age_secs": 5}, {"min_age_secs": 0}, {"min_age_secs": None}, {"min_age_secs": -1}]
    return [
        None,
        {},
        *({"storage_class": value} for value in ("express", "weird", "", 1, None)),
        *({"retention_policy": value} for value in policies),
        *({"timestamping": value} for value in timestamping),
        *({"delete_on_empty": value} for value in on_empty),
    ]


def basins() -> Iterator[Case]:
    """Everything about basins."""
    queries = ["limit=0", "limit=1", "limit=-1", "limit=abc", "limit=99999", "limit=", "prefix=UPPER", "prefix=-a"]
    queries += [
        "prefix=a-",
        "start_after=..",
        "prefix=a&prefix=b",
        "foo=bar",
        f"limit={2**64}",
        "prefix=%ff",
        "limit=%2B5",
    ]
    for query in ["", *queries]:
        yield Case("GET", f"/v1/basins?{query}")
    bodies = [b"", b"{", b"[]", b"null", b'"x"', b'{"basin":1}', b'{"basin":null}', b"{}", b'{"basin":"short"}']
    bodies += [b'{"basin":"UPPERCASE"}', b'{"basin":"-abcdefgh"}', b'{"basin":"abcdefgh-"}', dump({"basin": "b" * 49})]
    for body in bodies:
        yield Case("POST", "/v1/basins", JSON, body)
    for kind in ["", "text/plain", "application/vnd.x+json; charset=utf-8", "APPLICATION/JSON"]:
        yield Case("POST", "/v1/basins", {"content-type": kind}, dump({"basin": f"basin-kind-{len(kind)}"}))
    yield Case("POST", "/v1/basins", {}, dump({"basin": "basin-none"}))
    for _ in range(2):
        yield Case("POST", "/v1/basins", JSON, dump({"basin": "basin-one"}))
    for token in ["", "tok", "t" * 36, "t" * 37]:
        name = f"basin-token-{len(token)}"
        for config in [None, None, {"create_stream_on_append": True}, {}]:
            yield Case(
                "POST", "/v1/basins", {**JSON, "s2-request-token": token}, dump({"basin": name, "config": config})
            )
    for number, location in enumerate(["x", "", "x" * 65, None, 1]):
        yield Case(
            "POST", "/v1/basins", JSON, dump({"basin": f"basin-loc-{number}", "location": location, "unknown": 1})
        )
    configs: list[Any] = [{"create_stream_on_append": value} for value in (None, 1, "true", True)]
    configs += [{"stream_cipher": value} for value in ("aegis-256", "aes-256-gcm", "AES", None, 1)]
    configs += ["x", *({"default_stream_config": config} for config in stream_configs())]
    for number, config in enumerate(configs):
        name = f"config-{number:03}"
        yield Case("POST", "/v1/basins", JSON, dump({"basin": name, "config": config}))
        yield Case("GET", f"/v1/basins/{name}")
        yield Case("PUT", f"/v1/basins/{name}", JSON, dump({"config": config}))
        yield Case("PATCH", f"/v1/basins/{name}", JSON, dump(config))
        yield Case("GET", f"/v1/basins/{name}")
    ensure = "/v1/basins/ensure-one"
    for headers, body in [({}, None), ({}, None), (JSON, b""), (JSON, b"{}"), (JSON, b"null"), ({}, b"garbage")]:
        yield Case("PUT", ensure, headers, body)
    yield Case("PUT", ensure, {"content-type": "text/plain"}, b"{}")
    for key in ("create_stream_on_read", "create_stream_on_append"):
        yield Case("PUT", ensure, JSON, dump({"config": {key: True}}))
    for body in (b"", b"null"):
        yield Case("PATCH", ensure, JSON, body)
    yield Case("GET", ensure)
    for name in ("BAD", "nonexistent", "x", "%ff%ff", "basin%2Done"):
        yield Case("GET", f"/v1/basins/{name}")
    for name in ("BAD", "nonexistent"):
        yield Case("PATCH", f"/v1/basins/{name}", JSON, b"{}")
        yield Case("DELETE", f"/v1/basins/{name}")
    yield Case("PUT", "/v1/basins/BAD", JSON, b"{}")
    yield Case("PATCH", "/v1/basins/nonexistent", {}, b"{}")
    yield Case("DELETE", ensure)
    yield Case("DELETE", ensure)
    for query in ["prefix=config-00&limit=3", "prefix=config-00&start_after=config-005", "prefix=c&start_after=d"]:
        yield Case("GET", f"/v1/basins?{query}")


def streams() -> Iterator[Case]:
    """Everything about streams but their records."""
    for headers in ({}, {"s2-basin": "BAD"}, {"s2-basin": "nonexistent"}, BASIN):
        yield Case("GET", "/v1/streams", headers)
        yield Case("POST", "/v1/streams", {**JSON, **headers}, dump({"stream": "first"}))
    bodies = [b"", b"{}", b'{"stream":""}', b'{"stream":"."}', b'{"stream":".."}', b'{"stream":"a\\u0000b"}']
    bodies += [b'{"stream":"\\ud800"}', dump({"stream": "x" * 513}), dump({"stream": "x" * 512}), b'{"stream":"s1"}']
    bodies += [b'{"stream":"s1"}', b'{"stream":"a/b c"}', dump({"stream": "\u00e9\u4e2d"}), b'{"stream":1}']
    bodies += [b'{"stream":"dup","stream":"dup2"}']
    for body in bodies:
        yield Case("POST", "/v1/streams", {**JSON, **BASIN}, body)
    for number, config in enumerate(stream_configs()):
        path = f"/v1/streams/config{number:03}"
        yield Case("POST", "/v1/streams", {**JSON, **BASIN}, dump({"stream": path[12:], "config": config}))
        yield Case("GET", path, BASIN)
        yield Case("PUT", path, {**JSON, **BASIN}, dump(config))
        yield Case("PATCH", path, {**JSON, **BASIN}, dump(config or {}))
        yield Case("GET", path, BASIN)
    names = [
        "a%2Fb%20c",
        "%C3%A9%E4%B8%AD",
        "%ff",
        "nope",
        "a/b",
        "%2E",
        "%2E%2E",
        "%00",
        "a+b",
        "x" * 513,
        "%41%",
        "%zz",
    ]
    for name in names:
        yield Case("GET", f"/v1/streams/{name}", BASIN)
    ensure = "/v1/streams/ensured"
    for headers, body in [
        ({}, None),
        ({}, None),
        (JSON, b"{}"),
        (JSON, b'{"storage_class":"standard"}'),
        (JSON, b"{}"),
    ]:
        yield Case("PUT", ensure, {**headers, **BASIN}, body)
    yield Case("PUT", ensure, {**JSON, **BASIN}, b"null")
    for method in ("PUT", "GET", "DELETE", "PATCH"):
        yield Case(method, ensure, {**JSON, "s2-basin": "nonexistent"}, b"{}")
    yield Case("PATCH", "/v1/streams/nope", {**JSON, **BASIN}, b"{}")
    yield Case("DELETE", "/v1/streams/nope", BASIN)
    queries = [
        "",
        "limit=2",
        "prefix=config00",
        "prefix=config&start_after=config005&limit=3",
        "start_after=zzz",
        "prefix=%00",
    ]
    for query in [*queries, f"prefix={'x' * 513}", "prefix=%C3"]:
        yield Case("GET", f"/v1/streams?{query}", BASIN)


def not_there() -> Iterator[Case]:
    """The parts of the API that neither server has."""
    for path in ("locations", "locations/default", "access-tokens", "access-tokens?limit=x"):
        yield Case("GET", f"/v1/{path}", BASIN)
    for place in ("", "/basin-one", "/basin-one/s1"):
        for query in (
            "",
            "?set=x",
            "?set=storage",
            "?set=active-basins",
            "?set=storage&interval=x",
            "?set=storage&start=x",
        ):
            yield Case("GET", f"/v1/metrics{place}{query}", BASIN)
    for headers, body in [(JSON, b'"x"'), (JSON, b"1"), ({}, b'"x"')]:
        yield Case("PUT", "/v1/locations/default", headers, body)
    yield Case("POST", "/v1/access-tokens", JSON, b"{}")
    yield Case("POST", "/v1/access-tokens", JSON, b'{"id":"x","scope":{}}')
    for name in ("x", "x" * 97):
        yield Case("DELETE", f"/v1/access-tokens/{name}")


CONTROL = [routes, basins, streams, not_there]
