"""Which engine an option names."""

from kvlab.fast.lab.sweep.engines import NAMES, Engine, LocalEngine


def choose_engine(name: str, workers: int | None = None, gpus: float | None = None) -> Engine:
    """Return an engine.

    Args:
        name: one of `engines.NAMES`.
        workers: of the Ray engine; None: as many as fit the cluster.
        gpus: per worker of the Ray engine; None: 1 if the cluster has any.

    Raises:
        ValueError: if there is no such engine, or a number is not allowed.
        ConnectionError: if the cluster cannot be reached.
    """
    if name not in NAMES:
        raise ValueError(f"engine = {name!r} must be one of {', '.join(map(repr, NAMES))}")
    if name == "local":
        if workers is not None or gpus is not None:
            raise ValueError("workers and gpus can only be given with engine = 'ray'")
        return LocalEngine()
    if workers is not None and workers < 1:
        raise ValueError(f"workers = {workers} must be at least 1")
    if gpus is not None and not 0 <= gpus < 1024:
        raise ValueError(f"gpus = {gpus} must be at least 0 and a number of devices")
    from kvlab.fast.lab.sweep.cluster import RayEngine

    return RayEngine(workers, gpus)
