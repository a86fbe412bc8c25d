# SPDX-License-Identifier: Apache-2.0
# The C example of README.md compiles without a warning, and runs on a virtual GPU.
cmake_minimum_required(VERSION 3.23)

file(READ ${ROOT}/README.md text)
if(NOT text MATCHES "\n```c\n([^`]+)```")
  message(FATAL_ERROR "README.md has no C example")
endif()
file(WRITE ${SCRATCH}/example.c "${CMAKE_MATCH_1}")

cmake_path(GET LIBRARY PARENT_PATH library_dir)
execute_process(COMMAND ${CC} -std=c11 -Wall -Wextra -Wpedantic -Werror
  -I ${ROOT}/pool/include example.c -o example ${LIBRARY} ${VIRTUAL_LIBRARY} -ldl -pthread
  -Wl,--undefined=ductile_virtual_backend -Wl,-rpath,${library_dir}
  WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(EMULATOR UNIX_COMMAND "${EMULATOR}")
execute_process(COMMAND ${CMAKE_COMMAND} -E env DUCTILE_CONF=driver:virtual ${EMULATOR} ./example
  WORKING_DIRECTORY ${SCRATCH} COMMAND_ERROR_IS_FATAL ANY)
