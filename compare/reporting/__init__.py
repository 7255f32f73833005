"""Reporting: sentences, terminal output, plots, HTML pages and TensorBoard logs of a run; imports no TensorFlow.

All of it is generated from a run's files and can be regenerated from them at any time.
"""
