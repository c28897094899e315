"""The page ``docs/reports/mqadmin.md``: what each command of mqadmin 5.3.3 makes of mqtool, and of a real broker.

``python -m tests.differential.mqadmin_table > docs/reports/mqadmin.md`` makes it again, with JVMs for the real name
server, the real broker and mqadmin. Ours controls access, and mqadmin has the keys of an administrator. A command works
like the real one if it prints the same for both, but for times, ids, rates and order.
"""

import asyncio
import collections
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from tests.differential.java_broker import MqAdmin, mqadmin, running_broker, running_name_server
from tests.interop import ACCOUNTS, SECRET
from tests.ports import free_port

VERSION = "5.3.3"
BROKER_NAME = "broker-java"


class AdminTarget(NamedTuple):
    """A name server with its one broker."""

    name_server: str
    broker: str


COMMANDS = """
updateTopic -b {broker} -t Table -r 4 -w 4
updateTopic -c DefaultCluster -t Second -r 2 -w 2 -a +message.type=NORMAL
updateTopic -b {broker} -t Bad.Name
updateTopicList -b {broker} -f {folder}/topics.json
updateSubGroup -b {broker} -g TableGroup -r 3 -q 1
updateSubGroupList -b {broker} -f {folder}/groups.json
clients Table TableGroup
topicRoute -t Table
topicRoute -t Table -l
topicRoute -t Nowhere
topicList
topicList -c
topicClusterList -t Table
topicStatus -t Table
topicStatus -t Nowhere
updateTopicPerm -b {broker} -t Second -p 4
allocateMQ -t Table -i 10.0.0.1,10.0.0.2
clusterList
clusterList -m
brokerStatus -b {broker}
brokerConsumeStats -b {broker}
producerConnection -g TableGroupProducer -t Table
producerConnection -g Nobody -t Table
producer -b {broker}
consumerConnection -g TableGroup
consumerConnection -g Nobody
consumerProgress
consumerProgress -g TableGroup
consumerProgress -g TableGroup -s true
consumerStatus -g TableGroup
consumerStatus -g TableGroup -i {client_id}
getConsumerConfig -g TableGroup
queryMsgById -t Table -i {offset_id}
queryMsgById -t Table -i {unique_key}
queryMsgById -t Table -i {offset_id} -g TableGroup -d {client_id}
queryMsgByKey -t Table -k key3
queryMsgByUniqueKey -t Table -i {unique_key}
queryMsgByUniqueKey -t Table -i {unique_key} -g TableGroup -d {client_id}
queryMsgByOffset -t Table -b {name} -i 0 -o 1
queryMsgTraceById -i {unique_key}
printMsg -t Table -d true
printMsgByQueue -t Table -a {name} -i 0 -p true -d true -f true
consumeMessage -t Table -b {name} -i 0 -o 0 -c 2
queryCq -t Table -q 0 -i 0 -c 2 -b {broker}
queryCq -t Table -q 0 -i 0 -c 2 -b {broker} -g TableGroup
sendMessage -t Table -p text -k key -c Tag -b {name} -i 1
sendMsgStatus -b {name} -c 3
checkMsgSendRT -t Second -a 2
statsAll -t Table
statsAll
cloneGroupOffset -s TableGroup -d Nobody -t Table
updateSubGroup -b {broker} -g CloneGroup
cloneGroupOffset -s TableGroup -d CloneGroup -t Table
consumerProgress -g CloneGroup
resetOffsetByTime -g TableGroup -t Table -s -1
resetOffsetByTime -g CloneGroup -t Table -s 0
resetOffsetByTime -g CloneGroup -t Table -s -1 -q 1 -o 1 -b {broker}
skipAccumulatedMessage -g TableGroup -t Table
setConsumeMode -b {broker} -t Table -g TableGroup -m PULL
setConsumeMode -b {broker} -t Table -g CloneGroup -m POP -q 4
updateKvConfig -s Space -k one -v 1
deleteKvConfig -s Space -k one
updateOrderConf -m put -t Table -v {name}:4
updateOrderConf -m get -t Table
updateOrderConf -m delete -t Table
wipeWritePerm -b {name}
addWritePerm -b {name}
getNamesrvConfig
updateNamesrvConfig -k orderMessageEnable -v true
getBrokerConfig -b {broker}
updateBrokerConfig -b {broker} -k autoCreateTopicEnable -v false
updateBrokerConfig -b {broker} -k fileReservedTime -v 48
updateBrokerConfig -b {broker} -k brokerConfigPath -v /x
cleanExpiredCQ -b {broker}
cleanUnusedTopic -b {broker}
deleteExpiredCommitLog -b {broker}
resetMasterFlushOffset -b {broker} -o 0
haStatus -b {broker}
exportMetadata -c DefaultCluster -f {folder}/exported
exportConfigs -c DefaultCluster -f {folder}/exported
exportMetrics -c DefaultCluster -f {folder}/exported
exportPopRecord -b {broker} -d true
updateStaticTopic -b {name} -t Static -qn 2
remappingStaticTopic -b {name} -t Static
getBrokerEpoch -b {name}
getSyncStateSet -a {broker} -b {name}
getControllerMetaData -a {name_server}
getControllerConfig -a {name_server}
updateControllerConfig -a {name_server} -k a -v b
electMaster -a {name_server} -b 1 -bn {name} -c DefaultCluster
cleanBrokerMetadata -a {name_server} -bn {name} -c DefaultCluster -l
addBroker -c {broker} -b /nowhere/broker.conf
removeBroker -c {broker} -b DefaultCluster:{name}:0
getColdDataFlowCtrInfo -b {broker}
updateColdDataFlowCtrGroupConfig -b {broker} -g TableGroup -v 100
removeColdDataFlowCtrGroupConfig -b {broker} -g TableGroup
setCommitLogReadAheadMode -b {broker} -m 0
rocksDBConfigToJson -c DefaultCluster -t topics
checkRocksdbCqWriteProgress -c DefaultCluster -n {name_server} -t Table
createUser -b {broker} -u someone -p secret
updateUser -b {broker} -u someone -p other
getUser -b {broker} -u someone
listUser -b {broker}
copyUser -f {broker} -t {broker} -u someone
createAcl -b {broker} -s User:someone -r Topic:Table -a Pub -d Allow
updateAcl -b {broker} -s User:someone -r Topic:Table -a Sub -d Allow
getAcl -b {broker} -s User:someone
listAcl -b {broker}
copyAcl -f {broker} -t {broker} -s User:someone
deleteAcl -b {broker} -s User:someone
deleteUser -b {broker} -u someone
deleteSubGroup -b {broker} -g CloneGroup -r true
deleteTopic -t Second -c DefaultCluster
clusterRT -a 1 -i 1
startMonitoring
"""
"""One a line; what is in braces differs from one broker to the other."""

