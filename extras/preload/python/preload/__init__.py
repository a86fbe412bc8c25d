# SPDX-License-Identifier: Apache-2.0
"""`ductile-gpu run --all`: every library of a program's processes allocates from Ductile."""
