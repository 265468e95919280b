"""A mapping from names to things that can be paged through in the order of the names, as the API's lists are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import Generic, TypeVar

from s2pubsub.server.names import MAX_PAGE

T = TypeVar("T")


class Named(Generic[T]):
    """Things by name, with pages in the order of the names."""

    def __init__(self) -> None:
        self._things: dict[str, T] = {}
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._things)

    def get(self, name: str) -> T | None:
        return self._things.get(name)

    def put(self, name: str, thing: T) -> None:
        if name not in self._things:
            insort(self._names, name)
        self._things[name] = thing

    def drop(self, name: str) -> None:
        if self._things.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def values(self) -> list[T]:
        return list(self._things.values())

    def page(self, prefix: str, start_after: str, limit: int | None) -> tuple[list[T], bool]:
        """At most ``limit`` things whose names begin with ``prefix`` and follow ``start_after``; whether more do."""
        limit = min(limit or MAX_PAGE, MAX_PAGE)
        index = bisect_left(self._names, prefix)
        if start_after:
            index = max(index, bisect_right(self._names, start_after))
        names = self._names[index : index + limit + 1]
        names = [name for name in names if name.startswith(prefix)]
        return [self._things[name] for name in names[:limit]], len(names) > limit
