# SPDX-License-Identifier: Apache-2.0
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/python/ DESTINATION ductile_gpu
  FILES_MATCHING PATTERN "*.py" PATTERN "__pycache__" EXCLUDE)
add_subdirectory(${CMAKE_CURRENT_LIST_DIR} preload)
install(TARGETS ductile_preload LIBRARY DESTINATION ductile_gpu/lib)
