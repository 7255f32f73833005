"""Reporting: what people read: sentences, tables in the terminal, plots, pages, logs for TensorBoard; no TensorFlow.

Everything here is made from a run's files, and can be made again from them.
"""
