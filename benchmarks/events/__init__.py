"""How fast the log is: measured by `python -m events`, one line of JSON for each measurement."""
