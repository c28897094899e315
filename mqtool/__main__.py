"""``python -m mqtool``, and the program of that name."""

import signal


def main() -> None:
    """Run the command line; an interrupt while it is being loaded ends the program, without a traceback."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from mqtool import cli

    cli.main()


if __name__ == "__main__":
    main()
