"""``thresher dashboard``: a web page about the processes that run models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from thresher.cli.common import fail

_EPILOG = """
Examples:

- `thresher dashboard` shows the address of a page; programs say `thresher.dashboard.report("my service")`
- `thresher dashboard --port 9000 --history runs.sqlite` keeps the history of a project by itself
"""


def add_to(app: typer.Typer) -> None:
    """Registers the command."""
    app.command(name="dashboard", epilog=_EPILOG)(_dashboard)


def _dashboard(
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8650,
    history: Annotated[
        Path | None, typer.Option("--history", metavar="FILE", help="SQLite file; default: in the cache's folder.")
    ] = None,
    max_records: Annotated[
        int, typer.Option("--max-records", metavar="N", min=1000, help="In the file; the oldest go first.")
    ] = 1_000_000,
) -> None:
    """Show latency, throughput, memory, energy and cache of running processes, and runs that became slower."""
    try:
        from thresher.dashboard.app import create_app
        from thresher.dashboard.store import Store, StoreError
        from thresher.web.guard import is_loopback_address
        from thresher.web.running import AddressError, Server, bind, url_of
    except ModuleNotFoundError as error:
        fail(f"expected the module {error.name}, got none; pip install 'thresher[serve]'")
    try:
        bound = bind(host, port)
    except AddressError as error:
        fail(str(error))
    loopback = is_loopback_address(host)
    if not loopback:
        typer.echo(f"thresher: warning: whoever reaches {host} sees all processes and may add some", err=True)
    try:
        store = Store(history or _default_history(), most_records=max_records)
    except StoreError as error:
        fail(str(error))
    try:
        server = Server(
            create_app(store, loopback=loopback),
            drain=lambda: None,
            abort=lambda: None,
            shutdown_s=1.0,
            ready=lambda: typer.echo(f"the dashboard is at {url_of(bound)}"),
        )
        server.run(sockets=[bound])
    finally:
        try:
            store.close()
        except StoreError as error:
            fail(str(error))


def _default_history() -> Path:
    from thresher import cache

    folder = cache.folder()
    if folder is None:
        fail("expected a folder for the history, got none (THRESHER_CACHE_DIR); name a file with --history")
    return folder / "dashboard.sqlite"
