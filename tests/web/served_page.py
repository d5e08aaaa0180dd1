"""A page's server on a free port, with one worker of each kind that has all the time it needs; says where it is.

``tokonomics web`` itself, with as many workers as there are cores, is started in ``test_page_verb.py``.
"""

import sys
from pathlib import Path

import typer

from tokonomics.web import serve
from tokonomics.web.app import make_app
from tokonomics.web.service import Settings

if __name__ == "__main__":
    bound = serve.listening("127.0.0.1", 0)
    serve._end_tidily()
    app = make_app(Settings(ledger=Path(sys.argv[1]), quick_workers=1, long_workers=1, quick_s=600.0, warm_up=False))
    try:
        typer.echo(f"http://127.0.0.1:{bound.getsockname()[1]}/")
        serve._serve(app, bound)
    finally:
        app.service.close()
