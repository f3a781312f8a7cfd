"""View runs in a browser: episodes, comparisons, training curves."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli.terminal import new_app, note, tell
from coseek.core.errors import SettingError, UserError
from coseek.core.files import check_not_file, real_path
from coseek.view.page import LivePage, page_of, write_page
from coseek.view.run_source import OtherIndex, open_sources

GROUP = "Results"
app = new_app()


@app.command(epilog="Example: `coseek view runs/mine runs/rules --out runs.html`")
def view(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of runs, or of trainings, which have curves.")],
    out: Annotated[Path | None, Option(help="The HTML file to write. [default: view.html in the first folder]")] = None,
    labels: Annotated[Path | None, Option(help="A folder of `coseek label`: show the labels of every search.")] = None,
    ranks: Annotated[
        list[str] | None,
        Option(metavar="RETRIEVER", help="Also show each passage's rank in this index, URL or YAML file. May repeat."),
    ] = None,
    serve: Annotated[bool, Option("--serve", help="Serve the page here; a reload reads the runs again.")] = False,
    port: Annotated[int, Option(min=0, max=65535, help="The port of --serve; 0 takes a free one.")] = 8642,
) -> None:
    """Show runs: a list with filters, episodes by turn and token, runs side by side, training curves.

    The file is complete and loads nothing, so it can be sent to others. Text of runs is shown, never executed.
    """
    if len(set(map(real_path, runs))) < len(runs):
        raise UserError("the same folder is named twice; name each once")
    others = [OtherIndex.open(source) for source in ranks or ()]
    if len({other.name for other in others}) < len(others):
        raise UserError("two retrievers of --ranks have one name; rename a folder")
    sources = open_sources(runs, labels, others)
    if serve:
        if out is not None:
            raise SettingError("--serve writes no file; leave out --out")
        page = LivePage(port, lambda: page_of(*open_sources(runs, labels, others))[1])
        with page as server, suppress(KeyboardInterrupt):
            tell(f"the viewer is at {server.url} (Ctrl-C ends it)")
            server.serve_forever()
        return
    path = runs[0] / "view.html" if out is None else out
    if path.suffix not in (".html", ".htm"):
        raise SettingError(f"--out {path}: name a file that ends in .html")
    check_not_file(path.parent)
    if path.is_dir():
        raise SettingError(f"--out {path} is a folder; name a file in it")
    note(f"reading {len(sources[0])} runs and {len(sources[1])} curves …")
    episodes = write_page(path, *sources)
    tell(f"{path}: {episodes:,} episodes, {path.stat().st_size / 1e6:.1f} MB. Open it in a browser.")
