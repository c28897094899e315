"""``--profile``: connections by name, of a file; it names the variables that hold secrets, not the secrets."""

import difflib
import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.errors import BadDataError, NotFoundError, UsageError

_KEYS = ("namesrv", "tls", "ca", "access_key_env", "secret_key_env")


class Profile(NamedTuple):
    """A connection: name servers, with ``;`` between, keys, and TLS."""

    namesrv: str
    access_key: str | None
    secret_key: str | None
    tls: bool
    authorities: Path | None


def profile_file() -> Path:
    """Return where profiles are kept."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "mqtool" / "config.toml"


def read_profile(name: str) -> Profile:
    """Return the profile of a name.

    Raises:
        NotFoundError: there is no such file, or no such profile in it.
        BadDataError: the file, or the profile, is not what it should be.
        UsageError: a variable that it names is not set.
    """
    path = profile_file()
    try:
        profiles = _profiles(path)
    except FileNotFoundError:
        raise NotFoundError(f"--profile {name}: {path} does not exist") from None
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadDataError(f"{path} is not valid TOML: {error}") from error
    if not isinstance(profiles.get(name), dict):
        near = ", ".join(difflib.get_close_matches(name, profiles, 5, 0.4) or [*profiles][:5])
        raise NotFoundError(f"{path} has no [profiles.{name}]{f'; similar: {near}' if near else ''}")
    return _profile(f"{path}: [profiles.{name}]", profiles[name])


def profile_names() -> list[str]:
    """Return the names that there are; raises what reading the file raises."""
    return [*_profiles(profile_file())]


def _profiles(path: Path) -> dict[str, Any]:
    profiles = tomllib.loads(path.read_text()).get("profiles")
    return profiles if isinstance(profiles, dict) else {}


def _profile(where: str, members: dict[str, Any]) -> Profile:
    for key in members:
        if key not in _KEYS:
            raise BadDataError(f"{where} has the unknown key {key}: the keys are {', '.join(_KEYS)}")
    servers = members.get("namesrv", "")
    if isinstance(servers, list):
        servers = ";".join(map(str, servers))
    tls, authorities = members.get("tls", False), members.get("ca")
    if not (isinstance(servers, str) and servers):
        raise BadDataError(f"{where} needs namesrv, like 'host:9876;host2:9876', or a list of addresses")
    if not isinstance(tls, bool) or not isinstance(authorities, str | None):
        raise BadDataError(f"{where}: tls must be true or false, and ca a file name")
    keys = (_secret(where, members, "access_key_env"), _secret(where, members, "secret_key_env"))
    return Profile(servers, *keys, tls, Path(authorities).expanduser() if authorities else None)


def _secret(where: str, members: dict[str, Any], key: str) -> str | None:
    name = members.get(key)
    if name is None:
        return None
    value = os.environ.get(str(name))
    if not value:
        raise UsageError(f"{where} takes a key from the environment variable {name}, which is not set")
    return value
