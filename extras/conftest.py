# SPDX-License-Identifier: Apache-2.0
"""What pytest reads first: tests of extras have the fixtures of python/tests, and its helpers."""

pytest_plugins = ["support"]
