"""``spark-submit spark_jobs/export.py -- ...`` runs ``mqtool spark export ...``."""

from mqtool.spark import run_as_program

run_as_program("export")
