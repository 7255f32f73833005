"""App: the commands. They split a request, train, judge, explain and publish, each in a module of its own.

``cli`` is the command line, ``session`` carries out one request. Nothing in the other rooms imports from here.
"""
