"""Stands in for a CUDA graph on the CPU: operations are recorded, then run on the same addresses.

What a capture needs is shown by it: no synchronisation, no address that moves. As in a capture,
what is recorded leaves all memory as it was.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::item", "aten::equal"}


class Recorder(TorchDispatchMode):
    """Notes every operation and what it returned; undoes what was written to older tensors."""

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.new = [], [], set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function._schema.name
        assert name not in READS, f"{name} waits for the device"
        given = dict(zip((a.name for a in function._schema.arguments), args, strict=False)) | kwargs
        for argument in function._schema.arguments:
            written = argument.alias_info is not None and argument.alias_info.is_write
            for x in tree_leaves(given.get(argument.name)) if written else ():
                if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() not in self.new:
                    self.before.append((x, x.clone()))
        found = function(*args, **kwargs)
        older = {x.untyped_storage().data_ptr() for x in tensors((args, kwargs))}
        self.new |= {x.untyped_storage().data_ptr() for x in tensors(found)} - older
        self.calls.append((function, args, kwargs, found))
        return found

    def trace(self):
        """Return each operation with the memory that it was given; None is its own of this run."""
        return [
            (function._schema.name, [self.address(x) for x in tensors((args, kwargs))])
            for function, args, kwargs, _ in self.calls
        ]

    def address(self, x):
        own = x.untyped_storage().data_ptr() in self.new
        return x.shape, None if own else x.data_ptr()

    def undo(self):
        for x, before in reversed(self.before):
            x.copy_(before)

    def replay(self):
        for function, args, kwargs, found in self.calls:
            again = function(*args, **kwargs)
            for old, new in zip(tensors(found), tensors(again), strict=True):
                if old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def tensors(x):
    return [each for each in tree_leaves(x) if isinstance(each, torch.Tensor)]


def recorded(run):
    """Do what `kvlab.fast.huggingface.graphs.captured` does, for any device.

    The function runs once for what it keeps for later (views of columns), and then twice: both
    times it must do the same to the same memory.
    """
    every = Recorder(), Recorder(), Recorder()
    for recorder in every:
        with recorder:
            run()
        recorder.undo()
    for one, other in zip(every[1].trace(), every[2].trace(), strict=True):
        assert one == other, "operations or addresses changed between two runs"
    return every[2].replay
