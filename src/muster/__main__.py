"""The program `muster`, also `python -m muster`."""

import signal
import sys

# Imports take long enough for a user to press Ctrl-C: until a command handles it, it ends the process as it ends any
# program, without a traceback from the middle of an import. A signal that the caller has ignored stays ignored.
_OURS = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _OURS:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> int:
    """Run the command line; returns the exit code."""
    from muster.cli.main import main as run

    try:
        if _OURS:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return run()
    except KeyboardInterrupt as interrupt:  # another one, while the first was being handled
        return 128 + int((*interrupt.args, signal.SIGINT)[0])
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
