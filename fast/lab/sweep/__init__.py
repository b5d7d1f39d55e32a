"""Sweeps: method × budget × task × model × seed, on one process or a Ray cluster.

`plan` reads what is asked for and cuts it into jobs, `jobs` does them in one process or several,
`cluster` on many machines, and `run` keeps what was found. `summary` and `report` read that.
`compare` runs a sweep at once and keeps it in memory.
"""
