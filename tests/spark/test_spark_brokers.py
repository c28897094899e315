"""The source and sink of running brokers in Spark itself, against a broker of ours and one of RocketMQ."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.query import StreamingQuery

import mqtool
from mqtool import ProducerMessage
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from tests.commands.running import as_options
from tests.commands.test_serve import serving_both
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, in_a_thread, running_broker
from tests.engine.remoting.test_tls import with_certificate
from tests.ports import free_port
from tests.spark.session import session
from tests.spark.test_brokers import ACCOUNTS

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("spark"), pytest.mark.filterwarnings("ignore")]

REAL = "5.3.3"


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return session()


@pytest.fixture(scope="module", params=["ours", REAL])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if request.param == "ours":
        with mqtool.Broker() as broker:
            yield broker.name_server_address
        return
    jars(REAL, POM)
    with in_a_thread(_real(tmp_path_factory.mktemp("java") / "broker")) as name_server:
        yield name_server


@contextlib.asynccontextmanager
async def _real(folder: Path) -> AsyncIterator[str]:
    async with (
        Cluster(NameServerConfig()) as names,
        running_broker(REAL, folder, names.name_server_address, free_port()),
    ):
        yield names.name_server_address


def load(spark: SparkSession, address: str, **options: object) -> DataFrame:
    given = {name: str(one) for name, one in options.items()}
    return spark.read.format("rocketmq").option("namesrv", address).options(**given).load()


def topic_of(address: str, name: str) -> str:
    with mqtool.AdminClient(address) as admin:
        admin.create_topic(name, queues=3)
    return name


def send(address: str, topic: str, start: int, count: int) -> None:
    with mqtool.Producer("tests", address) as producer:
        queues = producer.queues(topic)
        for n in range(start, start + count):
            message = ProducerMessage(topic, b"%d" % n, tags="even" if n % 2 == 0 else "odd", keys=[f"k{n}"])
            producer.send(message, queues[n % 3])


def test_topics_are_tables_streams_and_sinks(spark: SparkSession, address: str, tmp_path: Path) -> None:
    orders, copies = topic_of(address, "Orders"), topic_of(address, "Copies")
    send(address, orders, 0, 30)
    frame = load(spark, address, topic=orders, columns="all")
    assert frame.where("tags = 'even' and queue_id = 0").count() == 5
    assert sorted(int(row.body) for row in frame.collect()) == [*range(30)]
    heads = load(spark, address, topic=orders)
    assert set(frame.columns) - set(heads.columns) == {"body", "properties"}

    def follow() -> StreamingQuery:
        source = spark.readStream.format("rocketmq").options(
            nameServer=address, subscribe=orders, columns="body,tags,keys", maxOffsetsPerTrigger="9", group="copying"
        )
        rows = source.load().withColumn("properties", functions.create_map(functions.lit("by"), functions.lit("spark")))
        writer = rows.writeStream.format("rocketmq").options(
            namesrv=address, topic=copies, checkpointLocation=str(tmp_path / "checkpoint")
        )
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = follow()
    assert len(query.recentProgress) >= 3
    send(address, orders, 30, 10)
    follow()

    copied = load(spark, address, topic=copies, columns="all").collect()
    assert sorted((int(row.body), row.tags, row["keys"], row.properties["by"]) for row in copied) == [
        (n, "even" if n % 2 == 0 else "odd", f"k{n}", "spark") for n in range(40)
    ]
    with mqtool.AdminClient(address) as admin:
        assert [one.lag for one in admin.offsets("copying") if one.topic == orders] == [0, 0, 0]

    rows = spark.range(100).select(functions.col("id").cast("string").alias("body"))
    rows.write.format("rocketmq").options(namesrv=address, topic=copies).mode("append").save()
    assert load(spark, address, topic=copies).count() == 140


def test_errors_are_sentences(spark: SparkSession, tmp_path: Path) -> None:
    with mqtool.Broker() as broker:
        there = topic_of(broker.name_server_address, "There")
        options: dict[str, Any]
        for options, told in (
            ({"topic": "Ther"}, "NotFoundError: topic Ther does not exist, or cannot be read"),
            ({"topic": there, "startingOffsets": "x"}, "UsageError: unknown startingOffsets x"),
        ):
            with pytest.raises((AnalysisException, PythonException)) as refused:
                load(spark, broker.name_server_address, **options).collect()
            assert told in str(refused.value)
            assert "Traceback" not in str(refused.value)
        rows = spark.range(3).selectExpr("cast(id as string) as body", "null as tags")
        with pytest.raises(Exception, match="UsageError: column tags is void, not string: cast it in the query"):
            rows.write.format("rocketmq").options(namesrv=broker.name_server_address).mode("append").save()
        sent = spark.range(3).selectExpr("cast(null as string) as body").write.format("rocketmq").mode("append")
        with pytest.raises(PythonException, match="cannot send row 0 of a partition: its body is null") as refused:
            sent.options(namesrv=broker.name_server_address, topic=there).save()
        assert "Traceback" not in str(refused.value)
        source = spark.readStream.format("rocketmq").options(namesrv=broker.name_server_address, topic="Ther").load()
        writer = source.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        with pytest.raises(StreamingQueryException, match="NotFoundError: topic Ther does not exist") as failed:
            writer.trigger(availableNow=True).start().awaitTermination()
        assert "Traceback" not in str(failed.value)


def test_a_served_broker_with_accounts_and_tls_is_a_table_a_stream_and_a_sink(
    spark: SparkSession, tmp_path: Path
) -> None:
    folder = with_certificate(tmp_path)
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    settings = {
        "tls.server.mode": "enforcing", "tls.server.certPath": folder / "cert.pem",
        "tls.server.keyPath": folder / "key.pem",
    }  # fmt: skip
    flags = as_options(settings)
    with serving_both(folder / "store", "--acl", folder / "plain_acl.yml", *flags) as (_, address, _):
        safe = {"tls": "true", "authorities": str(folder / "cert.pem"), "namesrv": address, "topic": "Kept"}
        owner = {**safe, "accessKey": "administrator", "secretKey": "12345678"}
        who = mqtool.ClientOptions(
            access_key="administrator", secret_key="12345678", tls=True, authorities=folder / "cert.pem"
        )
        with mqtool.AdminClient(address, who) as admin:
            for topic in ("Kept", "Copies"):
                admin.create_topic(topic, queues=2)
        rows = spark.range(50).select(functions.col("id").cast("string").alias("body"))

        rows.write.format("rocketmq").options(**owner).mode("append").save()

        source = spark.readStream.format("rocketmq").options(**owner, group="copying", columns="body").load()
        writer = source.writeStream.format("rocketmq").options(
            **{**owner, "topic": "Copies"}, checkpointLocation=str(tmp_path / "checkpoint")
        )
        writer.trigger(availableNow=True).start().awaitTermination()
        copied = spark.read.format("rocketmq").options(**{**owner, "topic": "Copies"}, columns="body").load()
        assert sorted(int(row.body) for row in copied.collect()) == [*range(50)]
        with pytest.raises((AnalysisException, PythonException)) as refused:
            spark.read.format("rocketmq").options(**safe, accessKey="administrator", secretKey="x").load().collect()
        assert "AccessDeniedError: " in str(refused.value)
        assert "Traceback" not in str(refused.value)
