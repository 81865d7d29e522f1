"""``autotune doctor``: whether a search could run here."""

from __future__ import annotations

import typer

from autotune.cli.options import DEFAULT_RUNS, JsonOption, RunsOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(runs: RunsOption = DEFAULT_RUNS, as_json: JsonOption = False) -> None:
    """Check versions, devices, backends, kernels and the machine; changes nothing.

    Exit code 1 if a check failed: a search would not run.
    """
    import dataclasses

    from autotune.cli.output import print_json
    from autotune.report.words import plain
    from autotune.search.doctor import examine

    found = examine(runs)
    failed = [check.name for check in found if check.state == "failed"]
    if as_json:
        print_json(
            {
                "schema_version": 1,
                "verdict": "failed" if failed else "ok",
                "failed": failed,
                "checks": [dataclasses.asdict(check) for check in found],
            }
        )
    else:
        for check in found:
            typer.echo(plain(f"{check.state:8}{check.name}: {check.text}"))
            if check.hint is not None:
                typer.echo(plain(f"{'':8}{check.hint}"))
        typer.echo(
            f"{len(failed)} failed: {', '.join(failed)}" if failed else "A search can run here."
        )
    if failed:
        raise typer.Exit(1)
