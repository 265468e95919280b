"""Durable runs in Django projects. Add ``"s2pubsub.contrib.django"`` to ``INSTALLED_APPS``.

::

    # settings.py
    S2PUBSUB = {"BASIN": "agent-runs", "AUTHORIZE": "chat.access.may_see"}

    # urls.py
    path("runs/", include("s2pubsub.contrib.django.urls"))

    # anywhere
    from s2pubsub.contrib.django import get_pubsub, get_runs, run_response

Works under WSGI and ASGI. ``docs/django.md`` in the package is the guide.
"""

from __future__ import annotations

from s2pubsub.contrib.django.configuration import get_pubsub, get_runs
from s2pubsub.contrib.django.responses import run_response, stop_response, stream_response

__all__ = ["get_pubsub", "get_runs", "run_response", "stop_response", "stream_response"]
