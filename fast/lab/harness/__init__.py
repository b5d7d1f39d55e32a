"""lm-evaluation-harness with a compressed cache: the model class ``kvlab``.

lm-eval finds it by the entry point in ``pyproject.toml`` from the first release after 0.4.13 on.
Until then ``python -m kvlab.fast.lab.harness run --model kvlab ...`` is its command line.
"""
