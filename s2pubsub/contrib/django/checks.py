"""The system check: what is wrong with the ``S2PUBSUB`` setting. Reads only; connects to nothing."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured

from s2pubsub.contrib.django.configuration import SETTING, configuration


def check_settings(app_configs: Any = None, **_: Any) -> list[CheckMessage]:
    """``s2pubsub.E001``: wrong; ``E002``: incomplete; ``E003``: a hook is wrong; ``W001``: nobody may see a run."""
    messages: list[CheckMessage] = []
    try:
        configuration.read().complete()
    except ImproperlyConfigured as error:
        messages.append(Error(str(error), id="s2pubsub.E001"))
    except ValueError as error:
        messages.append(Error(f"{SETTING}: {error}", id="s2pubsub.E002"))
    try:
        authorize = configuration.authorize
        configuration.hook("TRANSFORM")
    except ImproperlyConfigured as error:
        messages.append(Error(str(error), id="s2pubsub.E003"))
    else:
        if authorize is None:
            hint = "Give the dotted path of a function (request, run_id) -> bool."
            text = f"{SETTING}['AUTHORIZE'] is not set: the views of s2pubsub.contrib.django.urls refuse everybody."
            messages.append(Warning(text, hint=hint, id="s2pubsub.W001"))
    return messages
