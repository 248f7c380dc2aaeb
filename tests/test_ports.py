"""Servers of tests that run at the same time are not given the same port."""

from __future__ import annotations

import socket
from concurrent.futures import ProcessPoolExecutor

from tests.races.racers import PROCESSES
from tests.support.ports import free_port


def test_a_port_is_given_once() -> None:
    mine = [free_port() for _ in range(3)]
    with ProcessPoolExecutor(1, mp_context=PROCESSES) as pool:
        theirs = [pool.submit(free_port).result() for _ in range(3)]
        assert len({*mine, *theirs, free_port()}) == 7
    with socket.create_server(("127.0.0.1", theirs[0])):  # a server that outlives who was given its port
        assert free_port() != theirs[0]
