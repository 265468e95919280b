"""The Django project that `runserver` serves: settings, addresses and views in one module."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path

SECRET_KEY = "only for tests"
DEBUG = True
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["s2pubsub.contrib.django"]
MIDDLEWARE: list[str] = []
ROOT_URLCONF = "tests.hosts.django_site"
USE_TZ = True
S2PUBSUB = {"AUTHORIZE": "tests.hosts.django_site.may_see", "HEARTBEAT": 0.5}

_services = []


def may_see(request: HttpRequest, run_id: str) -> bool:
    return True


def service():
    """Made on first use: this module is imported as the settings, too, before there are any."""
    from s2pubsub.contrib.django import get_runs
    from tests.hosts.service import Service

    if not _services:
        _services.append(Service(get_runs))
    return _services[0]


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse("fine")


def round_trip(request: HttpRequest) -> HttpResponse:
    return JsonResponse(service().round_trip())


def ask(request: HttpRequest) -> HttpResponse:
    return HttpResponse(service().ask(int(request.GET["count"]), float(request.GET["pace"])))


urlpatterns = [
    path("health", health),
    path("round-trip", round_trip),
    path("ask", ask),
    path("runs/", include("s2pubsub.contrib.django.urls")),
]
