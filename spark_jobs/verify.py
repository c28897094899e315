"""``spark-submit spark_jobs/verify.py -- ...`` runs ``mqtool spark verify ...``."""

from mqtool.spark import run_as_program

run_as_program("verify")
