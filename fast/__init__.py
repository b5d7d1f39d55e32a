"""The policies of `kvlab.reference` on real models, and the ``kvlab`` command.

Modules that need PyTorch say so when they are used; importing this package does not import it.
"""
