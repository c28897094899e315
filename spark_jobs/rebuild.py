"""``spark-submit spark_jobs/rebuild.py -- ...`` runs ``mqtool spark rebuild ...``."""

from mqtool.spark import run_as_program

run_as_program("rebuild")
