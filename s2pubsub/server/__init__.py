"""A small S2-compatible server for one machine: development, tests, demos.

    with LocalServer() as server:
        pubsub = S2PubSub("my-basin", access_token=server.token, endpoints=server.endpoints)

It speaks the S2 v1 API over HTTP/2 and HTTP/1.1 on one port, so the official SDKs work on it unmodified. Data is in
memory, or in a directory where it survives a crash. It is one process with one event loop: for many machines, for
replication or for access control use `s2 lite` or the S2 service.
"""

try:
    from s2pubsub.server.command import serve
    from s2pubsub.server.local import LocalServer
except ModuleNotFoundError as error:
    if error.name != "h11":
        raise
    raise ImportError("the embedded server needs the extra 'server': pip install 's2pubsub[server]'") from error

__all__ = ["LocalServer", "serve"]
