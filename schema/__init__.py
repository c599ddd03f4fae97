"""The language of the log: pure values and pure functions that every other room speaks.

Nothing here reads a clock, draws a random number, opens a file or a socket. Commands are intents,
events are facts, `decide` turns a command into events, `evolve` folds events into the state of one
aggregate, and `cluster.project` folds the whole log into a view of the cluster.
"""
