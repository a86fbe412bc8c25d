# SPDX-License-Identifier: Apache-2.0
"""The commands of ductile-gpu, one module each."""
