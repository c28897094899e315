"""``spark-submit spark_jobs/stats.py -- ...`` is ``mqtool spark stats ...``."""

from mqtool.spark import run_as_program

run_as_program("stats")