NOTES: dict[str, str] = {
    "topicList": "the real one also names a group `Table` that nobody made",
    "clusterList": "the version, V4_9_8",
    "brokerStatus": "the version; both spellings of `getTransferredTps`; no latencies of the store",
    "consumerStatus": "what a consumer had consumed at that moment",
    "queryMsgById": "the real one also names a group `Table` that nobody made",
    "queryMsgByUniqueKey": "the real one also names a group `Table` that nobody made",
    "queryMsgByOffset": "the real one also names a group `Table` that nobody made",
    "checkMsgSendRT": "times only",
    "clusterRT": "times only",
    "statsAll": "counts of the last seconds are there at once; the real one also names that group `Table`",
    "getNamesrvConfig": "the settings that have an effect here",
    "getBrokerConfig": "the settings that have an effect here",
    "updateStaticTopic": "refused: static topics span several brokers",
    "remappingStaticTopic": "refused: static topics span several brokers",
    "getSyncStateSet": "refused by both, here with the reason: no controller",
    "addBroker": "refused by both, here with the reason: no container of brokers",
    "removeBroker": "refused by both, here with the reason: no container of brokers",
    "getColdDataFlowCtrInfo": "refused: reads of cold data are not limited here",
    "updateColdDataFlowCtrGroupConfig": "refused: reads of cold data are not limited here",
    "removeColdDataFlowCtrGroupConfig": "refused: reads of cold data are not limited here",
    "setCommitLogReadAheadMode": "refused: read-ahead is left to the system here",
    "rocksDBConfigToJson": "refused: nothing is kept in RocksDB here",
    "checkRocksdbCqWriteProgress": "refused: nothing is kept in RocksDB here",
    **dict.fromkeys(
        (f"{verb}{noun}" for noun in ("User", "Acl") for verb in ("create", "update", "get", "list", "copy", "delete")),
        "refused: accounts are defined in `plain_acl.yml` here; the real one fails too while its accounts are "
        "not configured",
    ),
}
"""Why a command prints something else here, by its name."""

SAME = "the same"

