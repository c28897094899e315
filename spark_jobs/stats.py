"""``spark-submit spark_jobs/stats.py -- ...`` runs ``mqtool spark stats ...``."""

from mqtool.spark import run_as_program

run_as_program("stats")
