# Sourced by ./demo and ./check, with $root set to the project's folder: makes .venv when it is missing and
# installs the project into it when pyproject.toml has changed since the last time.
#
#     install_project        mqtool itself
#     install_project dev    and what its tests need
#
# PYTHON=/path/to/python chooses the interpreter for a new .venv, VENV=/path another folder for it.

venv=${VENV:-$root/.venv}

fail() {
    echo "$(basename "$0"): $*" >&2
    exit 1
}

install_project() {
    extra=${1:-core}
    # An editable install and the scripts of a .venv hold its path, so a moved project installs anew.
    wanted="$(cksum < "$root/pyproject.toml") $root"
    if [ "$(cat "$venv/installed-$extra" 2> /dev/null)" = "$wanted" ] && "$venv/bin/python" -c '' 2> /dev/null; then
        return
    fi
    make_venv
    echo "Installing mqtool into .venv (only when pyproject.toml has changed) ..." >&2
    rm -f "$venv"/installed-*
    case $extra in
        core) what=$root ;;
        *) what="$root[$extra]" ;;
    esac
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$what" ||
        fail "pip could not install mqtool; its message is above"
    echo "$wanted" > "$venv/installed-core"
    echo "$wanted" > "$venv/installed-$extra"
}

make_venv() {
    made_in=$(cat "$venv/made-in" 2> /dev/null || echo "$root")
    if [ "$made_in" != "$root" ] || ! "$venv/bin/python" -m pip --version > /dev/null 2>&1; then
        find_python
        echo "Making .venv with $python ..." >&2
        "$python" -m venv --clear "$venv" || fail "$python could not make .venv; its message is above"
    fi
    echo "$root" > "$venv/made-in"
}

# Set $python to the first interpreter that is new enough and can make a virtual environment.
find_python() {
    seen=
    bare=
    for python in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2], int(sys.version_info >= (3, 11)))' 2> /dev/null) ||
            continue
        seen="$seen, $python is ${version% *}"
        [ "${version#* }" = 1 ] || continue
        "$python" -c 'import ensurepip, venv' 2> /dev/null && return
        bare=${bare:-$python}
    done
    [ -z "$bare" ] ||
        fail "$bare has no venv module; install it (Debian and Ubuntu: apt-get install python3-venv) and run this again"
    [ -z "$seen" ] || fail "Python 3.11 or newer is needed, and${seen#,}; install one and run this again"
    fail "no Python found; install Python 3.11 or newer and run this again"
}
