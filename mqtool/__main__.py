"""``python -m mqtool``."""

from mqtool.cli import main

if __name__ == "__main__":
    main()
