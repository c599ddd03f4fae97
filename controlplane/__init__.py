"""The control plane: what keeps the history, decides and answers; in one process or in many.

`persister` copies the log into Postgres, exactly once. `scheduler` lets policies (pure, in `core`)
answer events with operations. `timers` notices what falls silent. `api` answers clients. They know
each other only through the log, so any number of them may run; where one must be alone (the
persister) Postgres holds the lock. `main` wires them.
"""
