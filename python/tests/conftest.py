# SPDX-License-Identifier: Apache-2.0
"""What pytest reads first."""

pytest_plugins = ["support"]
