"""``doctor``: is this installation whole, and how old is what it knows?"""

from tokonomics.cli.output import Json


def doctor(json: Json = False) -> None:
    """What is installed, how old the prices are, which files and GPUs are found; asks nothing of the network.

    Exits with 1 if something that is needed is broken. Made to be pasted into a bug report.

    \b
    Examples:
      tokonomics doctor
      tokonomics doctor --json
    """
    from tokonomics.cli.answer import Answer, give
    from tokonomics.measure.installation import examine
    from tokonomics.report.doctor_view import doctor_view

    found = examine()
    give(Answer(found, lambda: doctor_view(found), "Doctor", exit_code=0 if found.works else 1), json=json)
