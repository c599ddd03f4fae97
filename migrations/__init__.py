"""The changes of the database, in order: one file each, named by its number and what it does.

`tensorcast.controlplane.store.migrate` runs them when a control plane starts. They never import
the tables of today: a migration means the same for ever.
"""
