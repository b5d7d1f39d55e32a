"""Where the ``kvlab`` command begins and ends, from the first moment without a traceback.

Processes that the command starts import this module again, and nothing of the command line with it.
"""

import signal

EXTRAS = {
    "torch": "fast",
    "gguf": "fast",
    "transformers": "fast",
    "huggingface_hub": "fast",
    "pyarrow": "sweep",
    "ray": "sweep",
    "lm_eval": "eval",
    "accelerate": "eval",
}
"""What the extras in `pip install 'kvlab[fast,sweep,eval]'` bring."""


def main() -> None:
    """Load the command line, and run it; bad input ends with one clear line and exit code 2."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from kvlab.fast.lab import cli
    from kvlab.fast.lab.terminal import refuse

    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = cli.app(standalone_mode=False)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is left is to end
        raise SystemExit(code)
    except cli.BadUsage as error:
        if said := error.format_message():  # without a command, the help is printed already
            known = error.ctx.command.params if error.ctx else ()
            meant = [each.opts[0] for each in known if each.name in ("prompt", "methods")]
            surplus = meant and "unexpected extra argument" in said
            refuse(f"{said}; type {meant[0]} before it" if surplus else said)
        raise SystemExit(error.exit_code) from None
    except (ValueError, TypeError, OSError) as error:
        refuse(str(error))
    except ModuleNotFoundError as error:
        if not (extra := EXTRAS.get(error.name or "")):
            raise
        refuse(f"this command needs {error.name}: pip install 'kvlab[{extra}]', or make .venv/dev")
