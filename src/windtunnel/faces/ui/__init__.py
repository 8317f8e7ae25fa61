"""The local page: ask, vary, search, compare and share in a browser, with nothing but a server on this machine.

    server.py       routes: which address shows what
    page.py         what the pages show
    form.py         a form's fields as a question, and the question as a command, Python and YAML
    variations.py   one field of a question over its values
    jobs.py         long questions as processes of their own: started, watched, stopped, found again

It owns no physics and no state: run folders are the database, the report's templates are the picture.
"""
