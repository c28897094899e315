"""The table of subcommands, and the one place that ends the program."""

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import click

from mqtool.errors import MqtoolError, Status
from mqtool.processes import die_with


class CommandEntry(NamedTuple):
    """Where a subcommand lives, and its line of help."""

    module: str
    help: str
    in_child: bool = True  # as it maps files that others may cut short


COMMANDS = {
    "info": CommandEntry("info", "Describe a store."),
    "dump": CommandEntry("dump", "List the records of one kind of file."),
    "get": CommandEntry("get", "Show one message."),
    "find": CommandEntry("find", "Find messages by key, tag, body, property or time."),
    "pull": CommandEntry("pull", "Read messages of one queue as a consumer would."),
    "stats": CommandEntry("stats", "Count messages and bytes by topic, queue, tag, hour, size or producer."),
    "verify": CommandEntry("verify", "Check a store and list what is wrong."),
    "doctor": CommandEntry("doctor", "Explain why a broker does not start or deliver, and what to do."),
    "compare": CommandEntry("compare", "Compare two stores."),
    "recover": CommandEntry("recover", "Repair the log, queues, index and checkpoint."),
    "rebuild": CommandEntry("rebuild", "Rebuild queues, index or config from the commit log."),
    "salvage": CommandEntry("salvage", "Copy every readable message into a new store."),
    "export": CommandEntry("export", "Write messages to JSON lines or Parquet."),
    "import": CommandEntry("import_", "Create a store from exported messages."),
    "explain": CommandEntry("explain", "Explain a check and what to do about it."),
    "apply": CommandEntry("apply", "Apply a plan saved with --save-plan."),
    "undo": CommandEntry("undo", "Undo the last repair."),
    "serve": CommandEntry("serve", "Run a name server and a broker.", in_child=False),
    "trace": CommandEntry("trace", "Trace the path of a message."),
    "send": CommandEntry("send", "Send messages to a broker."),
    "consume": CommandEntry("consume", "Consume messages as a member of a group."),
    "bench": CommandEntry("bench", "Load-test brokers and report throughput and latency."),
    "mirror": CommandEntry("mirror", "Copy topics to another cluster, continuously."),
    "topic": CommandEntry("topic", "List, show, create and delete topics."),
    "group": CommandEntry("group", "List, show, create and delete consumer groups."),
    "offset": CommandEntry("offset", "List and set consumer offsets, and show lag."),
    "dlq": CommandEntry("dlq", "List, show, resend and purge dead letters."),
    "cluster": CommandEntry("cluster", "List brokers and show their state."),
    "promote": CommandEntry("promote", "Promote a slave to master."),
    "spark": CommandEntry("spark", "Process stores too large for one machine, on Spark."),
}


_ENDING = (signal.SIGTERM, signal.SIGHUP)
_TAKEN_BACK = ("recover", "rebuild", "apply", "undo", "topic", "group", "offset", "dlq")
_AFTER_A_KILL = "partial changes to a store are undone by `mqtool undo`, or when the same command is run again"


class Commands(click.Group):
    """A group whose commands are loaded when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the names in the order of the table."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; of a name that is none, say which was meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], [*COMMANDS, *_TYPED], 3, 0.6)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(near)}?", error.ctx) from error

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Load a command."""
        if cmd_name in _TYPED:
            return _TYPED[cmd_name]
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"mqtool.commands.{COMMANDS[cmd_name].module}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the commands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        _version.callback()  # type: ignore[misc]
        ctx.exit()


_REPORTED = ("numpy", "numba", "rocksdict", "pyarrow", "pyspark", "uvloop", "fsspec")
"""Packages whose versions a bug report needs, where they are installed."""


@click.command("version", help="Show the version, and those of Python, the system and libraries, for bug reports.")
def _version() -> None:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    click.echo(f"mqtool {version('mqtool')}")
    python = f"{platform.python_implementation()} {platform.python_version()}"
    libc = " ".join(platform.libc_ver()).strip()
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    click.echo(", ".join(filter(None, (python, system, libc, f"{os.cpu_count()} CPUs"))))
    installed = []
    for name in _REPORTED:
        with contextlib.suppress(PackageNotFoundError):
            installed.append(f"{name} {version(name)}")
    click.echo(", ".join(installed))


@click.command("help", help="Show help for a command.")
@click.argument("names", metavar="[COMMAND]..", nargs=-1)
@click.pass_context
def _help(context: click.Context, names: tuple[str, ...]) -> None:
    assert context.parent
    shown, command = context.parent, context.parent.command
    for name in names:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"{shown.command_path} has no subcommands", context)
        _, subcommand, _ = command.resolve_command(shown, [name])
        assert subcommand
        command = subcommand
        shown = click.Context(command, shown, name, **command.context_settings)
    click.echo(command.get_help(shown))


