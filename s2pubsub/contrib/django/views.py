# mypy: allow-untyped-decorators
"""Views that show and stop runs. ``urls`` has their usual addresses."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponseBase
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_GET, require_POST

from s2pubsub.contrib.django.configuration import Authorize, configuration, get_runs
from s2pubsub.contrib.django.responses import run_response, stop_response
from s2pubsub.sse.formats import FormatName


@require_GET
@transaction.non_atomic_requests
def run_events(
    request: HttpRequest,
    run_id: str,
    *,
    authorize: Authorize | None = None,
    format: FormatName = "events",
    **options: Any,
) -> HttpResponseBase:
    """Show a run. Options of ``path(…, run_events, {…})`` go before the ``S2PUBSUB`` setting.

    Args:
        request: the request.
        run_id: the run.
        authorize: says whether the request may see it; else the setting's ``AUTHORIZE``; where neither is given,
            nobody may.
        format: see ``sse.stream``.
        options: further arguments of ``sse.answer_run``.
    """
    site = configuration.site
    defaults = {"limiter": site.limiter, "transform": configuration.transform, **site.web.of_answers()}
    chosen = {**defaults, **options}
    return run_response(request, get_runs(), run_id, authorize=_allowed(authorize), format=format, **chosen)


@csrf_protect
@require_POST
@transaction.non_atomic_requests
def stop_run(request: HttpRequest, run_id: str, *, authorize: Authorize | None = None) -> HttpResponseBase:
    """Stop a run. Needs Django's CSRF token, as any form does. ``authorize``: see ``run_events``."""
    return stop_response(request, get_runs(), run_id, authorize=_allowed(authorize))


def _allowed(authorize: Authorize | None) -> Authorize:
    return authorize or configuration.authorize or _nobody


def _nobody(request: HttpRequest, run_id: str) -> bool:
    return False
