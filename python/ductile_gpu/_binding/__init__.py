# SPDX-License-Identifier: Apache-2.0
"""libductile and the virtual GPU's library as Python objects. Knows of no other folder.

_abi        the declarations, made from the headers by tools/make_abi.py
_native     the libraries, opened
_errors     statuses as exceptions
_log        what the libraries say
_objects    numbers and sizes as C takes them
_streams    streams of any library
_core       the allocator
_virtual    the virtual GPU
"""
