"""Programs to start from: a web process that streams runs, and pools of workers that write them.

==================  ==============================================================================================
``gunicorn_web``    the web process: starts runs, hands them to a pool, streams them, stops them
``celery_worker``   a pool of processes: Celery tasks
``thread_pool``     a pool of threads in the process that starts the runs
``writing``         what a worker of either kind does
==================  ==============================================================================================

All of them take their settings from the environment (``S2_ACCESS_TOKEN``, ``S2_BASIN``, …).
"""
