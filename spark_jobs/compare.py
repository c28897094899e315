"""``spark-submit spark_jobs/compare.py -- ...`` runs ``mqtool spark compare ...``."""

from mqtool.spark import run_as_program

run_as_program("compare")
