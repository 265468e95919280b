"""Settings of the Django project that the tests serve."""

from __future__ import annotations

import json
import os
import tempfile

_config = json.loads(os.environ.get("WEB_CONFIG", "{}"))

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["s2pubsub.contrib.django"]
MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
ROOT_URLCONF = "tests.web.django_app"
WSGI_APPLICATION = "tests.web.django_app.application"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(tempfile.gettempdir(), f"s2pubsub-django-{os.getpid()}.sqlite3"),
        "CONN_MAX_AGE": 600,
        "ATOMIC_REQUESTS": bool(_config.pop("atomic_requests", False)),
    }
}
USE_TZ = True
S2PUBSUB = {"AUTHORIZE": "tests.web.django_app.may_see", **{name.upper(): value for name, value in _config.items()}}
