# SPDX-License-Identifier: Apache-2.0
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/python/ DESTINATION ductile_gpu
  FILES_MATCHING PATTERN "*.py" PATTERN "*.json" PATTERN "__pycache__" EXCLUDE)
