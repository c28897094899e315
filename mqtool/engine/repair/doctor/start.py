"""Why a broker does not start, or starts on something else: permissions, locks, disks, settings.

Cost: linear in the number of files and settings.
"""

import os
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from mqtool.engine.repair.doctor.case import FIVE, Case, Effect, Sign, contradicts, log_folders, sizes_of
from mqtool.engine.repair.doctor.surroundings import User
from mqtool.engine.store.disk import LOST_AND_FOUND
from mqtool.engine.store.file_kinds import COMMIT_LOG, DEFAULT_SIZES, OF_STORE
from mqtool.engine.store.mapping import read_file
from mqtool.formats.property_names import CRC32
from mqtool.formats.topics import TIMER_TOPIC

_OF_A_BROKER = frozenset(kind.name for kind in OF_STORE if kind.is_opened)
_BROKER_COMMANDS = ("BrokerStartup", "BrokerContainerStartup", "mqbroker")
_READ, _WRITE, _ENTER = 4, 2, 1
_FORCED_CLEAN, _NO_WRITE = 0.85, 0.90


# Rights


def not_permitted(case: Case) -> Iterator[Sign]:
    """Yield the files and folders that the broker's user may not access."""
    yield from refused_files(case.root, case.reader.paths.commit_log, case.around.user)


def refused_files(root: Path, log_folders: Iterable[Path], user: User) -> Iterator[Sign]:
    """Yield the files and folders of a store that a user may not access; only names and modes are examined.

    Args:
        root: of the store.
        log_folders: where the log is, below the root or elsewhere.
        user: the user that the broker runs as.
    """
    for top, path, status in _files(root, log_folders):
        is_folder = stat.S_ISDIR(status.st_mode)
        wanted = {"read": _READ, "write": _WRITE} | ({"enter": _ENTER} if is_folder else {})
        refused = [name for name, bits in wanted.items() if not user.may(status, bits)]
        if not refused:
            continue
        mode = stat.filemode(status.st_mode)
        change = "chmod -R u+rwX" if status.st_uid == user.uid else f"chown -R {user.uid}:{user.gid}"
        yield Sign(
            f"the broker's user {user.name} may not {' or '.join(refused)} this",
            file=str(path.relative_to(root)) if path.is_relative_to(root) else str(path),
            expected=f"owner {user.uid}, mode u+rw{'x' * is_folder}",
            found=f"owner {status.st_uid}, mode {mode}",
            commands=(f"{change} -- {shlex.quote(str(top))}",),
        )


def _files(root: Path, log_folders: Iterable[Path]) -> Iterator[tuple[Path, Path, os.stat_result]]:
    """Yield what a broker opens: the top folder, the path and its status."""
    logs = [folder for folder in log_folders if not folder.is_relative_to(root)]
    for top in [root, *logs]:
        opened = [(top, top)]
        for folder, folders, names in os.walk(top):
            folders[:] = [name for name in folders if name != LOST_AND_FOUND]
            if Path(folder) == root:
                folders[:] = [name for name in folders if _is_of_broker(name)]
                names = [name for name in names if _is_of_broker(name)]
            # Of a folder that may not be entered only the name is known.
            opened += [(top, Path(folder, name)) for name in [*folders, *names]]
        for top, path in opened:
            try:
                yield top, path, path.stat()
            except OSError:
                continue  # gone in the meantime, or a dangling link


def _is_of_broker(name: str) -> bool:
    return name.partition(".")[0] in _OF_A_BROKER or name.startswith(("commitlog", "consumequeue_", "dledger-"))


# Other processes


def in_use(case: Case) -> Iterator[Sign]:
    """Yield the broker that holds the lock of the store."""
    if not case.reader.is_live:
        return
    pid = _noted_process(case)
    command = case.around.processes.get(pid or 0)
    who = f"process {pid} ({command[:100]})" if command else "another process"
    look = f"ps -fp {pid}" if command else case.fill("fuser -v {path}", Sign("", file="lock"))
    yield Sign(f"{who} holds its lock: a broker is running on it", file="lock", commands=(look,))


def noted_process(case: Case) -> Iterator[Sign]:
    """Yield the broker whose process id is in ``abort`` and that runs, although it does not hold the lock."""
    pid = _noted_process(case)
    command = case.around.processes.get(pid or 0, "")
    if not case.reader.is_live and any(name in command for name in _BROKER_COMMANDS):
        yield Sign(
            f"process {pid} ({command[:100]}) recorded itself here and is running, but does not hold the lock",
            file="abort",
            found=pid,
            commands=(f"ps -fp {pid}", f"kill {pid}"),
        )


