"""``spark-submit spark_jobs/find.py -- ...`` runs ``mqtool spark find ...``."""

from mqtool.spark import run_as_program

run_as_program("find")
