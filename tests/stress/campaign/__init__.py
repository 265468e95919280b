"""A fault campaign: processes of every kind use the library while wires, servers and processes fail, and the stored
log is compared with what each of them was told. ``python -m tests.stress.campaign --help``.

- ``worker``: one process; what it does is its role: ``publishing``, ``reading``, ``leasing``, ``running``.
- ``notes``: what the processes write down, in files that a kill cannot take back.
- ``crew``: starts the processes behind proxies, kills, stops, forks and replaces them. ``fire``: the faults.
- ``stored``: the log, read past the library. ``checker``: the judge, who knows notes and log only.
"""
