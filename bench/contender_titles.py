# SPDX-License-Identifier: Apache-2.0
"""What pages, pictures and tables call the contenders of ductile-bench, in their order."""

import re
from pathlib import Path

_LIST = Path(__file__).resolve().parent / "contenders" / "names.h"
TITLES = dict(re.findall(r'\bX\((\w+), "([^"]+)"\)', _LIST.read_text(encoding="utf-8")))
