"""Trainers: ``fit`` as the reference, the custom loop that is equal to it, and the tutorial's loop.

A trainer takes everything from its ``Run``. ``custom_loop.py`` is the module to read first; the details that it leaves
to other modules are named in its comments.
"""
