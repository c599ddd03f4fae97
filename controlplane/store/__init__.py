"""Postgres: the whole history as rows, and the read models that follow from it.

`tables` names them, `rows` (pure) turns events and states into rows, `write` is the one
transaction of the persister, `queries` is what the API reads, `migrate` brings a database up to
date. Only the persister writes.
"""
