"""Every command has help with examples that work as they stand, in both command lines."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from importlib.metadata import version

import pytest

from airflow_barrier.cli.commands import COMMANDS
from airflow_barrier.cli.definition import get_barrier_cli_commands
from airflow_barrier.cli.frame import Command, Group, execute
from airflow_barrier.cli.main import main, parser
from airflow_barrier.protocol.errors import BarrierError, StoreUnavailableError, UnknownBarrierError


def leaves(entries: tuple[Command | Group, ...], *path: str) -> Iterator[tuple[str, Command]]:
    for entry in entries:
        if isinstance(entry, Group):
            yield from leaves(entry.commands, *path, entry.name)
        else:
            yield " ".join((*path, entry.name)), entry


LEAVES = dict(leaves(COMMANDS))


@pytest.mark.parametrize("name", LEAVES)
def test_help_and_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*name.split(), "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--json" in said
    assert ("--conn-id" in said) is (name != "init")  # of which there is no deployment yet
    command = LEAVES[name]
    assert command.examples
    for example in command.examples:
        line = f"airflow-barrier {name} {example}".rstrip()
        assert f"\n  {line}\n" in said
        words = shlex.split(line.partition(" | ")[0])
        assert parser().parse_args(words[1:]).command is command


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (2, "")
    for entry in COMMANDS:
        assert f"\n    {entry.name}" in said.err
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"airflow-barrier {version('airflow-provider-barrier')}\n"


def test_what_a_person_puts_in_stands_in_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["lease", "list", "--help"])
    assert "TOPOLOGY [BARRIER]" in capsys.readouterr().out


def test_airflow_gets_the_same_commands() -> None:
    from airflow.cli.cli_config import DefaultHelpParser
    from airflow.cli.cli_parser import _add_command

    root = DefaultHelpParser(prog="airflow")
    commands = root.add_subparsers(dest="subcommand", required=True)
    (group,) = get_barrier_cli_commands()
    _add_command(commands, group)
    for name, command in LEAVES.items():
        for example in command.examples:
            words = shlex.split(f"barrier {name} {example}".partition(" | ")[0])
            options = vars(root.parse_args(words))
            assert callable(options.pop("func"))
            options.pop("subcommand")
            ours = vars(parser().parse_args(words[1:]))
            assert ours.pop("command") is command
            assert options == ours


@pytest.mark.parametrize(
    ("error", "code"), [(UnknownBarrierError("no"), 1), (StoreUnavailableError("not now"), 75)], ids=str
)
def test_an_error_is_a_line_and_an_exit_code(
    error: BarrierError, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(options: argparse.Namespace) -> int:
        raise error

    assert execute(Command("fail", "Fail.", (), fail), argparse.Namespace()) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"airflow-barrier: {error}\n")


def test_an_interrupted_command_leaves_no_traceback() -> None:
    def interrupted(options: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert execute(Command("wait", "Wait.", (), interrupted), argparse.Namespace()) == 130