_MASKS = (
    (r".*\|-(INFO|WARN).*|^RocketMQLog:.*|^Picked up JAVA.*", ""),
    (r"^%RETRY%TableGroup .*", ""),  # of a group's topics, once its consumer has asked for the route
    (r"[0-9A-F]{32,}", "<id>"),
    (r"[\w.:%-]+@\d+#\d+|[\w.:%-]+@(consumer|producer)<name server>", "<client>"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(,\d+)?", "<time>"),
    (r"\b1[78]\d{11}\b", "<ms>"),
    (r"\b\d+(\.\d+){3}:\d+", "<address>"),
    (r"\b\d+\.\d+\b(?!\.)", "<rate>"),
    (r"rt=\d+ms|spentTimeMills=\d+", "<ms>"),
    (r"\$\$Lambda\S+|(?<=\w)@[0-9a-f]{5,8}\b", ""),
    (r"\b20\d{12,15}\b|commitOffset=\S+", "<time>"),  # of running consumers
    (r"See https\S+ for further details\.|For more information, please visit the url, \S+", ""),
)


def words(printed: str, target: AdminTarget) -> collections.Counter[str]:
    """Return the words of an output, without what is another in every run."""
    text = printed.replace(target.broker, "<broker>").replace(target.name_server, "<name server>")
    for pattern, instead in _MASKS:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE)
    return collections.Counter(re.findall(r"[^\s,;{}\[\]\"()]+", text))


@contextlib.asynccontextmanager
async def real(folder: Path) -> AsyncIterator[AdminTarget]:
    """Run a real name server and broker."""
    async with (
        running_name_server(VERSION, folder / "name-server", free_port()) as name_server,
        running_broker(VERSION, folder / "broker", name_server, free_port()) as broker,
    ):
        yield AdminTarget(name_server, broker)


@contextlib.asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[AdminTarget]:
    """Run mqtool's, where access is controlled."""
    accounts = folder / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    settings = BrokerSettings(broker_name=BROKER_NAME, acl_enabled=True, acl_file=str(accounts))
    async with Cluster(NameServerConfig(), [BrokerConfig(folder / "ours", settings=settings)]) as cluster:
        yield AdminTarget(cluster.name_server_address, cluster.broker_addresses[0])


async def ask(admin: MqAdmin, target: AdminTarget, folder: Path, commands: str) -> AsyncIterator[tuple[str, str]]:
    """Yield each command and what it printed."""
    exported = folder / target.broker.rpartition(":")[2]
    exported.mkdir()
    topics = [{"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for name in ("One", "Two")]
    (exported / "topics.json").write_text(json.dumps(topics))
    (exported / "groups.json").write_text(json.dumps([{"groupName": name} for name in ("GroupOne", "GroupTwo")]))
    places = {**target._asdict(), "name": BROKER_NAME, "folder": str(exported)}
    for line in commands.strip().splitlines():
        command = line.format_map(places).split()
        printed = await admin.run(*command)
        if command[0] == "clients":
            found = re.search(r"^ids (\S+) (\S+) (\S+)$", printed, re.MULTILINE)
            assert found, printed
            places |= zip(("client_id", "offset_id", "unique_key"), found.groups(), strict=True)
        else:
            yield line, printed.replace(str(exported), "<folder>")


_HEAD = """\
# mqadmin

Each command of mqadmin {version} against `mqtool serve` and against a real name server and broker {version}, made by a
run; `serve` controls access, and mqadmin has the keys of an administrator. "The same" is what both print, but for
times, ids, rates and the order of lines. A command may have been tried with several arguments, failures among them.

In all: {summary}.

| command | tried | prints |
|---|---|---|
"""


def page(differing: Mapping[str, bool]) -> str:
    """Return the page for commands of which is known whether they print something else here."""
    tried: dict[str, list[bool]] = {}
    for line, differs in differing.items():
        tried.setdefault(line.split()[0], []).append(differs)
    verdicts = {name: NOTES.get(name, "DIFFERS") if any(each) else SAME for name, each in sorted(tried.items())}
    same = sum(verdict == SAME for verdict in verdicts.values())
    refused = sum(verdict.startswith("refused") for verdict in verdicts.values())
    summary = (
        f"{len(verdicts)} commands, {same} print the same, {len(verdicts) - same - refused} something else for the "
        f"reason given, {refused} are refused"
    )
    rows = (f"| {name} | {len(tried[name])} | {verdict} |\n" for name, verdict in verdicts.items())
    return _HEAD.format(version=VERSION, summary=summary) + "".join(rows)


async def compare(folder: Path, commands: str = COMMANDS) -> dict[str, bool]:
    """Return of each command whether it prints something else here."""
    printed: list[dict[str, collections.Counter[str]]] = []
    for run in (real, ours):
        # Each has an mqadmin to itself: some commands keep the client of the broker that they were first used for.
        admins = folder / f"mqadmin-{run.__name__}"
        (admins / "conf").mkdir(parents=True)
        (admins / "conf" / "tools.yml").write_text(f"accessKey: administrator\nsecretKey: {SECRET}\n")
        async with (
            run(folder) as target,
            mqadmin(VERSION, admins, target.name_server, f"-Dsecret={SECRET}") as admin,
        ):
            asked = ask(admin, target, folder, commands)
            printed.append({line: words(text, target) async for line, text in asked})
    theirs, here = printed
    return {line: here[line] != theirs[line] for line in theirs}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(page(asyncio.run(compare(Path(temporary)))), end="")  # noqa: T201
