"""App: the commands. A request is prepared, trained, judged, explained and published, each in its own module.

``cli`` is the command line, ``session`` carries out one request. Nothing in the other rooms imports from here.
"""
