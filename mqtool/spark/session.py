"""The session that a job runs in: created as the command line asks, or the one that ``spark-submit`` prepared.

A session created here is quiet, listens on no network address if it runs on this machine alone, and ships the package
to executors in other processes.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mqtool.errors import MissingExtraError, MqtoolError, Status, UnavailableError

_ONE_PROCESS = re.compile(r"local(\[.*\])?")
_ON_THIS_MACHINE = re.compile(r"local(-cluster)?(\[.*\])?")
_WITHOUT_RETRY = re.compile(r"^(local\[[^],]+)\]$")
_TRIES = 4  # of a task, as on a cluster: a process that reads a file which is cut short may end
_ROOT = Path(__file__).parent.parent.parent
_SHIPPED = ("mqtool", "pyspark_rocketmq", "pyspark_rocketmq_store")
_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # On a busy machine a Python process takes longer to begin than the 15 s that Spark waits for it.
    "spark.python.authenticate.socketTimeout": "120s",
    # What Spark keeps of tasks, stages and queries that are done, for a web page that is not there.
    "spark.ui.retainedTasks": "100",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedJobs": "20",
    "spark.sql.ui.retainedExecutions": "5",
}
_POLL = 0.2  # seconds
_LAST_LINES = 5
_OLDEST_PYSPARK = (3, 5)

Conf = Mapping[str, str]
Progress = Callable[[float], object]
"""Is told which part of the work is done, from 0 to 1."""


class JavaMissingError(MqtoolError):
    """Spark needs a Java that is missing or too old."""

    exit_code = Status.UNAVAILABLE

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Spark needs Java 17 or later, {reason}: install a JDK 17 (Debian, Ubuntu: openjdk-17-jdk-headless) and "
            "put it on the PATH or in JAVA_HOME"
        )


def need_pyspark() -> None:
    """Make sure that a PySpark is installed that has everything that the jobs need.

    Raises:
        MissingExtraError: it is missing.
        UnavailableError: it is older.
    """
    try:
        import pyspark
    except ImportError as error:
        raise MissingExtraError("mqtool spark", "spark") from error
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < _OLDEST_PYSPARK:
        oldest = ".".join(map(str, _OLDEST_PYSPARK))
        raise UnavailableError(f"mqtool spark needs PySpark {oldest} or later, and {pyspark.__version__} is installed")


@contextlib.contextmanager
def session(master: str | None, conf: Conf, name: str) -> Iterator[Any]:
    """Yield a Spark session and end it, unless it existed before.

    Args:
        master: ``local[N]``, ``local-cluster[N,CORES,MIB]``, ``spark://..``, ``yarn``, ``k8s://..``, or ``sc://..`` for
            Spark Connect; None: what ``spark-submit`` says, else ``local[*]``.
        conf: settings of Spark.
        name: of the application.

    Raises:
        MissingExtraError: Spark Connect is not installed.
        JavaMissingError: Java is missing or too old.
        UnavailableError: the master does not answer.
    """
    # Workers must run the Python for which the packages of this one were built.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():  # executors fetch the package from there
        warnings.filterwarnings("ignore", category=FutureWarning, module="pyspark")
        from pyspark.sql import SparkSession

        if master is not None and master.startswith("sc://"):
            spark = _connected(SparkSession, master, conf)
        else:
            spark = _made(SparkSession, master, conf, name)
        try:
            if is_connect(spark):
                spark.addArtifacts(str(package_into(Path(folder))), pyfile=True)
            elif not _ONE_PROCESS.fullmatch(spark.sparkContext.master) and _ROOT.is_dir():  # no zip file of --py-files
                spark.sparkContext.addPyFile(str(package_into(Path(folder))))
            yield spark
        finally:
            with contextlib.suppress(Exception):  # it may have ended by itself
                spark.stop()


def _made(factory: Any, master: str | None, conf: Conf, name: str) -> Any:
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if master is None and not submitted:
        master = "local[*]"
    builder = factory.builder.appName(name)
    for key, value in {**({} if submitted else _settings(master or "")), **conf}.items():
        builder = builder.config(key, value)
    if master is not None:
        builder = builder.master(_WITHOUT_RETRY.sub(rf"\1,{_TRIES}]", master))
    return builder.getOrCreate() if submitted else _started(builder.getOrCreate)


def _settings(master: str) -> dict[str, str]:
    settings = dict(_QUIET)
    if os.name == "posix":
        # By TCP the small writes with which a task begins wait for acknowledgements, longer than some tasks take.
        settings["spark.python.unix.domain.socket.enabled"] = "true"
    if _ON_THIS_MACHINE.fullmatch(master):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Else the JVM takes over half of its heap for what is garbage at once, before it collects any.
        settings["spark.driver.defaultJavaOptions"] = "-XX:+UnlockExperimentalVMOptions -XX:G1MaxNewSizePercent=15"
    return settings


def _started(start: Callable[[], Any]) -> Any:
    """Start a JVM whose output goes into a file: errors are reported from there, and the rest is dropped."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if java is None:
        raise JavaMissingError(f"and there is none in JAVA_HOME ({home})" if home else "and none was found")
    with tempfile.TemporaryFile() as log:
        sys.stderr.flush()
        before = os.dup(2)
        os.dup2(log.fileno(), 2)  # the JVM keeps it
        try:
            return start()
        except Exception as error:
            log.seek(0)
            text = log.read().decode("utf-8", "replace")
            if "UnsupportedClassVersionError" in text or "requires Java" in text:
                raise JavaMissingError(f"and {java} is older") from error
            lines = [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]
            raise UnavailableError(f"cannot start Spark: {first_line(error)} {' '.join(lines)}".strip()) from error
        finally:
            os.dup2(before, 2)
            os.close(before)