_TYPED = {"version": _version, "help": _help}
"""What people type though --version and --help do the same: not listed."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and platform.",
)
def cli() -> None:
    """Read, check, repair and serve the stores of Apache RocketMQ brokers, and talk to brokers.

    Name the store with -s DIR. Default: MQTOOL_STORE, else ./store, else ~/store.
    """


def main() -> None:
    """Run the command line and end the program with its status."""
    from mqtool.commands._streams import repair_streams

    repair_streams()
    # numpy's linear algebra, of which nothing is used, would take a third of its start to make ready for threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as it is while this module is loaded
        signal.signal(signal.SIGINT, signal.default_int_handler)
    arguments = sys.argv[1:]
    entry = COMMANDS.get(arguments[0]) if arguments else None
    if "_MQTOOL_COMPLETE" in os.environ or not hasattr(os, "fork") or (entry and not entry.in_child):
        sys.exit(run(arguments))
    sys.exit(_run_in_child(arguments))


def run(arguments: list[str]) -> int:
    """Run one command in this process and return its status."""
    try:
        result = cli.main(arguments, prog_name="mqtool", standalone_mode=False, color=_color())
        sys.stdout.flush()
        return int(result or Status.OK)
    except MqtoolError as error:
        return _complain(str(error), error.exit_code)
    except click.Abort as abort:  # click makes one of an interrupt
        return _status_of_interrupt(abort.__cause__)
    except click.ClickException as error:
        with contextlib.suppress(OSError):
            error.show()
        return Status.USAGE
    except KeyboardInterrupt as interrupt:
        return _status_of_interrupt(interrupt)
    except (BrokenPipeError, SystemExit):  # click makes an exit of its own of a closed pipe
        _forget_output()
        return Status.OK
    except MemoryError:
        return _complain("there is not enough memory", Status.FAULT)
    except PermissionError as error:
        return _complain(f"this user has no permission to read or write {error.filename}", Status.NOT_PERMITTED)
    except OSError as error:
        return _complain(f"{error.filename or 'the output'}: {error.strerror or error}", Status.IO_ERROR)
    except Exception as error:
        return _fault(error)


def _color() -> bool | None:
    """Tell whether there may be colors: None where it depends on whether a terminal shows them."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def _forget_output() -> None:
    from mqtool.commands._streams import forget_output

    forget_output()


def _flush() -> None:
    """Write the rows that there are, for nobody does it later: a child ends at once.

    Nobody may read them either; then another interrupt ends that.
    """
    try:
        sys.stdout.flush()
    except (OSError, KeyboardInterrupt):
        _forget_output()


def _complain(sentence: str, status: Status) -> Status:
    _flush()
    with contextlib.suppress(OSError):  # the status tells all the same
        click.echo(f"mqtool: {sentence}", err=True)
    return status


def _fault(error: Exception) -> Status:
    """Keep the traceback in a file and say where."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqtool"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(".txt", "fault-", folder)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        where = f"please report it with {name}"
    except (OSError, RuntimeError):  # the second where no home is known
        where = text
    return _complain(f"internal error in mqtool ({type(error).__name__}): {where}", Status.FAULT)


def _run_in_child(arguments: list[str]) -> int:
    """Run a command in a child, so that a mapped file that shrinks ends in a status and not in a crash."""
    from mqtool.commands._parent import be_child_of

    parent = os.getpid()
    child = os.fork()
    if not child:
        die_with(parent)  # what changes something asks to be told instead, before it begins
        be_child_of(parent)
        status: int = Status.INTERRUPTED  # unless told otherwise: an interrupt may come between any two steps of this
        try:
            status = run(arguments)
            sys.stderr.flush()
        except Exception:
            status = Status.FAULT
        finally:
            os._exit(status)
    # The terminal sends Ctrl-C to both; the child answers it. What is sent to this process goes on to the child.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def pass_on(received: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # it was told too, and has ended
            os.kill(child, received)

    for number in _ENDING:
        signal.signal(number, pass_on)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)  # a second one must not kill what ends by itself
    if status >= 0:
        return status
    if status == -signal.SIGBUS:
        return _complain("a file was truncated, or its disk failed, while it was being read: try again", Status.BUSY)
    if -status in _ENDING:
        return _status_of(-status)
    then = f"; {_AFTER_A_KILL}" if arguments[:1] and arguments[0] in _TAKEN_BACK else ""
    return _complain(f"killed by {signal.Signals(-status).name}{then}", Status.FAULT)


def _status_of_interrupt(interrupt: BaseException | None) -> int:
    """Return the status of a command that was interrupted, perhaps by a signal that the interrupt has the number of."""
    _flush()
    if isinstance(interrupt, KeyboardInterrupt) and interrupt.args:
        return _status_of(*interrupt.args)
    return Status.INTERRUPTED


def _status_of(number: int) -> int:
    """Return the status of a command that a signal has ended, as shells tell it."""
    return 128 + number
