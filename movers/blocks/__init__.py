"""KV blocks: thousands of small pieces in few slabs, found by key, shared, spilled and sent.

base.py     what the blocks of a node need from others: a reporter, a locator, a spill
"""
