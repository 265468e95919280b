"""The Django project that the tests serve: addresses, views, and the entry points of servers."""

from __future__ import annotations

import os
import threading

from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.middleware.csrf import get_token
from django.urls import include, path

from s2pubsub.contrib.django import get_runs, run_response
from s2pubsub.contrib.django.configuration import configuration

_opened: list[object] = []
"""Database connections that ``may_see`` has used."""


def may_see(request: HttpRequest, run_id: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    _opened.append(connection.connection)
    return not run_id.startswith("secret") or request.COOKIES.get("pass") == run_id


def plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine " * 100)


def token(request: HttpRequest) -> HttpResponse:
    return HttpResponse(get_token(request))


def own_view(request: HttpRequest, run_id: str) -> HttpResponseBase:
    """A user's own view, in a transaction where ATOMIC_REQUESTS is set."""
    return run_response(request, get_runs(), run_id, authorize=may_see, heartbeat=0.2)


def state(request: HttpRequest) -> HttpResponse:
    names = sorted(t.name for t in threading.enumerate() if t.name.startswith("s2pubsub-"))
    site = configuration.site
    subscriptions = site.pubsub.stats().subscriptions if site._pubsub is not None else 0
    return JsonResponse(
        {
            "threads": names,
            "streams": site.limiter.active,
            "subscriptions": subscriptions,
            "open_databases": sum(_is_open(each) for each in _opened),
            "fds": len(os.listdir("/proc/self/fd")),
        }
    )


def _is_open(database: object) -> bool:
    try:
        database.total_changes  # noqa: B018  # raises when closed
    except Exception as error:
        return "closed" not in str(error)
    return True


urlpatterns = [
    path("health", plain),
    path("plain", plain),
    path("token", token),
    path("state", state),
    path("own/<str:run_id>", own_view),
    path("runs/", include("s2pubsub.contrib.django.urls")),
]

application = get_wsgi_application()
asgi_application = get_asgi_application()
