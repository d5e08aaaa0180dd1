"""``python -m tokonomics``, and the ``tokonomics`` command: the verbs of the command line, and the page."""

from tokonomics.cli.main import app as app
from tokonomics.cli.main import main
from tokonomics.web.serve import web

app.command("web")(web)

if __name__ == "__main__":
    main()
