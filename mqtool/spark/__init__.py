"""Spark jobs over a store too large for one machine."""

import sys


def run_as_program(job: str) -> None:
    """Run ``mqtool spark JOB`` with the words of the command line, as ``spark-submit`` gives them to a job's file."""
    from mqtool.cli import main

    words = sys.argv[1:]
    sys.argv[1:] = ["spark", job, *(words[1:] if words[:1] == ["--"] else words)]
    main()
