"""Sweeps: method × budget × task × model × seed, on one process or a Ray cluster.

`plan` reads what is asked for and cuts it into jobs, `worker` does one job, `engines` and `cluster`
hand jobs to workers, `dataset` keeps what they found, and `run` puts them together. `summary` and
`report` read the data set. `compare` runs a sweep at once and keeps it in memory; `findings` says
what it shows.
"""
