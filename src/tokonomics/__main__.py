"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs, sweeps of them, and the page."""

from tokonomics.cli.main import app as app
from tokonomics.cli.main import main
from tokonomics.sweep.sweep import sweep
from tokonomics.web.serve import web

app.command("sweep")(sweep)
app.command("web")(web)

if __name__ == "__main__":
    main()
