"""Addresses of runs: ``include`` this module."""

from __future__ import annotations

from django.urls import path

from s2pubsub.contrib.django.views import run_events, stop_run

app_name = "s2pubsub"

_FOR_AI_SDK = {"format": "ui-message-stream", "ended": "no-content"}

urlpatterns = [
    path("<str:run_id>/events", run_events, name="events"),
    path("<str:run_id>/stream", run_events, _FOR_AI_SDK, name="stream"),
    path("<str:run_id>/stop", stop_run, name="stop"),
]
