"""A page's server on a free port, with one worker of each kind that has all the time it needs; says where it is.

With a token and a name after the ledger it demands the one, is also called the other, and has no workers.
``tokonomics web`` itself, with as many workers as there are cores, is started in ``test_page_verb.py``.
"""

import sys
from pathlib import Path

import typer

from tokonomics.addresses import listening
from tokonomics.web import serve
from tokonomics.web.app import make_app
from tokonomics.web.service import Settings

if __name__ == "__main__":
    bound = listening("127.0.0.1", 0)
    serve._end_tidily()
    ledger, *guarded = sys.argv[1:]
    workers = 0 if guarded else 1
    settings = Settings(
        ledger=Path(ledger), quick_workers=workers, long_workers=workers, quick_s=600.0, warm_up=False,
        token=guarded[0] if guarded else None, names=tuple(guarded[1:]),
    )  # fmt: skip
    app = make_app(settings)
    try:
        typer.echo(f"http://127.0.0.1:{bound.getsockname()[1]}/")
        serve._serve(app, bound)
    finally:
        app.service.close()
