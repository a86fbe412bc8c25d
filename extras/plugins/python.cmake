# SPDX-License-Identifier: Apache-2.0
install(DIRECTORY ${CMAKE_CURRENT_LIST_DIR}/python/ DESTINATION ductile_gpu FILES_MATCHING PATTERN "*.py"
  PATTERN "__pycache__" EXCLUDE)
# Read at the start of every interpreter: what launchers name in LD_PRELOAD is then enough.
file(GLOB start CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/start/ductile_gpu_memory_saver.*)
install(FILES ${start} DESTINATION .)

# torch_memory_saver's C names; and what launchers name in LD_PRELOAD, so that it depends on nothing.
add_library(ductile_memory_saver SHARED ${CMAKE_CURRENT_LIST_DIR}/ductile_memory_saver.c)
target_compile_options(ductile_memory_saver PRIVATE -Wall -Wextra)
set_target_properties(ductile_memory_saver PROPERTIES C_STANDARD 11 C_VISIBILITY_PRESET hidden)
install(TARGETS ductile_memory_saver LIBRARY DESTINATION ductile_gpu/lib)
