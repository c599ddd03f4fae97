"""Reading and writing files and object stores at the speed of the machine.

Knows bytes, files and stores; nothing of artifacts, of the log or of movers. Imports `schema` alone
(for errors and ranges), so that the SDK and the movers read checkpoints with the same code.

    kernel.py    what this kernel and file system can: cached pages, direct I/O, and their limits
    memory.py    memory to read into: huge pages, pages made present, copies without the GIL
    spans.py     which bytes of a file belong where in memory, cut into blocks (pure)
    reader.py    one file, each block by the quickest way: from the cache, or past it
    writer.py    one file, written past the page cache
    crew.py      the few threads that carry blocks
    faults.py    errors of the operating system as ours
    objects.py   objects of S3 and other stores, read by ranges and written in parts

None of it imports torch.
"""
