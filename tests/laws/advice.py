"""The law of agreement: what ``doctor``, ``--as-broker`` and ``verify`` say of one store, and where advice leads."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor.case import Case, Effect, open_store
from mqtool.engine.repair.doctor.diagnosis import Diagnosis, examine
from mqtool.engine.repair.doctor.surroundings import look_around
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError
from mqtool.formats.settings import parse_settings
from tests.commands.running import run
from tests.engine.repair.recorded import recover_as

Broken = Callable[[str, str, str], None]

_REPAIRING = ("recover", "rebuild")
_MAX_STEPS = 12
_INTO = "--into"
_FAULTS = (2, 70)
"""Statuses of a command that does not exist or apply: wrong usage, a fault of mqtool's own."""


def follow(store: Path, config: StoreConfig, broken: Broken) -> None:
    """Ask the doctor, hold the answer against the others', and follow the advice to its end."""
    settings = store.with_name("broker.conf")
    settings.write_text("".join(f"{key}={value}\n" for key, value in config.settings.items()))
    case = _case(store, settings)
    found = examine(case)[1]
    _agree(case, found, config, broken)
    done: list[tuple[str, str]] = []
    for _ in range(_MAX_STEPS):
        again = [one for one in _steps(found) if one in done and _is_repair(one[1])]
        if again:
            broken("agreement", f"circle {again[0][0]}", f"{again[0][1]} was run, and doctor advises it again")
            return
        made = {command for _, command in done if _INTO in command}  # a new store is made once, whatever it is good for
        step = next((one for one in _steps(found) if one not in done and one[1] not in made), None)
        if step is None:
            break
        done.append(step)
        if not _carry_out(step, store, broken):
            return
        if _INTO in step[1] and step[0] in {one.code for one in examine(_case(_new_store(store), None))[1]}:
            broken("agreement", f"circle {step[0]}", f"doctor finds it again in what {step[1]} has made")
        found = examine(_case(store, settings))[1]


def _case(store: Path, settings: Path | None) -> Case:
    """Return what doctor looks at; without settings, which name the old log, for a new store."""
    given = parse_settings(settings.read_text()) if settings else {}
    reader = open_store(store, StoreConfig(given))
    return Case(reader.root, given, settings, look_around([reader.root, *reader.paths.commit_log]), reader)


def _agree(case: Case, found: list[Diagnosis], config: StoreConfig, broken: Broken) -> None:
    for finding in verify_store(StoreReader(case.root, config)):
        if finding.code not in CHECKS:
            broken("agreement", f"explain {finding.code}", "verify names a code that explain does not know")
    for version in case.versions:
        hitting = [one for one in found if version in one.versions and one.severity != "note"]
        effects = {one.effect for one in hitting}
        try:
            verdict = recover_as(StoreReader(case.root, config), version)
        except MqtoolError:
            continue
        if not verdict.starts and Effect.STOPS not in effects:
            text = (
                f"{version} does not start: {verdict.refusal or verdict.endless}; doctor: {[one.code for one in found]}"
            )
            broken("agreement", "doctor lets start", text)
        if verdict.starts and verdict.losses and not hitting:
            broken("agreement", "doctor lets lose", f"{version} loses {verdict.losses[0]}; doctor finds nothing")
        if verdict.starts and Effect.STOPS in effects:
            codes = [one.code for one in hitting if one.effect is Effect.STOPS]
            broken(
                "agreement", f"doctor cries {codes[0]}", f"{version} starts, and doctor says that it does not: {codes}"
            )


def _steps(found: list[Diagnosis]) -> list[tuple[str, str]]:
    """Return code and command of what doctor advises, in its order, but for what needs a running broker or systemd."""
    return [
        (one.code, command)
        for one in found
        if one.severity != "note"
        for command in one.next[:1]
        if not command.startswith(("mqadmin", "timedatectl"))
    ]


def _new_store(store: Path) -> Path:
    return store.with_name("out")


def _is_repair(command: str) -> bool:
    return command.startswith("mqtool") and shlex.split(command)[1] in _REPAIRING


def _carry_out(step: tuple[str, str], store: Path, broken: Broken) -> bool:
    """Run what was advised; tells whether to go on."""
    code, command = step
    if not command.startswith("mqtool"):
        bash = shutil.which("bash") or "bash"
        status = subprocess.run([bash, "-c", command], cwd=store.parent, capture_output=True).returncode
        if status:
            broken("agreement", f"shell {code}", f"{command} ended with {status}")
        return not status
    words = shlex.split(command)[1:]
    words += ["--yes"] if _is_repair(command) else ["--into", str(_new_store(store))] if _INTO in words else []
    ran = run(*words)
    if "`recover --cut` ends the log there" in ran.remarks and "--cut" not in words:
        ran = run(*words, "--cut")  # a refusal that leads on
    if ran.status in _FAULTS:
        broken("agreement", f"command {code}", f"{command} ended with {ran.status}: {ran.remarks[-300:]}")
        return False
    if _is_repair(command):
        if ran.status not in (0, 5):
            broken("agreement", f"repair {code}", f"{command} ended with {ran.status}: {ran.remarks[-300:]}")
            return False
        if re.search("there is nothing to repair", ran.remarks):
            broken("agreement", f"nowhere {code}", f"{command} finds nothing to repair")
            return False
    return True