def _connected(factory: Any, url: str, conf: Conf) -> Any:
    try:
        builder = factory.builder.remote(url)
        for key, value in conf.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.version  # noqa: B018 - the first question shows whether anybody answers
    except ImportError as error:
        raise MissingExtraError("Spark Connect", "spark") from error
    except Exception as error:
        raise UnavailableError(f"{url} does not answer as a Spark Connect server: {first_line(error)}") from error
    return spark


def first_line(error: BaseException) -> str:
    """Return what an error of Spark says first: the rest is a stack of the JVM's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):  # py4j, of what the JVM raised
        lines = [lines[1].removeprefix(": "), *(line for line in lines if line.startswith("Caused by: "))]
        cause = lines[-1].removeprefix("Caused by: ")
        return lines[0] if cause in lines[0] else f"{lines[0]}: {cause}"
    return lines[0] if lines else type(error).__name__


def package_into(folder: Path) -> Path:
    """Make a zip file of the package and return its path."""
    path = folder / "mqtool_package.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in _SHIPPED:
            for file in sorted(path for ending in ("py", "pyi") for path in (_ROOT / name).rglob(f"*.{ending}")):
                archive.write(file, file.relative_to(_ROOT).as_posix())
    return path


@contextlib.contextmanager
def setting(spark: Any, name: str, value: str) -> Iterator[None]:
    """Have a setting of the session while the block runs."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, before)


def is_connect(spark: Any) -> bool:
    """Return whether a session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def cores_of(spark: Any) -> int | None:
    """Return how many tasks run at once, None if only the server of Spark Connect knows."""
    return None if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


@contextlib.contextmanager
def watched(spark: Any, progress: Progress) -> Iterator[None]:
    """Report the progress of the session, by its tasks, while the block runs."""
    if is_connect(spark) and not hasattr(spark, "registerProgressHandler"):  # before 4.0
        yield
        return
    if is_connect(spark):
        handler = _connect_handler(progress)
        spark.registerProgressHandler(handler)
        try:
            yield
        finally:
            spark.removeProgressHandler(handler)
        return
    done = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def poll() -> None:
        while not done.wait(_POLL):
            with contextlib.suppress(Exception):  # the context may be stopping
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                _tell(progress, [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage])

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _connect_handler(progress: Progress) -> Callable[..., None]:
    def handler(stages: Iterable[Any] | None = None, **_: Any) -> None:
        _tell(progress, [(stage.num_completed_tasks, stage.num_tasks) for stage in stages or ()])

    return handler


def _tell(progress: Progress, stages: list[tuple[int, int]]) -> None:
    """Report the stage with the most tasks: the one that reads."""
    done, count = max(stages, key=lambda stage: stage[1], default=(0, 0))
    if count:
        progress(done / count)
