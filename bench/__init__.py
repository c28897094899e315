"""Speed of mqtool as ratios to a limit measured in the same run: ``python -m bench``."""
