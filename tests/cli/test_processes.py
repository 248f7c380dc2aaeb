"""The console script and Airflow's own command as processes: what they print where, and how they end."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_barrier.coordinator.settings import Settings
from airflow_barrier.protocol.states import BarrierState
from tests.cli.deployed import CONN_ID, Deployed, as_json, deploy
from tests.support.shop import AMOUNT
from tests.support.waiting import patience

SCRIPTS = Path(sys.executable).parent


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """Barriers 3 and 4 are there to be aborted."""
    found = deploy(Settings.embedded(str(tmp_path_factory.mktemp("cli"))))
    yield found
    found.shop.deployment.close()


def start(deployed: Deployed, *arguments: str, home: Path, **streams: int) -> subprocess.Popen[str]:
    environment = {**os.environ, **deployed.environment, "AIRFLOW_HOME": str(home), "TERM": "xterm", "COLUMNS": "60"}
    return subprocess.Popen(
        [str(SCRIPTS / arguments[0]), *arguments[1:], "--conn-id", CONN_ID],
        env=environment,
        cwd=home,
        text=True,
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
    )


def test_standard_output_is_the_document_alone(deployed: Deployed, tmp_path: Path) -> None:
    script = start(deployed, "airflow-barrier", "barrier", "list", "shopping", "--json", home=tmp_path)
    out, err = script.communicate(timeout=patience())
    assert (script.returncode, err) == (0, "")
    newest = deployed.meta.barriers.newest("shopping", limit=100)
    assert [each["barrier_id"] for each in json.loads(out)["barriers"]] == [each.barrier_id for each in newest]


def test_the_same_commands_are_airflows(deployed: Deployed, tmp_path: Path) -> None:
    shown = start(deployed, "airflow", "barrier", "status", "--json", home=tmp_path)
    refused = start(deployed, "airflow", "barrier", "barrier", "show", "shopping", "9", home=tmp_path)
    out, _ = shown.communicate(timeout=patience())
    assert shown.returncode == 0
    assert [each["barrier"] for each in json.loads(out)[0]["open"]] == as_json(
        deployed.meta.barriers.uncommitted("shopping")
    )
    out, err = refused.communicate(timeout=patience())
    assert (refused.returncode, out) == (1, "")
    assert "found barriers up to" in err
    assert "Traceback" not in err


def test_a_reader_that_leaves_is_no_error(deployed: Deployed, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    script = start(deployed, "airflow-barrier", "status", home=tmp_path, stdout=writer)
    os.close(writer)
    _, err = script.communicate(timeout=patience())
    assert (script.returncode, err) == (141, "")


def test_what_does_not_answer_is_exit_code_75(tmp_path: Path) -> None:
    done = subprocess.run(
        [SCRIPTS / "airflow-barrier", "status", "--metaservice-url", "postgresql://barrier@127.0.0.1:1/barrier"],
        capture_output=True,
        text=True,
        timeout=patience(),
        check=False,
    )
    assert (done.returncode, done.stdout) == (75, "")
    assert done.stderr.startswith("airflow-barrier: ")
    assert "Traceback" not in done.stderr


def test_a_narrow_terminal_gets_colours_and_every_letter(deployed: Deployed, tmp_path: Path) -> None:
    terminal, end = pty.openpty()
    script = start(deployed, "airflow-barrier", "snapshots", "shopping", home=tmp_path, stdout=end)
    os.close(end)
    shown = _all_of(terminal)
    assert "\x1b[" in shown
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert all(len(line) <= 60 for line in lines)
    # folded cells put together again, column by column
    cells = [line.split("│")[1:-1] for line in lines if "│" in line]
    assert AMOUNT in "".join(cell[0].strip() for cell in cells)
    tables = deployed.meta.barriers.progress("shopping", 2)
    assert "".join(str(one.snapshot_id) for one in tables) == "".join(cell[1].strip() for cell in cells)
    assert script.communicate(timeout=patience())[1] == ""
    assert script.returncode == 0


def _all_of(terminal: int) -> str:
    read = b""
    while True:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # what Linux says at the end of a terminal
            more = b""
        if not more:
            os.close(terminal)
            return read.decode()
        read += more


# --- asking ---------------------------------------------------------------------------------------


def test_abort_asks_a_person(deployed: Deployed, tmp_path: Path) -> None:
    abort = ["airflow-barrier", "barrier", "abort", "shopping", "3", "--reason", "landed twice", "--json"]
    nobody = start(deployed, *abort, home=tmp_path)
    out, err = nobody.communicate(timeout=patience())
    assert (nobody.returncode, out) == (2, "")
    assert "expected --yes, found no terminal to ask on" in err

    for answer, code in (("n", 1), ("", 1), ("yes", 0)):
        person, end = pty.openpty()
        script = start(deployed, *abort, home=tmp_path, stdin=end)
        os.close(end)
        os.write(person, f"{answer}\n".encode())
        out, err = script.communicate(timeout=patience())
        os.close(person)
        assert script.returncode == code, err
        assert "barrier 3 of shopping (2026-01-08 00:00:00+0000) is OPEN\nbarrier 4 of shopping" in err
        states = {barrier.barrier_id: barrier.state for barrier in deployed.meta.barriers.newest("shopping", limit=3)}
        wanted = BarrierState.OPEN if code else BarrierState.ABORTED
        assert (states[3], states[4]) == (wanted, wanted)
    told = json.loads(out)
    assert (told["changed"], told["states"]) == (True, {"barrier 3": "ABORTED", "barrier 4": "ABORTED"})
