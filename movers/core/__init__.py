"""The mover's pure half: which bytes from where, what to drop. No I/O, no clock, no chance."""
