"""The suites: which contenders do which works, and the goals that they are measured by.

Each module has `make(sizes)`, which answers a `harness.catalog.Suite`; `goals.py` has the table.
"""
