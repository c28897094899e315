"""The jobs on the oldest PySparks that managed clusters have: their tests, in an environment of its own for each."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.spark.session import ROOT, need_java

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("older pyspark")]

PY4J = {"3.5.7": "0.10.9.7", "4.0.1": "0.10.9.9"}
ONE_OF_EACH_JOB = (
    "test_findings_of_all_golden_stores_are_those_of_verify",
    "test_counts_are_those_of_stats",
    "test_what_find_finds_is_found",
    "test_a_store_is_rebuilt_byte_for_byte",
    "test_exported_messages_are_those_of_the_store",
    "test_addresses_that_only_one_store_has_are_told",
    "test_messages_are_compared_as_by_the_command",
    "test_progress_is_what_is_saved_and_what_the_log_tells",
)


def environment(version: str) -> Path:
    """Return a folder with this PySpark and nothing else; all processes of a user share it."""
    folder = Path(tempfile.gettempdir(), f"mqtool-pyspark-{version}-{os.getuid()}")
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        packages = (f"pyspark=={version}", f"py4j=={PY4J[version]}")
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(made), *packages]
        done = subprocess.run(pip, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


@pytest.mark.parametrize("version", PY4J)
def test_every_job_answers_as_its_command(version: str) -> None:
    need_java()
    given = os.environ | {"PYTHONPATH": os.pathsep.join([str(environment(version)), str(ROOT)])}
    given.pop("SPARK_HOME", None)
    for name in [name for name in given if name.startswith("PYTEST_")]:
        del given[name]
    asked = [f"tests/spark/test_jobs.py::{name}" for name in ONE_OF_EACH_JOB]
    words = ["-q", "-x", "-m", "java", "-o", "filterwarnings=default", "--disable-warnings", "-p", "no:cacheprovider"]
    code = f"import pyspark, pytest; assert pyspark.__version__ == {version!r}; raise SystemExit("
    code += f"pytest.main({words + asked}))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=given)

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " failed" not in done.stdout
