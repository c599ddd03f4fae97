"""The memory of GPUs, behind one small port.

`port.py` says what is needed of a device; `cuda.py` does it with the CUDA driver (the one that
torch.cuda uses: addresses, streams and contexts of a process are the same for both) and `fake.py`
with ordinary memory, under the same rules of life-time, which it checks. `staging.py` carries bytes
between a device and memory that is not pinned; `finding.py` finds the devices of this machine.

Nothing here imports torch, so a mover that has GPUs starts as fast as one that has none.
"""
