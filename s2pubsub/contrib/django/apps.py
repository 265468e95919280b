# mypy: allow-subclassing-any
"""The Django application."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.core.signals import setting_changed

from s2pubsub.contrib.django.checks import check_settings
from s2pubsub.contrib.django.configuration import SETTING, configuration


class S2PubSubConfig(AppConfig):
    """Registers the system check. Makes no client: that is the first use's, in whatever process it happens."""

    name = "s2pubsub.contrib.django"
    label = "s2pubsub"
    verbose_name = "s2pubsub"

    def ready(self) -> None:
        """See the class."""
        checks.register(check_settings)
        setting_changed.connect(_forget, dispatch_uid="s2pubsub")


def _forget(*, setting: str, **_: Any) -> None:
    # Tests override settings.
    if setting == SETTING:
        configuration.reset()
