"""Sweeps: method × budget × task × model × seed, on one process or a Ray cluster.

`configuration` reads what is asked for, `jobs` cuts it into pieces of work, `worker` does one
piece, `engines` and `cluster` hand pieces to workers, `dataset` keeps what they found, and `run`
puts them together. `summary` and `report` read the data set.
"""
