"""The command line of lm-eval, which knows the model ``kvlab``."""

from lm_eval.__main__ import cli_evaluate

from kvlab.fast.lab.harness import model  # noqa: F401  registers it

cli_evaluate()