def _noted_process(case: Case) -> int | None:
    """Return the process id in ``abort``, which 5.x and ``mqtool serve`` write."""
    path = case.reader.paths.abort
    if not path.is_file():
        return None
    text, _, _ = read_file(path, 1 << 10).strip().partition(b" ")
    return int(text) if text.isdigit() and len(text) < 10 else None


# Disks


def disk(case: Case) -> Iterator[Sign]:
    """Yield the disks that are full, or full enough for a broker to delete messages or refuse them."""
    paths = case.reader.paths
    for folder, file_system in case.around.disks.items():
        file = paths.relative(folder)
        commands = (case.fill("df -h {path}", Sign("", file=str(folder))),)
        if file_system.read_only:
            yield Sign("the file system is mounted read-only", file=file, effect=Effect.STOPS, commands=commands)
        elif not file_system.usable or file_system.free_inodes == 0:
            unit = "byte" if not file_system.usable else "inode"
            text = f"no {unit} is free: a broker cannot create the files that it needs to start"
            yield Sign(text, file=file, effect=Effect.STOPS, commands=commands)
    logs = [case.around.disks[folder].used_ratio for folder in paths.commit_log if folder in case.around.disks]
    root = case.around.disks.get(case.root)
    ratio = max(min(logs, default=0.0), root.used_ratio if root else 0.0)
    forced = _ratio(case, "diskSpaceCleanForciblyRatio", _FORCED_CLEAN)
    no_write = _ratio(case, "diskSpaceWarningLevelRatio", _NO_WRITE)
    used, most = f"{ratio:.0%}", no_write if ratio > no_write else forced
    text = "the disk is so full that a broker deletes the oldest messages whatever their age"
    if ratio > no_write:
        text += ", and accepts no new ones"
    elif ratio <= forced or case.settings.get("cleanFileForciblyEnable") == "false":
        return
    yield Sign(text, file=".", expected=f"at most {most:.0%}", found=used, commands=_make_room(case))


def _make_room(case: Case) -> tuple[str, ...]:
    look = case.fill("df -h {store}", Sign(""))
    if "cleanFileForciblyEnable" in case.settings:
        return (look,)
    return (look, case.change_setting("cleanFileForciblyEnable", "false"))


def _ratio(case: Case, key: str, default: float) -> float:
    text = case.settings.get(key, "")
    return int(text) / 100 if text.isdigit() else default


# Settings against the store


def log_elsewhere(case: Case) -> Iterator[Sign]:
    """Yield where a broker with these settings looks for the log, if it is elsewhere."""
    paths = case.reader.paths
    folders = log_folders(case.root, case.settings)
    if not folders and case.are_settings_known and paths.commit_log:
        folders = [case.root / COMMIT_LOG.name]
    if paths.dledger:
        return
    actual = [folder.resolve() for folder in paths.commit_log]
    expected = (case.elsewhere and case.elsewhere.setting) or ",".join(map(str, paths.commit_log))
    for folder in folders:
        if folder.resolve() not in actual and not (folder.is_dir() and any(folder.iterdir())):
            text = f"a broker looks for the log in {folder} and would start a new one there"
            yield case.wrong_setting(text, "storePathCommitLog", expected)
            return


def store_elsewhere(case: Case) -> Iterator[Sign]:
    """Yield the store that these settings name, if it is not this one."""
    named = case.settings.get("storePathRootDir")
    if named and Path(named).resolve() != case.root.resolve():
        text = f"a broker with these settings uses {named}, not this store"
        yield case.wrong_setting(text, "storePathRootDir", case.root.resolve())


def dledger_off(case: Case) -> Iterator[Sign]:
    """Yield a DLedger log that a broker with these settings does not read."""
    if case.reader.paths.dledger and case.are_settings_known and not case.flag("enableDLegerCommitLog"):
        text = "the log is a DLedger log: without this setting a broker starts a new log and deletes the queues"
        yield case.wrong_setting(text, "enableDLegerCommitLog", "true")


