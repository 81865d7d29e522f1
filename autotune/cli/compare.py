"""``autotune compare``: which of two configurations is faster, by alternating launches."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import DEFAULT_RUNS, JsonOption, RunsOption, StorageOption
from autotune.errors import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.search.compare import Compared, Side

_NAMES = "A trial's number, baseline, best, or a DeepSpeed JSON file."


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare")(compare)


def compare(
    a: Annotated[str, typer.Argument(metavar="A", help=_NAMES)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same, for the other.")],
    study: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="Study of both [default: the latest]."),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", help="Launches of each, at least 2.")
    ] = 5,
    runs: RunsOption = DEFAULT_RUNS,
    storage: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Launch two configurations of a study in turns (A B A B …) and say which is faster.

    Both do the study's work. The launches are kept with the study; the same command goes on with
    a comparison that was interrupted, and makes a new one after one that ended.
    """
    from autotune.cli.display import make_display
    from autotune.cli.options import open_study
    from autotune.cli.output import print_json
    from autotune.report.document import build
    from autotune.search.compare import CompareRequest, document, run_compare

    contents = open_study(runs, storage, study)
    request = CompareRequest(
        names=(a, b),
        best=build(contents)["best"]["trial"],
        study=contents.study,
        runs=runs,
        storage=storage,
        rounds=rounds,
    )
    with make_display(sys.stderr if as_json else sys.stdout) as display:
        compared = run_compare(request, display)
    if as_json:
        print_json(document(compared))
    else:
        for line in lines(compared):
            typer.echo(line)
    if compared.result.verdict == "failed":
        raise CheckFailedError(compared.result.reason)


def lines(compared: Compared) -> Iterator[str]:
    """The result for people."""
    from autotune.knobs.words import value_words
    from autotune.report.words import plain

    result = compared.result
    if result.ratio is not None and result.low is not None and result.high is not None:
        interval = f"{result.ratio:.3f}× (95 % interval {result.low:.3f} … {result.high:.3f})"
        yield plain(
            {
                "b_faster": f"{compared.b.name} is faster than {compared.a.name}: {interval}",
                "a_faster": f"{compared.b.name} is slower than {compared.a.name}: {interval}",
                "tie": f"no difference that launches could tell apart: {compared.b.name} ran at "
                f"{interval} of {compared.a.name}'s speed",
            }[result.verdict]
        )
    if result.reason:
        yield f"  {plain(result.reason)}"
    for side in (compared.a, compared.b):
        yield f"  {plain(_side(side))}"
    mine, theirs = compared.a.trial.header.config, compared.b.trial.header.config
    for name in sorted(mine.keys() | theirs.keys()):
        if mine.get(name) != theirs.get(name):
            pair = (value_words(mine.get(name)), value_words(theirs.get(name)))
            yield plain(f"  {name}: {pair[0]} -> {pair[1]}")


def _side(side: Side) -> str:
    from autotune.contract.duration import seconds_text

    each = ", ".join(seconds_text(seconds) for seconds in side.launches)
    return f"{side.name} (trial {side.trial.number}): {each or 'no launch'} s/it"
