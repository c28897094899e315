"""``spark-submit spark_jobs/offsets.py -- ...`` runs ``mqtool spark offsets ...``."""

from mqtool.spark import run_as_program

run_as_program("offsets")