def ignored_settings(case: Case) -> Iterator[Sign]:
    """Yield sizes in the settings that are not numbers: a broker silently ignores them."""
    lengths = sizes_of(case.reader)
    for key, default in DEFAULT_SIZES.items():
        if case.is_malformed(key):
            actual = lengths[key].most_common(1)[0][0] if lengths.get(key) else default
            text = f"{key} is not a whole number of bytes: a broker silently ignores it and uses {default:,}"
            effect = Effect.STOPS if actual != default else Effect.HINDERS
            yield case.wrong_setting(text, key, actual, effect=effect)


def file_sizes(case: Case) -> Iterator[Sign]:
    """Yield sizes, configured or default, that no file has."""
    for key, lengths in sizes_of(case.reader).items():
        if case.is_malformed(key) or not lengths:
            continue
        size = case.size(key)
        if size is None and case.are_settings_known and DEFAULT_SIZES[key] not in lengths:
            text = f"{key} is {DEFAULT_SIZES[key]:,} by default"
        elif contradicts(lengths, size):
            text = f"{key} is {size:,}"
        else:
            continue
        actual = lengths.most_common(1)[0][0]
        is_index = key in ("maxHashSlotNum", "maxIndexNum")
        yield case.wrong_setting(
            f"{text}, but the files were created with {actual:,}" + is_index * ": searches by key look in wrong places",
            key,
            actual,
            effect=Effect.HINDERS if is_index else Effect.STOPS,
            versions=FIVE if "Batch" in key or "Timer" in key else None,
        )


def forced_crc(case: Case) -> Iterator[Sign]:
    """Yield a message without the property that ``forceVerifyPropCRC`` makes a broker require."""
    first, last = case.samples
    for message in first + last if case.flag("forceVerifyPropCRC") else ():
        if CRC32 not in message.properties:
            text = (
                "messages lack the CRC property that this setting requires: a recovery cuts the log at the first of "
                "them"
            )
            yield case.wrong_setting(text, "forceVerifyPropCRC", "false", physical_offset=message.position)
            return


def slave_without_id(case: Case) -> Iterator[Sign]:
    """Yield a slave whose id is that of a master: the broker exits at once."""
    number = case.settings.get("brokerId", "0")
    if case.settings.get("brokerRole", "").upper() == "SLAVE" and number.lstrip("-").isdigit() and int(number) <= 0:
        yield case.wrong_setting("a broker with brokerRole=SLAVE needs a brokerId above 0", "brokerId", 1)


def broker_permission(case: Case) -> Iterator[Sign]:
    """Yield a broker that is configured not to be readable or writable."""
    text = case.settings.get("brokerPermission", "6")
    lacks = [name for bit, name in ((4, "read from"), (2, "written to")) if text.isdigit() and not int(text) & bit]
    if lacks:
        yield case.wrong_setting(f"the broker may not be {' or '.join(lacks)}", "brokerPermission", 6)


def timer_off(case: Case) -> Iterator[Sign]:
    """Yield timer messages that a broker with these settings never delivers."""
    queue = case.reader.consume_queues.get((TIMER_TOPIC, 0))
    if queue is None or queue.max_offset() == queue.first_offset:
        return
    for key, right in (("timerWheelEnable", "true"), ("timerStopEnqueue", "false"), ("timerStopDequeue", "false")):
        if case.settings.get(key, right).lower() != right:
            text = f"timer messages that are not yet due are never delivered; {queue.max_offset():,} were ever sent"
            yield case.wrong_setting(text, key, right, topic=TIMER_TOPIC)


def rocksdb_setting(case: Case) -> Iterator[Sign]:
    """Yield queues in RocksDB that a broker with these settings does not read, or no broker of its version."""
    folder = case.reader.rocksdb_queues
    if folder is None or case.reader.consume_queues:
        return
    kind = case.settings.get("storeType", "default" if case.are_settings_known else "defaultRocksDB")
    if case.wanted == "4.9":
        text = "the queues are in RocksDB, which 4.9 does not support"
        commands = (case.fill("mqtool rebuild queues --into {new} {at}", Sign("")),)
        yield Sign(text, file=case.reader.paths.relative(folder), commands=commands)
    elif kind != "defaultRocksDB":
        text = (
            f"the queues are in RocksDB ({case.reader.paths.relative(folder)}), which a broker with these settings "
            "does not read"
        )
        yield case.wrong_setting(text, "storeType", "defaultRocksDB", versions=FIVE)
